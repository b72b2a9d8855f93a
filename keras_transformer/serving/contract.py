"""What the signatures of an export take and give, by names, shapes and types: no TensorFlow."""

from typing import NamedTuple, TypeAlias

from keras_transformer.serving.versions import DEFAULT

# {name: (shape, type)}; None is a size that may be any.
Tensors: TypeAlias = dict[str, tuple[list[int | None], str]]


class Contract(NamedTuple):
    """The contract of one signature: what goes in and what comes out."""

    inputs: Tensors
    outputs: Tensors
    batchable: bool  # whether a server may join requests: every tensor has its rows in axis 0, and
    # no other axis depends on who else is in the batch


_ROWS: list[int | None] = [None]  # (B,)
_TABLE: list[int | None] = [None, None]  # (B, anything)
_STEPS: list[int | None] = [None, None, None]  # (B, T, K)
_MAPS: list[int | None] = [None] * 5  # (B, layers, heads, queries, keys)
_TEXT = (_ROWS, "string")
_LOG_PROB = (_ROWS, "float32")

CONTRACT = {
    # Greedy search: the one that requests get which name none.
    DEFAULT: Contract(dict(text=_TEXT), dict(text=_TEXT, log_prob=_LOG_PROB), True),
    # The N best of a beam search, and the scores that it ranks them by; the export fixes N and α.
    "beam": Contract(
        dict(text=_TEXT),
        dict(
            text=(_TABLE, "string"),
            log_prob=(_TABLE, "float32"),
            score=(_TABLE, "float32"),
        ),
        True,
    ),
    # Drawn at random. What a row draws depends on its own five values only.
    "sample": Contract(
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
    # How probable a given target is, and of how many tokens, END included.
    "score": Contract(
        dict(source=_TEXT, target=_TEXT),
        dict(log_prob=_LOG_PROB, tokens=(_ROWS, "int32")),
        True,
    ),
    # The translation, the tokens of both sides, and what attended to what: (B, T, S).
    "attention": Contract(
        dict(text=_TEXT),
        dict(
            text=_TEXT,
            source_tokens=(_TABLE, "string"),
            target_tokens=(_TABLE, "string"),
            attention=([None, None, None], "float32"),
        ),
        False,
    ),
    # For those who cut text into pieces themselves: ids (B, S) to ids (B, T), padded with 0.
    "tokens": Contract(
        dict(ids=(_TABLE, "int32")), dict(ids=(_TABLE, "int32"), log_prob=_LOG_PROB), False
    ),
    # A translation taken apart, greedy after given ids: how probable each of its tokens was, the K
    # best at each step, and all that attends to anything. Only in an export that names it.
    "explore": Contract(
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
