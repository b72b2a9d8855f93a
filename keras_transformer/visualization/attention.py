"""Attention maps: of one head, of a layer, of all layers."""

from collections.abc import Sequence

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_transformer.typing import Tensor
from keras_transformer.visualization.figures import LARGEST_LABELS, WEIGHTS, new_figure
from keras_transformer.visualization.labels import readable
from keras_transformer.visualization.map_grid import MapGrid
from keras_transformer.wording import counted


def plot_attention(
    attention_scores: Tensor | Sequence[Tensor],
    source_tokens: Sequence[str | bytes],
    target_tokens: Sequence[str | bytes],
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draws which source position each target position attends to, one map per head.

    Characters that matplotlib's font lacks are drawn in others that are installed. Where there are
    more tokens than labels can stand side by side, every second has one, or every third.

    Args:
        attention_scores: Array of shape `(T, S)` for a single map, `(H, T, S)` for the heads of a
            layer, or `(N, H, T, S)` for those of N layers, a layer to a row: one sentence's weights
            from `model(…, return_attention_scores=True)`.
        source_tokens: S strings, the columns, which are the keys.
        target_tokens: T strings, the rows, which are the queries.
        titles: A title per map; by default "head 0" and so on, as `align` counts them, and none
            for a single map.

    Returns:
        `matplotlib.figure.Figure`, which no window shows: a notebook does where it is the value of
        a cell. The last of its axes is the colour bar.

    Raises:
        ValueError: If the tokens or the titles do not match the scores' shape.

    Example:

    >>> _, scores = model((source, target), return_attention_scores=True)
    >>> pieces = [tokenizer.pieces(ids[0]).numpy() for ids in (source, target)]
    >>> figure = plot_attention(scores["cross"][-1][0], *pieces)
    >>> figure = plot_attention([layer[0] for layer in scores["cross"]], *pieces)
    """
    num_queries, num_keys = len(target_tokens), len(source_tokens)
    scores = _as_array(attention_scores, num_queries, num_keys)
    columns = scores.shape[1] if scores.ndim == 4 else None
    titles = _titles(scores.shape[:-2]) if titles is None else titles
    scores = scores.reshape(-1, num_queries, num_keys)
    if isinstance(titles, str) or len(titles) != len(scores):
        raise ValueError(
            f"Expected a list of {counted(len(scores), 'title')}, one per map, received {titles!r}."
        )
    texts, font = readable([*target_tokens, *source_tokens, *titles])
    figure = new_figure(layout="none")
    grid = MapGrid(figure, font, texts, num_queries, num_keys, columns)
    for i, weights in enumerate(scores):
        image = grid.add_map(i).imshow(weights, vmin=0, vmax=1, cmap=WEIGHTS, aspect="auto")
    bar = figure.colorbar(image, cax=grid.add_bar())
    bar.set_label("attention weight", fontsize=LARGEST_LABELS)
    bar.ax.tick_params(labelsize=LARGEST_LABELS)
    return figure


def _as_array(scores, num_queries, num_keys):
    """Scores `(T, S)`, `(H, T, S)` or `(N, H, T, S)`.

    Raises:
        ValueError: If they are of another shape.
    """
    if isinstance(scores, (list, tuple)):
        scores = np.stack([keras.ops.convert_to_numpy(x) for x in scores])
    scores = keras.ops.convert_to_numpy(scores)
    fits = scores.ndim in (2, 3, 4) and scores.shape[-2:] == (num_queries, num_keys)
    if not fits or not scores.size:
        raise ValueError(
            f"Attention scores of shape {scores.shape} do not fit {num_queries} target and "
            f"{counted(num_keys, 'source token')}: pass one sentence's (heads, target, source) or "
            "(layers, "
            "heads, target, source)."
        )
    return scores


def _titles(shape):
    """Titles of maps of `(layers, heads)`, `(heads,)` or one."""
    if len(shape) == 2:
        return [f"layer {i}, head {j}" for i in range(shape[0]) for j in range(shape[1])]
    return [f"head {i}" for i in range(shape[0])] if shape and shape[0] > 1 else [""]
