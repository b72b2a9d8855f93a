"""The tokens of a search step by step: how probable each was, and which others were."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from keras_transformer.tools.figures import (
    COLOURS,
    MAX_FONT_SIZE,
    WEIGHTS,
    new_figure,
    text_style,
    text_width,
    to_labels,
)
from keras_transformer.translation.results import TokenStep

FONT_SIZE = MAX_FONT_SIZE - 1  # points
# In inches.
ROW = 0.28
PROBABILITY = 0.6  # a probability and the space around it
MARGIN, HEADER = 0.7, 0.8  # numbers of the steps; title and numbers of the ranks


def plot_token_probabilities(
    steps: Sequence[TokenStep] | Mapping[str, Sequence[TokenStep]],
) -> Figure:
    """Draws the most probable tokens of each step, a row to a step, framed the one that was taken.

    One that is not among the most probable stands to the right of them.

    Args:
        steps: What `token_probabilities` finds; or a dict of names and several such, which are
            drawn side by side.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: If there are no steps.

    Example:

    >>> greedy, beam = translator(text), translator(text, beam_size=4)
    >>> found = {"greedy": greedy, "beam": beam}
    >>> steps = {name: token_probabilities(translator, text, x) for name, x in found.items()}
    >>> figure = plot_token_probabilities(steps)
    """
    searches = dict(steps) if isinstance(steps, Mapping) else {"": steps}
    if not searches or not all(searches.values()):
        raise ValueError("Received no steps: pass the result of token_probabilities.")
    panels = {name: [_cells(step) for step in some] for name, some in searches.items()}
    tokens = {token for rows in panels.values() for row in rows for token, _, _ in row}
    labels = dict(zip(tokens, to_labels(tokens), strict=True))
    cell = PROBABILITY + text_width(labels.values(), FONT_SIZE)
    columns = [max(map(len, rows)) for rows in panels.values()]
    rows = max(map(len, panels.values()))
    figure = new_figure(cell * sum(columns) + MARGIN * len(columns), ROW * rows + HEADER)
    axes = figure.subplots(1, len(panels), width_ratios=columns, squeeze=False).flat
    for axis, count, (name, panel) in zip(axes, columns, panels.items(), strict=True):
        axis.set(xlim=(0, count), ylim=(rows, 0))
        axis.set_title(*to_labels([name]), loc="left", fontsize=MAX_FONT_SIZE, parse_math=False)
        for row, cells in enumerate(panel):
            for column, (token, probability, taken) in enumerate(cells):
                _draw_cell(axis, row, column, labels[token], probability, cell)
                if taken:
                    frame: dict[str, Any] = {"fill": False, "edgecolor": COLOURS[1]}
                    frame |= {"linewidth": 2, "zorder": 3}
                    axis.add_patch(Rectangle((column + 0.01, row + 0.04), 0.98, 0.92, **frame))
        _number(axis, count, len(searches[name][0].best), len(panel))
    return figure


def _cells(step):
    """Triples (token, probability, taken?), the most probable first."""
    cells = [(token, math.exp(log_prob), token == step.token) for token, log_prob in step.best]
    if not any(taken for _, _, taken in cells):
        cells.append((step.token, math.exp(step.log_prob), True))
    return cells


def _draw_cell(axis, row, column, label, probability, width):
    """Writes a token on the left of its cell, and its probability on the right."""
    colour = matplotlib.colormaps[WEIGHTS](probability)
    axis.add_patch(Rectangle((column, row), 1, 1, color=colour, lw=0))
    style = {"color": _legible(colour), "fontsize": FONT_SIZE, "va": "center"}
    margin = 0.07 / width
    axis.text(column + margin, row + 0.5, label, **style, **text_style())
    number = f"{probability:.2f}" if probability >= 0.005 else "<.01"
    axis.text(column + 1 - margin, row + 0.5, number, ha="right", **style)


def _number(axis, columns, best, rows):
    """Numbers the ranks above the cells and the steps beside them."""
    ranks = [str(rank) for rank in range(1, columns + 1)]
    if columns > best:
        ranks[-1] = "lower"
    axis.set_xticks([i + 0.5 for i in range(columns)], ranks)
    axis.xaxis.tick_top()
    axis.xaxis.set_label_position("top")
    axis.set_yticks([i + 0.5 for i in range(rows)], [str(i) for i in range(rows)])
    axis.set_xlabel("rank", fontsize=FONT_SIZE - 1)
    axis.set_ylabel("step", fontsize=FONT_SIZE - 1)
    axis.tick_params(length=0, labelsize=FONT_SIZE - 1)
    axis.spines[:].set_visible(False)


def _legible(colour):
    """Black or white, whichever stands out more from a colour: WCAG 2, relative luminance."""
    rgb = np.asarray(colour[:3])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return "black" if linear @ [0.2126, 0.7152, 0.0722] > 0.179 else "white"
