"""Inspects one translation: what its tokens attend to, and how probable each was.

Shapes: B batch, S source length, T target length, N layers, H heads, V target vocabulary.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from keras_transformer.presets.languages import Language
from keras_transformer.special_ids import END, PAD
from keras_transformer.translation.sentences import AttentionMaps, TokenStep
from keras_transformer.translation.text_model import decoder_input
from keras_transformer.translation.translator import Translator
from keras_transformer.utils import Tensor

if TYPE_CHECKING:
    from keras_transformer.transformer import Transformer


def attention_maps(
    translator: Translator,
    source: str | bytes,
    target: str | bytes | Sequence[int] | Tensor | None = None,
    **languages: Language,
) -> AttentionMaps:
    """Computes all attention weights of one pair.

    Args:
        translator: A `Translator`.
        source: Text.
        target: Its translation: text, or ids as a search returns them; by default the translator's
            own, by greedy search.
        **languages: `source_language` and `target_language`, see `Translator.translate`.

    Returns:
        `AttentionMaps`, with the tokens of the languages.

    Raises:
        ValueError: If the target is too long for the model, or has an invalid id.

    Example:

    >>> maps = attention_maps(translator, "samedi 9 mai 1998")
    >>> figure = plot_attention(maps.scores["cross"], *maps.labels("cross"))
    """
    source_ids, target_ids = _read(translator, source, target, languages)
    _, scores = all_attention(translator.model, source_ids, target_ids)
    return AttentionMaps(
        _pieces(translator.source_tokenizer, source_ids[0]),
        _pieces(translator.target_tokenizer, target_ids[0]),
        {kind: maps[0].numpy() for kind, maps in scores.items()},
    )


def token_probabilities(
    translator: Translator,
    source: str | bytes,
    target: str | bytes | Sequence[int] | Tensor | None = None,
    number: int = 5,
    **languages: Language,
) -> list[TokenStep]:
    """Finds the most probable tokens at each step of a translation.

    Args:
        translator, source, target, **languages: See `attention_maps`.
        number: How many of the most probable tokens.

    Returns:
        A `TokenStep` for each token of the target, END included.

    Raises:
        ValueError: See `attention_maps`; or if `number` exceeds the vocabulary.

    Example:

    >>> steps = token_probabilities(translator, "samedi 9 mai 1998")
    >>> figure = plot_token_probabilities(steps)
    """
    size = translator.model.target_vocabulary_size
    if not 1 <= number <= size:
        raise ValueError(f"number must be from 1 to {size}, the vocabulary, received {number}.")
    source_ids, target_ids = _read(translator, source, target, languages)
    logits, _ = all_attention(translator.model, source_ids, target_ids)
    logits, target_ids = (x[:, translator.languages.num_forced :] for x in (logits, target_ids))
    taken, ids, best = rank_tokens(logits, target_ids, number)
    tokenizer = translator.target_tokenizer
    pieces = np.reshape(_pieces(tokenizer, tf.reshape(ids[0], [-1])), ids.shape[1:]).tolist()
    rows = zip(
        _pieces(tokenizer, target_ids[0]),
        taken[0].numpy().tolist(),
        pieces,
        best[0].numpy().tolist(),
        strict=True,
    )
    return [
        TokenStep(token, log_prob, list(zip(some, log_probs, strict=True)))
        for token, log_prob, some, log_probs in rows
    ]


def all_attention(
    model: "Transformer", source: Tensor, target: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the attention weights of all layers and heads, by one pass over padded ids.

    Returns:
        float32 logits `(B, T, V)`, which predict each token of the target; and the weights,
        float32: `encoder` `(B, N, H, S, S)`, `decoder` `(B, N, H, T, T)` of its input, START and
        all but the last token, and `cross` `(B, N, H, T, S)`. Rows are queries. Values at padding
        are meaningless.
    """
    logits, scores = model((source, decoder_input(target)), return_attention_scores=True)
    stacks = {kind: tf.stack(layers, axis=1) for kind, layers in scores.items()}
    weights = {kind: tf.cast(stack, tf.float32) for kind, stack in stacks.items()}
    return model.suppress(logits), weights


def rank_tokens(
    logits: Tensor, target: Tensor, number: int | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the most probable tokens at each position of targets, from logits `(B, T, V)`.

    Returns:
        float32 `(B, T)`, the natural-log probabilities of the target's tokens; and the `number`
        most probable ones, the best first: int32 ids and float32 log-probabilities
        `(B, T, number)`.
    """
    log_probs = tf.nn.log_softmax(logits)
    best, ids = tf.math.top_k(log_probs, number)
    return tf.gather(log_probs, target, batch_dims=2), ids, best


def _read(translator, source, target, languages):
    """Ids `(1, S)` and `(1, T)`: END is appended to text; ids end at their END, if any."""
    _, rows = translator.read_rows([source], **languages)
    source_ids, empty = translator.read_source([source], rows)
    if target is None:
        search = translator.default_search.greedy
        target = translator.translate_ids(source_ids, empty, search, languages=rows)[0][0, 0]
    if isinstance(target, (str, bytes)):
        target_ids = translator.read_targets("target", [target], 1, end=True).to_tensor()
        return source_ids, translator.begin_target(target_ids, rows)
    ids = np.asarray(target)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"Expected a text or the ids of one, received {target!r}.")
    ends = np.flatnonzero(ids == END)
    ids = ids[: ends[0] + 1] if ends.size else ids[ids != PAD]
    longest, size = translator.model.max_length, translator.model.target_vocabulary_size
    if not 1 <= ids.size <= longest or np.any((ids < 0) | (ids >= size)):
        raise ValueError(
            f"Expected 1 to {longest} ids of a vocabulary of {size}, received {ids.tolist()}."
        )
    return source_ids, translator.begin_target(tf.constant([ids], tf.int32), rows)


def _pieces(tokenizer, ids):
    return [piece.decode(errors="replace") for piece in tokenizer.pieces(ids).numpy().tolist()]
