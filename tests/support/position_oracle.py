"""Relative positions in float64 NumPy: loops over the papers' equations, one pair at a time.

Each scheme gives the scores of one head before mask and softmax, and what is added to the values.
Shapes: T positions, K width of a head.
"""

import math

import numpy as np

from tests.support.oracle import softmax


def attend(layer, x, mask=None):
    """Self-attention of a layer with positions: the output (B, T, D) and the weights (B, H, T, T).

    Args:
        layer: A built `MultiHeadAttention` with biases; only its weights are read.
        x: (B, T, D).
        mask: Boolean (B, T, T).
    """
    x = np.asarray(x, "float64")
    kernels = [
        np.asarray(weight, "float64")
        for name in ("query", "key", "value", "output")
        for weight in getattr(layer, f"{name}_dense").get_weights()
    ]
    *inner, output_kernel, output_bias = kernels
    outputs, weights = [], []
    for row in range(len(x)):
        heads = []
        for head in range(inner[0].shape[1]):
            projected = [
                x[row] @ kernel[:, head] + bias[head]
                for kernel, bias in zip(inner[0::2], inner[1::2], strict=True)
            ]
            heads.append(
                _head(layer.positions, head, *projected, None if mask is None else mask[row])
            )
        concat = np.concatenate([output for output, _ in heads], axis=-1)
        outputs.append(concat @ output_kernel.reshape(concat.shape[-1], -1) + output_bias)
        weights.append([own for _, own in heads])
    return np.array(outputs), np.array(weights)


def _head(positions, head, query, key, value, mask):
    scores, of_values = SCHEMES[type(positions).__name__](positions, head, query, key)
    mask = np.ones(scores.shape, bool) if mask is None else mask
    weights = np.zeros(scores.shape)
    has_key = mask.any(axis=-1)
    weights[has_key] = softmax(np.where(mask, scores, -np.inf)[has_key])
    return weights @ value + np.einsum("ts,tsk->tk", weights, of_values), weights


def pairs(query, key):
    """All places (i, j) of a query and a key."""
    return [(i, j) for i in range(len(query)) for j in range(len(key))]


def weights_of(layer):
    return [np.asarray(weight, "float64") for weight in layer.get_weights()]


def relative(positions, head, query, key):
    """Shaw et al., equations 3 and 4."""
    keys, values = weights_of(positions)
    k = positions.max_distance
    scores = np.zeros((len(query), len(key)))
    of_values = np.zeros((*scores.shape, values.shape[1]))
    for i, j in pairs(query, key):
        row = max(-k, min(k, j - i)) + k
        scores[i, j] = query[i] @ (key[j] + keys[row]) / math.sqrt(query.shape[1])
        of_values[i, j] = values[row]
    return scores, of_values


def bucketed(positions, head, query, key):
    """T5's biases; products keep 1/√K."""
    (biases,) = weights_of(positions)
    scores = query @ key.T / math.sqrt(query.shape[1])
    for i, j in pairs(query, key):
        how = positions.num_buckets, positions.max_distance, positions.bidirectional
        scores[i, j] += biases[bucket(j - i, *how), head]
    return scores, np.zeros((*scores.shape, 1))


def bucket(distance, num_buckets, max_distance, bidirectional):
    """The number of the bucket of one distance, key minus query."""
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return first + min(exact + int(share * (num_buckets - exact)), num_buckets - 1)


def rotary(positions, head, query, key):
    """RoFormer, equations 14 to 16: pairs of entries turned by p·10000^(-2i/K)."""

    def turned(vector, position):
        result = np.zeros_like(vector)
        for i in range(len(vector) // 2):
            angle = position * 10000 ** (-2 * i / len(vector))
            sine, cosine = math.sin(angle), math.cos(angle)
            x, y = vector[2 * i : 2 * i + 2]
            result[2 * i : 2 * i + 2] = x * cosine - y * sine, y * cosine + x * sine
        return result

    queries, keys = (np.array([turned(x, p) for p, x in enumerate(side)]) for side in (query, key))
    scores = queries @ keys.T / math.sqrt(query.shape[1])
    return scores, np.zeros((*scores.shape, 1))


def disentangled(positions, head, query, key):
    """DeBERTa, equations 2 to 4, with the third term's distance as its authors' code has it."""
    (table,), (of_keys,) = weights_of(positions.table), weights_of(positions.key_dense)
    kernel, bias = weights_of(positions.query_dense)
    k = positions.max_distance
    scores = np.zeros((len(query), len(key)))
    for i, j in pairs(query, key):
        row = table[max(0, min(2 * k - 1, i - j + k))]
        scores[i, j] = query[i] @ key[j]
        scores[i, j] += query[i] @ (row @ of_keys[:, head])
        scores[i, j] += key[j] @ (row @ kernel[:, head] + bias[head])
    return scores / math.sqrt(3 * query.shape[1]), np.zeros((*scores.shape, 1))


SCHEMES = {
    "RelativePositions": relative,
    "BucketedPositions": bucketed,
    "RotaryPositions": rotary,
    "DisentangledPositions": disentangled,
}
