"""The formulas of "Attention Is All You Need" in float64 NumPy, transcribed as they stand.

Slow and literal on purpose: one sentence and one head at a time. A function that takes a layer
reads its weights only. A mask is True where a query may attend.
"""

import math

import numpy as np

EPSILON = 1e-6  # of layer normalisation


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def attention(query, key, value, mask=None):
    """softmax(QKᵀ/√d_k + mask)V for one head, and the weights; no weight without a key."""
    query, key, value = (np.asarray(x, "float64") for x in (query, key, value))
    mask = np.ones((len(query), len(key)), bool) if mask is None else np.asarray(mask, bool)
    weights = np.zeros(mask.shape)
    has_key = mask.any(axis=-1)
    scores = query @ key.T / math.sqrt(query.shape[-1]) + np.where(mask, 0.0, -np.inf)
    weights[has_key] = softmax(scores[has_key])
    return weights @ value, weights


def multi_head(layer, query, value, key=None, mask=None):
    """Concat(head₁ … head_H)·W^O, and the weights (B, H, T, S); mask (B, T, S) or (B, H, T, S)."""
    key = value if key is None else key
    kernels = [np.asarray(w, "float64") for w in layer.get_weights()]
    if len(kernels) == 4:  # use_bias=False
        kernels = [x for kernel in kernels for x in (kernel, 0.0)]
    *inner, output_kernel, output_bias = kernels
    outputs, weights = [], []
    for row in range(len(query)):
        heads = []
        for head in range(inner[0].shape[1]):
            projected = [
                np.asarray(x[row], "float64") @ kernel[:, head]
                + (bias[head] if np.ndim(bias) else bias)
                for x, kernel, bias in zip(
                    (query, key, value), inner[0::2], inner[1::2], strict=True
                )
            ]
            own = mask if mask is None else mask[row, head] if mask.ndim == 4 else mask[row]
            heads.append(attention(*projected, own))
        concat = np.concatenate([output for output, _ in heads], axis=-1)
        outputs.append(concat @ output_kernel.reshape(concat.shape[-1], -1) + output_bias)
        weights.append([own for _, own in heads])
    return np.array(outputs), np.array(weights)


def layer_norm(layer, x):
    gamma, beta = (np.asarray(w, "float64") for w in layer.get_weights())
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + EPSILON) + beta


def feed_forward(layer, x):
    """max(0, xW₁ + b₁)W₂ + b₂."""
    w1, b1, w2, b2 = (np.asarray(w, "float64") for w in layer.get_weights())
    return np.maximum(0, x @ w1 + b1) @ w2 + b2


def sublayer(layer, norm, x, function):
    """LayerNorm(x + Sublayer(x)), or x + Sublayer(LayerNorm(x)) for pre-norm."""
    if layer.norm == "pre":
        return x + function(layer_norm(norm, x))
    return layer_norm(norm, x + function(x))


def key_masks(mask, queries):
    """Repeats a mask of the keys (B, S) for every query: (B, T, S)."""
    return np.repeat(np.asarray(mask, bool)[:, None], queries, axis=1)


def encoder_layer(layer, x, mask):
    x = np.asarray(x, "float64")
    mask = key_masks(mask, x.shape[1])
    x = sublayer(
        layer,
        layer.self_attention_norm,
        x,
        lambda y: multi_head(layer.self_attention, y, y, mask=mask)[0],
    )
    return sublayer(
        layer, layer.feed_forward_norm, x, lambda y: feed_forward(layer.feed_forward, y)
    )


def decoder_layer(layer, x, memory, x_mask, memory_mask):
    x, memory = np.asarray(x, "float64"), np.asarray(memory, "float64")
    length = x.shape[1]
    causal = np.array([[key <= query for key in range(length)] for query in range(length)])
    own = key_masks(x_mask, length) & causal
    of_memory = key_masks(memory_mask, length)
    x = sublayer(
        layer,
        layer.self_attention_norm,
        x,
        lambda y: multi_head(layer.self_attention, y, y, mask=own)[0],
    )
    x = sublayer(
        layer,
        layer.cross_attention_norm,
        x,
        lambda y: multi_head(layer.cross_attention, y, memory, mask=of_memory)[0],
    )
    return sublayer(
        layer, layer.feed_forward_norm, x, lambda y: feed_forward(layer.feed_forward, y)
    )


def encoder(stack, x, mask):
    for layer in stack.layers:
        x = encoder_layer(layer, x, mask)
    return layer_norm(stack.final_norm, x) if stack.layers[0].norm == "pre" else x


def decoder(stack, x, memory, x_mask, memory_mask):
    for layer in stack.layers:
        x = decoder_layer(layer, x, memory, x_mask, memory_mask)
    return layer_norm(stack.final_norm, x) if stack.layers[0].norm == "pre" else x


def positions(length, d_model, start=0):
    """PE(p, 2i) = sin(p / 10000^(2i/D)) and PE(p, 2i+1) = cos(p / 10000^(2i/D))."""
    result = np.zeros((length, d_model))
    for i in range(d_model // 2):
        angles = np.arange(start, start + length) / 10000 ** (2 * i / d_model)
        result[:, 2 * i] = np.sin(angles)
        result[:, 2 * i + 1] = np.cos(angles)
    return result


def embed(table, ids, position_table=None):
    """√D · embedding + position."""
    table = np.asarray(table, "float64")
    length, d_model = ids.shape[1], table.shape[1]
    encoding = positions(length, d_model) if position_table is None else position_table[:length]
    return table[ids] * math.sqrt(d_model) + np.asarray(encoding, "float64")


def transformer(model, source, target):
    """Logits (B, T, V)."""
    tables = {
        side: [np.asarray(w) for w in embedding.get_weights()]
        for side, embedding in (
            ("source", model.source_embedding),
            ("target", model.target_embedding),
        )
    }

    def embedded(side, ids):
        table, *learned = tables[side]
        return embed(table, ids, *learned)

    memory = encoder(model.encoder, embedded("source", source), source != 0)
    x = decoder(
        model.decoder, embedded("target", target), memory, np.ones(target.shape), source != 0
    )
    if model.share_embeddings == "none":
        kernel, bias = (np.asarray(w, "float64") for w in model.output_projection.get_weights())
        return x @ kernel + bias
    return x @ np.asarray(tables["target"][0], "float64").T
