"""What the signature `explore` answers: a translation taken apart, step by step.

Shapes: B batch, S source length, T target length, P tokens of the prefix, N layers, H heads, K
tokens told of each step.
"""

import tensorflow as tf

from keras_transformer.special_ids import PAD
from keras_transformer.translation.hypotheses import LEAST_LOG_PROB
from keras_transformer.translation.scoring import all_attention, rank_tokens
from keras_transformer.translation.translator import Translator
from keras_transformer.typing import Tensor

MOST_TOKENS = 100  # told of a step, however many are asked for


def explore(translator: Translator, text: Tensor, prefix: Tensor, k: Tensor) -> dict[str, Tensor]:
    """Translates greedily after what is given, and tells what the model made of each step.

    A row's answer does not depend on the rows beside it, which only make its tables wider: `""`
    stands there for a token, PAD for an id, 0 for a weight or a token's log-probability, and
    `LEAST_LOG_PROB` for that of a token that is not told.

    Args:
        translator: `Translator`.
        text: String tensor `(B,)`.
        prefix: int32 ids of the target vocabulary `(B, P)`, PAD where there is none: what the
            translations begin with, as far as they may be long.
        k: int32 `(B,)`: how many of the most probable tokens to tell of each step, from 1 to
            `MOST_TOKENS` or the vocabulary.

    Returns:
        What the contract says: `text` and `log_prob` as `serving_default` has them, END and prefix
        counted; `source_tokens` `(B, S)`; of the target's tokens, END included, `target_tokens`,
        `target_ids` and `target_log_prob` `(B, T)`; of the most probable ones at their steps, the
        best first, `best_tokens`, `best_ids` and `best_log_prob` `(B, T, K)`; `encoder`, `decoder`
        and `cross` as `all_attention` has them. All of a text without a token is empty.
    """
    model = translator.model
    source, empty = translator.read_source(text)
    given = tf.ragged.boolean_mask(prefix, tf.not_equal(prefix, PAD)).to_tensor(PAD)
    options = {"prefix": given[:, : translator.longest_output]}
    tokens, answer = translator.translate_ids(source, empty, options=options)
    most = min(MOST_TOKENS, model.target_vocabulary_size)
    k = tf.clip_by_value(k, 1, most)
    widest = tf.clip_by_value(tf.reduce_max(k), 1, most)  # of no rows, the maximum is the least
    logits, attention = all_attention(model, source, tokens)
    log_prob, ids, best = rank_tokens(logits, tokens, widest)

    filled = tf.logical_not(empty)[:, tf.newaxis]
    of_source = tf.not_equal(source, PAD) & filled  # (B, S)
    of_target = tf.not_equal(tokens, PAD) & filled  # (B, T)
    told = (tf.range(widest) < k[:, tf.newaxis])[:, tf.newaxis] & of_target[:, :, tf.newaxis]
    sides = {
        "encoder": (of_source, of_source),
        "decoder": (of_target, of_target),
        "cross": (of_target, of_source),
    }
    read, write = translator.source_tokenizer.pieces, translator.target_tokenizer.pieces
    return answer | {
        "source_tokens": tf.where(of_source, read(source), ""),
        "target_tokens": tf.where(of_target, write(tokens), ""),
        "target_ids": tf.where(of_target, tokens, PAD),
        "target_log_prob": tf.where(of_target, tf.maximum(log_prob, LEAST_LOG_PROB), 0.0),
        "best_tokens": tf.where(told, write(ids), ""),
        "best_ids": tf.where(told, ids, PAD),
        "best_log_prob": tf.where(told, tf.maximum(best, LEAST_LOG_PROB), LEAST_LOG_PROB),
        **{
            kind: tf.where(_table(*sides[kind]), weights, 0.0)
            for kind, weights in attention.items()
        },
    }


def _table(queries, keys):
    """Which cells of a row's tables there are: bool `(B, 1, 1, queries, keys)`."""
    cells = queries[:, :, tf.newaxis] & keys[:, tf.newaxis]
    return cells[:, tf.newaxis, tf.newaxis]
