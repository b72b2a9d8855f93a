"""The tokens of a search step by step: how probable each was, and which others were."""

import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from keras_transformer.translation.results import TokenStep
from keras_transformer.visualization.figures import (
    COLOURS,
    MAX_FONT_SIZE,
    WEIGHTS,
    measure,
    new_figure,
    readable,
)

CELL = 0.28  # inches a row is high
NUMBER = 0.6  # inches of a probability and the space around it
MARGIN, GAP = 0.5, 0.2  # inches: step numbers, between searches
RANKS, TITLE = 0.5, 0.25  # inches above them: numbers of the ranks, names of the searches


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
    cells = [cell for rows in panels.values() for row in rows for cell in row]
    texts, font = readable([*panels, *(token for token, _, _ in cells)])
    figure = new_figure(layout="none")
    drawn = dict(zip((token for token, _, _ in cells), texts[len(panels) :], strict=True))
    width = NUMBER + measure(figure, drawn.values(), MAX_FONT_SIZE - 1, font)[:, 0].max()
    columns = [max(map(len, rows)) for rows in panels.values()]
    rows = max(map(len, panels.values()))
    total = sum(MARGIN + GAP + count * width for count in columns)
    height = RANKS + TITLE * any(panels) + CELL * rows + 0.1
    figure.set_size_inches(total, height)
    x = MARGIN
    for title, count, (name, panel) in zip(texts, columns, panels.items(), strict=False):
        best = len(searches[name][0].best)
        box = (x / total, 0.1 / height, count * width / total, CELL * rows / height)
        axis = figure.add_axes(box, xlim=(0, count), ylim=(rows, 0))
        _draw(axis, panel, best, drawn, width, font)
        axis.set_title(title, fontsize=MAX_FONT_SIZE, loc="left", pad=8, **font)
        x += MARGIN + GAP + count * width
    return figure


def _cells(step):
    """Triples (token, probability, taken?), the most probable first."""
    cells = [(token, math.exp(log_prob), token == step.token) for token, log_prob in step.best]
    if not any(taken for _, _, taken in cells):
        cells.append((step.token, math.exp(step.log_prob), True))
    return cells


def _draw(axis, panel, best, drawn, width, font):
    """The cells of one search: a token on the left of its cell, its probability on the right."""
    colours = matplotlib.colormaps[WEIGHTS]
    for row, cells in enumerate(panel):
        for column, (token, probability, taken) in enumerate(cells):
            axis.add_patch(Rectangle((column, row), 1, 1, color=colours(probability), lw=0))
            style = dict(
                color=_legible(colours(probability)),
                fontsize=MAX_FONT_SIZE - 1,
                va="center",
            )
            axis.text(column + 0.07 / width, row + 0.5, drawn[token], **style, **font)
            axis.text(
                column + 1 - 0.07 / width, row + 0.5, _percent(probability), ha="right", **style
            )
            if taken:
                frame = dict(fill=False, edgecolor=COLOURS[1], linewidth=2, zorder=3)
                axis.add_patch(Rectangle((column + 0.01, row + 0.04), 0.98, 0.92, **frame))
    columns = max(len(cells) for cells in panel)
    ranks = [str(rank) for rank in range(1, columns + 1)]
    if columns > best:
        ranks[-1] = "lower"
    axis.set_xticks([i + 0.5 for i in range(columns)], ranks)
    axis.xaxis.tick_top()
    axis.xaxis.set_label_position("top")
    axis.set_yticks([i + 0.5 for i in range(len(panel))], [str(i) for i in range(len(panel))])
    axis.set_xlabel("rank", fontsize=MAX_FONT_SIZE - 2)
    axis.set_ylabel("step", fontsize=MAX_FONT_SIZE - 2)
    axis.tick_params(length=0, labelsize=MAX_FONT_SIZE - 2)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _legible(colour):
    """Black or white, whichever stands out more from a colour: WCAG 2, relative luminance."""
    rgb = np.asarray(colour[:3])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return "black" if linear @ [0.2126, 0.7152, 0.0722] > 0.179 else "white"


def _percent(probability):
    """As 0.62, and what rounds to nothing as <.01."""
    return f"{probability:.2f}" if probability >= 0.005 else "<.01"
