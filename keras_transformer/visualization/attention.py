"""Attention maps and position encodings.

Each function draws a new figure and returns it; nothing is shown or saved.
"""

import math
from collections.abc import Sequence

import keras
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from keras_transformer.layers.positional_embedding import sinusoidal_encoding
from keras_transformer.typing import Tensor


def plot_attention(
    attention_scores: Tensor,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draws which source position each target position attends to, one map per head.

    Args:
        attention_scores: Array of shape `(H, T, S)`, or `(T, S)` for a single map: one sentence's
            weights from `model(…, return_attention_scores=True)`.
        source_tokens: S strings, the columns.
        target_tokens: T strings, the rows.
        titles: A title per map; by default "head 1" and so on.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the tokens do not match the scores' shape.
    """
    scores = keras.ops.convert_to_numpy(attention_scores)
    scores = scores[np.newaxis] if scores.ndim == 2 else scores
    expected = (len(target_tokens), len(source_tokens))
    if scores.ndim != 3 or scores.shape[1:] != expected:
        raise ValueError(
            f"Attention scores of shape {scores.shape} do not fit {expected[0]} target and "
            f"{expected[1]} source tokens: pass one sentence's (heads, target, source)."
        )
    heads = len(scores)
    columns = min(heads, 2)
    rows = math.ceil(heads / columns)
    width = 1.2 + 0.22 * len(source_tokens)
    height = 1.2 + 0.22 * len(target_tokens)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(columns * width, rows * height),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for i, axis in enumerate(axes.flat):
        if i >= heads:
            axis.axis("off")
            continue
        axis.imshow(scores[i], vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axis.set_title(titles[i] if titles else f"head {i + 1}")
        axis.set_xticks(range(len(source_tokens)), source_tokens)
        axis.set_yticks(range(len(target_tokens)), target_tokens)
    return figure


def plot_position_encoding(length: int = 100, d_model: int = 128) -> Figure:
    """Draws the sinusoidal encoding: positions downwards, its entries to the right.

    Args:
        length: Number of positions.
        d_model: D, number of entries.

    Returns:
        `matplotlib.figure.Figure`.
    """
    encoding = keras.ops.convert_to_numpy(sinusoidal_encoding(length, d_model))
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    image = axis.imshow(encoding, vmin=-1, vmax=1, cmap="RdBu", aspect="auto")
    axis.set(xlabel="entry", ylabel="position", title="sinusoidal position encoding")
    figure.colorbar(image)
    return figure
