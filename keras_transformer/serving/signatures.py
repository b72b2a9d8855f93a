"""Signatures of an exported model: their names, inputs and outputs.

None of them refuses a long source: of one with more than the model's `max_length` tokens, END
included, what follows the first `max_length` - 1 has no part in the answer.

Shapes: B batch, N hypotheses for each text, S source length, T target length.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from keras_transformer.serving.contract import CONTRACT
from keras_transformer.serving.versions import DEFAULT

# {name of a signature: tf.function}.
Functions: TypeAlias = dict[str, tf.types.experimental.PolymorphicFunction]


class Signature(NamedTuple):
    """The contract of one signature: {name: TensorSpec} of what goes in and what comes out."""

    inputs: dict[str, tf.TensorSpec]
    outputs: dict[str, tf.TensorSpec]
    batchable: bool  # as `Contract` has it


def _specs(tensors):
    return {name: tf.TensorSpec(shape, dtype, name) for name, (shape, dtype) in tensors.items()}


SIGNATURES = {
    name: Signature(_specs(one.inputs), _specs(one.outputs), one.batchable)
    for name, one in CONTRACT.items()
}


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Puts names of signatures into their usual order.

    Args:
        names: Some of `SIGNATURES`; `serving_default` is always among them.

    Returns:
        Tuple of names.

    Raises:
        ValueError: If there is no such signature.
    """
    unknown = sorted(set(names) - set(SIGNATURES))
    if unknown:
        raise ValueError(
            f"There is no signature {unknown[0]!r}: choose from {', '.join(SIGNATURES)}."
        )
    return tuple(name for name in SIGNATURES if name in names or name == DEFAULT)


def make_inputs(
    name: str,
    texts: Sequence[str | bytes],
    targets: Sequence[str | bytes] | None = None,
    seed: int = 0,
) -> dict[str, list[Any]]:
    """A request to a signature, as nested lists, with usual values for what is no text.

    Args:
        name: Of the signature.
        texts: Byte strings or strings.
        targets: As many, for `score`; the texts themselves when left out.
        seed: What the seeds of `sample` start at; and, for `tokens` and `explore`, what ids follow
            from.

    Returns:
        {name of an input: list}.
    """
    rows = len(texts)
    # Any ids will do, also some that no vocabulary has.
    ids = [[(seed + 7919 * row * k) % 100_003 - 1 for k in range(5)] for row in range(rows)]
    values: dict[str, list[Any]] = {
        "text": list(texts),
        "source": list(texts),
        "target": list(texts if targets is None else targets),
        "temperature": [1.0] * rows,
        "top_k": [0] * rows,
        "top_p": [1.0] * rows,
        "seed": [seed + row for row in range(rows)],
        "ids": ids,
        "prefix": ids,
        "k": [seed + row - 1 for row in range(rows)],
    }
    return {key: values[key] for key in SIGNATURES[name].inputs}
