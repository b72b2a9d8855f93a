"""Where the maps of a picture stand, all of one size, and what is written around them.

Lengths are in inches.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_transformer.visualization.figures import LARGEST_LABELS, SMALLEST_LABELS

CELL = 0.22  # a token's row or column where there is room, and so room for a label of 10 points
SMALLEST_MAP = 1.3
MAPS = 14.0  # all maps together are at most as wide
GAP = 0.2  # between two maps
LINE = 0.25  # a title or the name of an axis, and the space beside it
TICKS = 0.12  # the ticks, and the space between them and their labels
BAR_GAP, BAR, BAR_LABELS = 0.15, 0.15, 0.7  # the colour bar, beside the maps


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


class MapGrid:
    """Where the maps are, all of one size, and what is written around them.

    It is measured before anything is drawn, so that nothing overlaps: a layout of matplotlib's
    would take the room of long labels from the maps, whose rows were then too narrow for labels.

    Args:
        figure: An empty one.
        font: Properties of a `Text`, as `readable` gives them.
        texts: The labels of the queries, of the keys, and the titles of the maps, one to a map.
        num_queries, num_keys: How many of them are labels of queries, and of keys.
        columns: Maps that stand side by side; by default as many as look well.
    """

    def __init__(
        self,
        figure: Figure,
        font: dict[str, Any],
        texts: list[str],
        num_queries: int,
        num_keys: int,
        columns: int | None = None,
    ) -> None:
        self.figure, self.font = figure, font
        queries, keys = texts[:num_queries], texts[num_queries : num_queries + num_keys]
        self.titles = texts[num_queries + num_keys :]
        self.columns = columns or min(len(self.titles), 2 if len(self.titles) <= 4 else 4)
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

    def add_map(self, number: int) -> Axes:
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

    def add_bar(self) -> Axes:
        """The axes of the colour bar: beside all maps."""
        box = [self.right + BAR_GAP, self.bottom, BAR, self.top - self.bottom]
        return self.figure.add_axes(np.array(box) / self.size)
