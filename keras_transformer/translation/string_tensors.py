"""Text in tensors, and a search by keywords: what a translator takes when it is called.

Shapes: B batch.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_transformer.presets import SearchConfig
from keras_transformer.special_ids import PAD
from keras_transformer.typing import Tensor


def with_options(search: SearchConfig, options: dict[str, Any]) -> SearchConfig:
    """A search with other values for some of its fields.

    Raises:
        ValueError: If there is no such field, or a value is out of its range.
    """
    fields = [field.name for field in dataclasses.fields(search)]
    for name in options:
        if name not in fields:
            known = ", ".join(["batch_size", "search", "prefixes", *fields])
            raise ValueError(f"There is no option {name}: choose from {known}.")
    return dataclasses.replace(search, **options)


def translate_tensor(
    translator: Any,
    text: Tensor,
    batch_size: int,
    search: SearchConfig,
    prefix: Tensor | None = None,
) -> Tensor:
    """Translates a string tensor, eagerly or as part of a graph.

    Args:
        translator: `Translator`.
        text: String tensor `()` or `(B,)`.
        batch_size, search: As `Translator.translate` has them; in a graph, all is one batch.
        prefix: What the translations begin with, of the same shape.

    Returns:
        String tensor of the same shape.

    Raises:
        ValueError: If the text is no such tensor, or the prefix is of another shape.
    """
    if text.dtype != tf.string or text.shape.rank not in (0, 1):
        raise ValueError(
            f"Expected a string tensor of shape () or (B,), received {text.dtype.name} of shape "
            f"{text.shape}."
        )
    rows, prefixes = tf.reshape(text, [-1]), None
    if prefix is not None:
        prefix = tf.convert_to_tensor(prefix, tf.string)
        if not prefix.shape.is_compatible_with(text.shape):
            raise ValueError(
                "Expected a prefix for each source, received prefixes of shape "
                f"{prefix.shape} for sources of shape {text.shape}."
            )
        prefixes = tf.reshape(prefix, [-1])
    if tf.executing_eagerly():
        given = None if prefixes is None else prefixes.numpy().tolist()
        found = translator.translate(rows.numpy().tolist(), batch_size, search, given)
        found = tf.constant(found, tf.string, [len(found)])
    else:
        seeds = (search.seed << 32) + tf.range(tf.size(rows, tf.int64))
        if prefixes is not None:
            message = "There must be one prefix for each source."
            check = tf.debugging.assert_equal(tf.size(prefixes), tf.size(rows), message)
            with tf.control_dependencies([check]):
                prefixes = tf.identity(prefixes)
            prefixes = translator.target_tokenizer(translator.clean(prefixes)).to_tensor(PAD)
        found = translator.search_batch(rows, seeds, prefixes, search)[0][:, 0]
    return tf.reshape(found, tf.shape(text))
