"""Variables that are made while a function is being traced, and outlast it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def outside_of_traces() -> Iterator[None]:
    """A context in which variables get their values at once, whatever is being traced.

    `tf.function` gives them to the variables of its first trace when that has succeeded. Where it
    fails, they would stay empty for good.
    """

    def create(next_creator: Any, **options: Any) -> Any:
        return next_creator(**options | {"experimental_enable_variable_lifting": False})

    with tf.variable_creator_scope(create), tf.init_scope():
        yield
