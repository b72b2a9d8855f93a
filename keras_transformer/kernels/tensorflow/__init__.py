"""Kernels that need TensorFlow; they are not imported on other Keras backends."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def outside_of_traces() -> Iterator[None]:
    """A context in which variables are initialized immediately, even while a function is traced.

    `tf.function` initializes the variables of its first trace after that has succeeded. If the
    trace fails, they remain uninitialized forever.
    """

    def create(next_creator: Any, **options: Any) -> Any:
        return next_creator(**options | {"experimental_enable_variable_lifting": False})

    with tf.variable_creator_scope(create), tf.init_scope():
        yield
