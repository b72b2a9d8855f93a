"""The formulas of "Attention Is All You Need" in float64 NumPy, slow and literal on purpose.

A function that takes a layer reads its weights only. A mask is True where a query may attend.
"""

import math

import numpy as np

EPSILON = 1e-6  # of layer normalisation


def to_64(x):
    return np.asarray(x, "float64")


def weights_of(layer):
    return list(map(to_64, layer.get_weights()))


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def attention(query, key, value, mask=None, scores=None, of_values=0.0):
    """softmax(QKᵀ/√d_k + mask)V for one head, and the weights; no weight without a key.

    Relative positions change the scores (T, S), and have values (T, S, d_v).
    """
    query, key, value = (np.asarray(x, "float64") for x in (query, key, value))
    mask = np.ones((len(query), len(key)), bool) if mask is None else np.asarray(mask, bool)
    weights = np.zeros(mask.shape)
    has_key = mask.any(axis=-1)
    scores = query @ key.T / math.sqrt(query.shape[-1]) if scores is None else scores
    weights[has_key] = softmax((scores + np.where(mask, 0.0, -np.inf))[has_key])
    return weights @ value + (weights[..., None] * of_values).sum(axis=1), weights


def dense(layer):
    """The kernel and the bias of a projection."""
    kernel, *bias = weights_of(layer)
    return kernel, bias[0] if bias else np.zeros(kernel.shape[1:])


def multi_head(layer, query, value, mask=None):
    """Concat(head₁ … head_H)·W^O, and the weights (B, H, T, S); mask (B, T, S) or (B, H, T, S)."""
    inner = [dense(x) for x in (layer.query_dense, layer.key_dense, layer.value_dense)]
    output_kernel, output_bias = dense(layer.output_dense)
    scheme = SCHEMES.get(type(layer.positions).__name__)
    outputs, weights = [], []
    for row in range(len(query)):
        heads = []
        for head in range(layer.num_heads):
            sides = zip((query, value, value), inner, strict=True)
            projected = [to_64(x[row]) @ w[:, head] + b[head] for x, (w, b) in sides]
            own = mask if mask is None else mask[row, head] if mask.ndim == 4 else mask[row]
            relative = scheme(layer.positions, head, *projected[:2]) if scheme else ()
            heads.append(attention(*projected, own, *relative))
        concat = np.concatenate([output for output, _ in heads], axis=-1)
        outputs.append(concat @ output_kernel.reshape(concat.shape[-1], -1) + output_bias.ravel())
        weights.append([own for _, own in heads])
    return np.array(outputs), np.array(weights)


def layer_norm(layer, x):
    gamma, beta = weights_of(layer)
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + EPSILON) + beta


def feed_forward(layer, x):
    """max(0, xW₁ + b₁)W₂ + b₂."""
    w1, b1, w2, b2 = weights_of(layer)
    return np.maximum(0, x @ w1 + b1) @ w2 + b2


def block(layer, x, *attentions):
    """LayerNorm(x + Sublayer(x)), or x + Sublayer(LayerNorm(x)) for pre-norm, of all sublayers.

    An attention is (layer, its norm, what it attends to, or None for x itself, mask).
    """

    def sublayer(x, norm, function):
        if layer.norm == "pre":
            return x + function(layer_norm(norm, x))
        return layer_norm(norm, x + function(x))

    def attend(attention, memory, mask):
        return lambda y: multi_head(attention, y, y if memory is None else memory, mask)[0]

    for attention, norm, memory, mask in attentions:
        x = sublayer(x, norm, attend(attention, memory, mask))
    return sublayer(x, layer.feed_forward_norm, lambda y: feed_forward(layer.feed_forward, y))


def key_masks(mask, queries):
    """Repeats a mask of the keys (B, S) for every query: (B, T, S)."""
    return np.repeat(np.asarray(mask, bool)[:, None], queries, axis=1)


def finish(stack, x):
    return layer_norm(stack.final_norm, x) if stack.layers[0].norm == "pre" else x


def encoder(stack, x, mask):
    x, mask = to_64(x), key_masks(mask, x.shape[1])
    for layer in stack.layers:
        x = block(layer, x, (layer.self_attention, layer.self_attention_norm, None, mask))
    return finish(stack, x)


def decoder(stack, x, memory, x_mask, memory_mask):
    x, memory, length = to_64(x), to_64(memory), x.shape[1]
    causal = np.array([[key <= query for key in range(length)] for query in range(length)])
    own, of_memory = key_masks(x_mask, length) & causal, key_masks(memory_mask, length)
    for layer in stack.layers:
        of_self = layer.self_attention, layer.self_attention_norm, None, own
        of_both = layer.cross_attention, layer.cross_attention_norm, memory, of_memory
        x = block(layer, x, of_self, of_both)
    return finish(stack, x)


def positions(length, d_model, start=0):
    """PE(p, 2i) = sin(p / 10000^(2i/D)) and PE(p, 2i+1) = cos(p / 10000^(2i/D))."""
    p = np.arange(start, start + length)[:, None]
    angles = p / 10000 ** (np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, d_model)


def embed(table, ids, position_table=None):
    """√D · embedding + position."""
    table = np.asarray(table, "float64")
    length, d_model = ids.shape[1], table.shape[1]
    encoding = positions(length, d_model) if position_table is None else position_table[:length]
    return table[ids] * math.sqrt(d_model) + np.asarray(encoding, "float64")


def transformer(model, source, target):
    """Logits (B, T, V)."""

    def embedded(embedding, ids):
        table, *learned = weights_of(embedding)
        if model.positions not in ("sinusoidal", "learned"):
            learned = [np.zeros((ids.shape[1], table.shape[1]))]
        return embed(table, ids, *learned)

    memory = encoder(model.encoder, embedded(model.source_embedding, source), source != 0)
    x = embedded(model.target_embedding, target)
    x = decoder(model.decoder, x, memory, np.ones(target.shape), source != 0)
    if model.share_embeddings == "none":
        kernel, bias = weights_of(model.output_projection)
        return x @ kernel + bias
    return x @ weights_of(model.target_embedding)[0].T


def rdrop_loss(states, matrix, labels, weights, smoothing, alpha):
    """The loss of two passes through logits, summed: arXiv:2106.14448, equation 4, halved."""
    logits = states @ matrix.T
    log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    label = log_p[:, np.arange(len(labels)), labels]
    entropies = -(1 - smoothing) * label - smoothing * log_p.mean(axis=-1)
    p, log_ratio = np.exp(log_p), log_p[0] - log_p[1]
    divergences = (p[0] * log_ratio).sum(axis=-1) - (p[1] * log_ratio).sum(axis=-1)
    return (weights * (entropies.mean(axis=0) + alpha / 4 * divergences)).sum()


# Relative positions: loops over the papers' equations, one pair at a time. Each scheme gives the
# scores of one head (T, S), and what is added to the values. K: width of a head.


def pairs(query, key):
    """All places (i, j) of a query and a key."""
    return [(i, j) for i in range(len(query)) for j in range(len(key))]


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
    """T5's biases, of KerasHub's buckets; products keep 1/√K."""
    from keras_hub.src.models.t5.t5_multi_head_attention import T5MultiHeadAttention

    (biases,) = weights_of(positions)
    distances = np.arange(len(key)) - np.arange(len(query))[:, None]
    how = positions.bidirectional, positions.num_buckets, positions.max_distance
    buckets = np.array(T5MultiHeadAttention._relative_position_bucket(distances, *how))
    return query @ key.T / math.sqrt(query.shape[1]) + biases[buckets, head], 0.0


def rotary(positions, head, query, key):
    """RoFormer, equations 12 to 16: pairs of entries, as complex numbers, turned by p·θ_i."""

    def turned(x):
        angles = np.arange(len(x))[:, None] / 10000 ** (np.arange(0, x.shape[1], 2) / x.shape[1])
        return (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angles)

    return (turned(query) @ turned(key).conj().T).real / math.sqrt(query.shape[1]), 0.0


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
    return scores / math.sqrt(3 * query.shape[1]), 0.0


SCHEMES = {"RelativePositions": relative, "BucketedPositions": bucketed}
SCHEMES |= {"RotaryPositions": rotary, "DisentangledPositions": disentangled}
