"""The signatures of an export: names, inputs and outputs, by shapes and types. No TensorFlow.

None of them refuses a long source: with more than the model's `max_length` tokens, END included,
all after the first `max_length` - 1 are ignored.

Shapes: B batch, S source length, T target length, N hypotheses for each text, K ranked tokens.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from keras_transformer.serving.versions import DEFAULT

# {name: (shape, dtype)}; None is an unknown size.
Tensors: TypeAlias = dict[str, tuple[list[int | None], str]]
# {name of a signature: tf.function}.
Functions: TypeAlias = dict[str, Any]


class Signature(NamedTuple):
    """The contract of one signature."""

    inputs: Tensors
    outputs: Tensors
    batchable: bool  # whether a server may batch requests: axis 0 of every tensor is the batch, and
    # no other axis depends on the rest of the batch


_ROWS: list[int | None] = [None]  # (B,)
_TABLE: list[int | None] = [None, None]  # (B, anything)
_STEPS: list[int | None] = [None, None, None]  # (B, T, K)
_MAPS: list[int | None] = [None] * 5  # (B, layers, heads, queries, keys)
_TEXT = (_ROWS, "string")
_LOG_PROB = (_ROWS, "float32")

SIGNATURES = {
    # Greedy search: for requests that name no signature.
    DEFAULT: Signature(dict(text=_TEXT), dict(text=_TEXT, log_prob=_LOG_PROB), True),
    # The N best of a beam search, and the scores that rank them; the export fixes N and α.
    "beam": Signature(
        dict(text=_TEXT),
        dict(text=(_TABLE, "string"), log_prob=(_TABLE, "float32"), score=(_TABLE, "float32")),
        True,
    ),
    # Sampling. A row's sample depends on its own five values only.
    "sample": Signature(
        dict(
            text=_TEXT,
            temperature=(_ROWS, "float32"),
            top_k=(_ROWS, "int32"),
            top_p=(_ROWS, "float32"),
            seed=(_ROWS, "int64"),
        ),
        dict(text=_TEXT, log_prob=_LOG_PROB),
        True,
    ),
    # How probable a given target is, and its number of tokens, END included.
    "score": Signature(
        dict(source=_TEXT, target=_TEXT),
        dict(log_prob=_LOG_PROB, tokens=(_ROWS, "int32")),
        True,
    ),
    # The translation, the tokens of both sides, and the cross-attention (B, T, S).
    "attention": Signature(
        dict(text=_TEXT),
        dict(
            text=_TEXT,
            source_tokens=(_TABLE, "string"),
            target_tokens=(_TABLE, "string"),
            attention=(_STEPS, "float32"),
        ),
        False,
    ),
    # For clients that tokenize themselves: ids (B, S) to ids (B, T), padded with 0.
    "tokens": Signature(
        dict(ids=(_TABLE, "int32")), dict(ids=(_TABLE, "int32"), log_prob=_LOG_PROB), False
    ),
    # A greedy translation that begins with given ids, in detail: how probable each of its tokens
    # was, the K best at each step, and all attention weights. Only in an export that names it.
    "explore": Signature(
        dict(text=_TEXT, prefix=(_TABLE, "int32"), k=(_ROWS, "int32")),
        dict(
            text=_TEXT,
            log_prob=_LOG_PROB,
            source_tokens=(_TABLE, "string"),
            target_tokens=(_TABLE, "string"),
            target_ids=(_TABLE, "int32"),
            target_log_prob=(_TABLE, "float32"),
            best_tokens=(_STEPS, "string"),
            best_ids=(_STEPS, "int32"),
            best_log_prob=(_STEPS, "float32"),
            encoder=(_MAPS, "float32"),
            decoder=(_MAPS, "float32"),
            cross=(_MAPS, "float32"),
        ),
        False,
    ),
}


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Puts names of signatures into their usual order.

    Args:
        names: In any order; `serving_default` is always added.

    Returns:
        Tuple of names.
    """
    names = (names,) if isinstance(names, str) else names
    unknown = sorted(set(names) - set(SIGNATURES))
    if unknown:
        raise ValueError(f"Unknown signature {unknown[0]!r}: choose from {', '.join(SIGNATURES)}.")
    return tuple(name for name in SIGNATURES if name in names or name == DEFAULT)


def make_inputs(
    name: str,
    texts: Sequence[str | bytes],
    targets: Sequence[str | bytes] | None = None,
) -> dict[str, list[Any]]:
    """A request to a signature, as nested lists, with usual values for inputs other than text.

    Args:
        name: Of the signature.
        texts: Byte strings or strings.
        targets: As many, for `score`; the texts themselves when left out.

    Returns:
        {name of an input: list}.
    """
    rows = len(texts)
    # Any ids will do, including unknown ones.
    ids = [[7919 * row * k % 100_003 - 1 for k in range(5)] for row in range(rows)]
    values: dict[str, list[Any]] = {
        "text": list(texts),
        "source": list(texts),
        "target": list(texts if targets is None else targets),
        "temperature": [1.0] * rows,
        "top_k": [0] * rows,
        "top_p": [1.0] * rows,
        "seed": list(range(rows)),
        "ids": ids,
        "prefix": ids,
        "k": list(range(-1, rows - 1)),
    }
    return {key: values[key] for key in SIGNATURES[name].inputs}
