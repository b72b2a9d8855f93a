"""Attention maps and position encodings.

Each function draws a new figure and returns it; nothing is shown or saved. Lengths are in inches.
"""

import dataclasses
import math
from collections.abc import Sequence

import keras
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from keras_transformer.layers.positional_embedding import sinusoidal_encoding
from keras_transformer.typing import Tensor
from keras_transformer.visualization.labels import readable

CELL = 0.22  # a token's row or column where there is room, and so room for a label of 10 points
LARGEST_LABELS, SMALLEST_LABELS = 10, 6  # points
SMALLEST_MAP = 1.3
MAPS = 14.0  # all maps together are at most as wide
GAP = 0.2  # between two maps
LINE = 0.25  # a title or the name of an axis, and the space beside it
TICKS = 0.12  # the ticks, and the space between them and their labels
BAR_GAP, BAR, BAR_LABELS = 0.15, 0.15, 0.7  # the colour bar, beside the maps


def plot_attention(
    attention_scores: Tensor,
    source_tokens: Sequence[str | bytes],
    target_tokens: Sequence[str | bytes],
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draws which source position each target position attends to, one map per head.

    Characters that matplotlib's font lacks are drawn in others that are installed. Where there are
    more tokens than labels can stand side by side, every second has one, or every third.

    Args:
        attention_scores: Array of shape `(H, T, S)`, or `(T, S)` for a single map: one sentence's
            weights from `model(…, return_attention_scores=True)`.
        source_tokens: S strings, the columns, which are the keys.
        target_tokens: T strings, the rows, which are the queries.
        titles: A title per map; by default "head 1" and so on, and none for a single map.

    Returns:
        `matplotlib.figure.Figure`. The last of its axes is the colour bar.

    Raises:
        ValueError: If the tokens or the titles do not match the scores' shape.

    Example:

    >>> _, scores = model((source, target), return_attention_scores=True)
    >>> pieces = [tokenizer.pieces(ids[0]).numpy() for ids in (source, target)]
    >>> figure = plot_attention(scores["cross"][-1][0], *pieces)
    """
    scores = keras.ops.convert_to_numpy(attention_scores)
    scores = scores[np.newaxis] if scores.ndim == 2 else scores
    expected = (len(target_tokens), len(source_tokens))
    if scores.ndim != 3 or scores.shape[1:] != expected or not scores.size:
        raise ValueError(
            f"Attention scores of shape {scores.shape} do not fit {expected[0]} target and "
            f"{expected[1]} source tokens: pass one sentence's (heads, target, source)."
        )
    heads = len(scores)
    if titles is None:
        titles = [f"head {i + 1}" for i in range(heads)] if heads > 1 else [""]
    if isinstance(titles, str) or len(titles) != heads:
        raise ValueError(f"Expected a list of {heads} titles, one per map, received {titles!r}.")
    texts, families = readable([*target_tokens, *source_tokens, *titles])
    figure = plt.figure(layout="none")
    grid = _Grid(figure, {"fontfamily": families, "parse_math": False}, texts, *expected)
    for i, weights in enumerate(scores):
        image = grid.add_map(i).imshow(weights, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    bar = figure.colorbar(image, cax=grid.add_bar())
    bar.set_label("attention weight", fontsize=LARGEST_LABELS)
    bar.ax.tick_params(labelsize=LARGEST_LABELS)
    return figure


@dataclasses.dataclass
class _Labels:
    """The labels beside one side of a map, as many as can stand there.

    Attributes:
        room: The longest one, at right angles to that side.
        turned: Which of them are.
    """

    positions: np.ndarray
    texts: list[str]
    size: float
    turned: np.ndarray
    room: float

    @classmethod
    def along(cls, texts, length, measure, turn):
        """Chooses them for a side of some length; `turn` says whether they may be turned."""
        cell = length / len(texts)
        size = float(np.clip(72 * cell / 1.4, SMALLEST_LABELS, LARGEST_LABELS))
        widths, heights = measure(texts, size).T
        turned = turn & (widths > 1.2 * heights)
        turned |= np.mean(turned) > 0.5  # then the short ones too: they would look odd
        stacked = turned | (not turn)  # like lines of text, so that the side takes their heights
        step = math.ceil(1.05 * np.where(stacked, heights, widths).max() / cell)
        positions = np.arange(0, len(texts), max(1, step))
        room = np.where(stacked, widths, heights)[positions].max()
        return cls(positions, [texts[i] for i in positions], size, turned[positions], room)


class _Grid:
    """Where the maps are, all of one size, and what is written around them.

    It is measured before anything is drawn, so that nothing overlaps: a layout of matplotlib's
    would take the room of long labels from the maps, whose rows were then too narrow for labels.
    """

    def __init__(self, figure, font, texts, num_queries, num_keys):
        self.figure, self.font = figure, font
        queries, keys = texts[:num_queries], texts[num_queries : num_queries + num_keys]
        self.titles = texts[num_queries + num_keys :]
        self.columns = min(len(self.titles), 2 if len(self.titles) <= 4 else 4)
        self.rows = math.ceil(len(self.titles) / self.columns)
        largest = (MAPS + GAP) / self.columns - GAP
        of_titles = self._measure(self.titles, LARGEST_LABELS)[:, 0].max()
        self.width = max(SMALLEST_MAP, of_titles, min(largest, CELL * num_keys))
        self.height = max(SMALLEST_MAP, min(largest, CELL * num_queries))
        self.keys = _Labels.along(keys, self.width, self._measure, turn=True)
        self.queries = _Labels.along(queries, self.height, self._measure, turn=False)
        self.left, self.bottom = (x.room + TICKS + LINE for x in (self.queries, self.keys))
        self.row_gap = GAP + LINE * any(self.titles)
        self.right = self.left + self.columns * (self.width + GAP) - GAP
        self.top = self.bottom + self.rows * (self.height + self.row_gap) - self.row_gap
        size = self.right + BAR_GAP + BAR + BAR_LABELS, self.top + self.row_gap
        figure.set_size_inches(size)
        self.size = np.array([*size, *size])

    def _measure(self, texts, size):
        """Widths and heights of texts, `(N, 2)`."""
        text = self.figure.text(0, 0, "", fontsize=size, **self.font)
        extents = {}
        for string in set(texts):
            text.set_text(string)
            extents[string] = text.get_window_extent().size / self.figure.dpi
        text.remove()
        return np.array([extents[string] for string in texts])

    def add_map(self, number):
        """The axes of a map, labelled: its queries in the first column, its keys at the bottom."""
        row, column = divmod(number, self.columns)
        x = self.left + column * (self.width + GAP)
        y = self.top - self.height - row * (self.height + self.row_gap)
        axis = self.figure.add_axes(np.array([x, y, self.width, self.height]) / self.size)
        axis.set_title(self.titles[number], fontsize=LARGEST_LABELS, **self.font)
        for name, labels in (("x", self.keys), ("y", self.queries)):
            options = self.font | {"fontsize": labels.size}
            axis.set(**{f"{name}ticks": labels.positions})
            ticks = getattr(axis, f"set_{name}ticklabels")(labels.texts, **options)
            for tick, turned in zip(ticks, labels.turned, strict=True):
                tick.set_rotation(90 if turned else 0)
        lowest = number + self.columns >= len(self.titles)
        axis.tick_params(labelbottom=lowest, labelleft=column == 0)
        axis.set_xlabel("key" if lowest else "", fontsize=LARGEST_LABELS)
        axis.set_ylabel("query" if column == 0 else "", fontsize=LARGEST_LABELS)
        return axis

    def add_bar(self):
        """The axes of the colour bar: beside all maps."""
        box = [self.right + BAR_GAP, self.bottom, BAR, self.top - self.bottom]
        return self.figure.add_axes(np.array(box) / self.size)


def plot_position_encoding(length: int = 100, d_model: int = 128) -> Figure:
    """Draws the sinusoidal encoding: positions downwards, its entries to the right.

    Args:
        length: Number of positions.
        d_model: D, number of entries.

    Returns:
        `matplotlib.figure.Figure`.

    Example:

    >>> plot_position_encoding(length=50, d_model=64).savefig("positions.png")
    """
    encoding = keras.ops.convert_to_numpy(sinusoidal_encoding(length, d_model))
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    image = axis.imshow(encoding, vmin=-1, vmax=1, cmap="RdBu", aspect="auto")
    axis.set(xlabel="entry", ylabel="position", title="sinusoidal position encoding")
    figure.colorbar(image)
    return figure
