"""An alignment: which token of the source each token of a translation comes from."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_transformer.typing import Tensor
from keras_transformer.visualization.figures import COLOURS, LARGEST_LABELS, new_figure
from keras_transformer.visualization.labels import readable
from keras_transformer.wording import counted

ROW = 0.26  # inches from one token to the next
LINES = 1.6  # inches between the columns
LEAST = 0.1  # weight of a line that is drawn


def plot_alignment(
    source_tokens: Sequence[str | bytes],
    target_tokens: Sequence[str | bytes],
    alignment: Sequence[int] | Tensor,
) -> Figure:
    """Draws both sides as columns, and lines from each target token to where it comes from.

    Args:
        source_tokens: S strings, the column on the left.
        target_tokens: T strings, the column on the right.
        alignment: T positions in the source, from 0, as `Translator.align` finds them, or none;
            or weights `(T, S)`, of which a line is as strong as it is heavy.

    Returns:
        `matplotlib.figure.Figure`, which no window shows: a notebook does where it is the value of
        a cell.

    Raises:
        ValueError: If the alignment does not fit the tokens.

    Example:

    >>> (aligned,) = translator.align(["samedi 9 mai 1998"], ["1998-05-09"])
    >>> figure = plot_alignment(*aligned)
    """
    weights = _weights(alignment, len(source_tokens), len(target_tokens))
    texts, font = readable([*source_tokens, *target_tokens])
    figure = new_figure(layout="none")
    sides = texts[: len(source_tokens)], texts[len(source_tokens) :]
    widths = [_width(figure, side, font) for side in sides]
    rows = max(map(len, sides), default=0)
    width, height = sum(widths) + LINES + 0.4, ROW * (rows + 2)
    figure.set_size_inches(width, height)
    axis = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(rows + 0.5, -1.5))
    axis.set_axis_off()
    left, right = 0.1 + widths[0], 0.3 + widths[0] + LINES
    for x, title, side, place in (
        (left, "source", sides[0], "right"),
        (right, "target", sides[1], "left"),
    ):
        style: dict[str, Any] = {"fontsize": LARGEST_LABELS, "ha": place, "va": "center"}
        axis.text(x, -1, title, color="dimgrey", style="italic", **style)
        for row, text in enumerate(side):
            axis.text(x, row, text, **style, **font)
    for row, column in np.argwhere(weights >= LEAST):
        weight = float(weights[row, column])
        line = [left + 0.08, right - 0.08], [column, row]
        axis.plot(*line, color=COLOURS[0], alpha=weight, linewidth=0.5 + 2 * weight)
    return figure


def _weights(alignment, sources, targets):
    """Weights `(T, S)`.

    Raises:
        ValueError: If these are none.
    """
    given = np.asarray(keras.ops.convert_to_numpy(alignment))
    if given.ndim == 2 and given.shape == (targets, sources):
        if np.all((given >= 0) & (given <= 1.001)):
            return np.minimum(given, 1)
        raise ValueError("Weights of an alignment are from 0 to 1: pass those of a softmax.")
    if not given.size:
        return np.zeros((targets, sources))
    if given.shape != (targets,) or not set(given.tolist()) <= set(range(sources)):
        raise ValueError(
            f"An alignment of shape {given.shape} does not fit {sources} source and {targets} "
            f"target tokens: pass {counted(targets, 'position')} below {sources}, or weights "
            f"({targets}, {sources})."
        )
    return np.eye(sources)[given.astype(int)]


def _width(figure, texts, font):
    """Inches that the longest of some texts takes."""
    text = figure.text(0, 0, "", fontsize=LARGEST_LABELS, **font)
    widths = [0.5]  # of the title
    for string in texts:
        text.set_text(string)
        widths.append(text.get_window_extent().width / figure.dpi)
    text.remove()
    return max(widths)
