"""Attention as pictures: maps of one head, of a layer or of all layers; and alignments.

Lengths are in inches. No window shows a figure; a notebook does where it is the value of a cell.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_transformer.utils import Path, Tensor, counted
from keras_transformer.visualization.figures import (
    COLOURS,
    MAX_FONT_SIZE,
    MIN_FONT_SIZE,
    WEIGHTS,
    check_output,
    measure,
    new_figure,
    readable,
    save_figure,
    to_numpy,
)

if TYPE_CHECKING:
    from keras_transformer.runs.opening import Opened

# Attention maps.
CELL = 0.22  # a token's row or column if there is space: enough for a label of 10 points
MIN_MAP_SIZE = 1.3
MAPS = 14.0  # largest width of all maps together
GAP = 0.2  # between two maps
LINE = 0.25  # a title or the name of an axis, with its margin
TICKS = 0.12  # the ticks, with the margin of their labels
BAR_GAP, BAR, BAR_LABELS = 0.15, 0.15, 0.7  # the colour bar, beside the maps
# Alignments.
ROW = 0.26  # from one token to the next
LINES = 1.6  # between the columns
MIN_WEIGHT = 0.1  # of a line that is drawn


def plot_attention(
    attention_scores: Tensor | Sequence[Tensor],
    source_tokens: Sequence[str | bytes],
    target_tokens: Sequence[str | bytes],
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draws which source position each target position attends to, one map per head.

    Characters that matplotlib's font lacks are drawn in other installed fonts. If not all labels
    fit side by side, every second token has one, or every third.

    Args:
        attention_scores: Array of shape `(T, S)` for a single map, `(H, T, S)` for the heads of a
            layer, or `(N, H, T, S)` for those of N layers, a layer to a row: one sentence's weights
            from `model(…, return_attention_scores=True)`.
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
    grid = _MapGrid(figure, font, texts, num_queries, num_keys, columns)
    for i, weights in enumerate(scores):
        image = grid.add_map(i).imshow(weights, vmin=0, vmax=1, cmap=WEIGHTS, aspect="auto")
    bar = figure.colorbar(image, cax=grid.add_bar())
    bar.set_label("attention weight", fontsize=MAX_FONT_SIZE)
    bar.ax.tick_params(labelsize=MAX_FONT_SIZE)
    return figure


def _as_array(scores, num_queries, num_keys):
    """Scores `(T, S)`, `(H, T, S)` or `(N, H, T, S)`."""
    if isinstance(scores, (list, tuple)):
        scores = np.stack([to_numpy(x) for x in scores])
    scores = to_numpy(scores)
    fits = scores.ndim in (2, 3, 4) and scores.shape[-2:] == (num_queries, num_keys)
    if not fits or not scores.size:
        raise ValueError(
            f"Attention scores of shape {scores.shape} do not fit {num_queries} target and "
            f"{counted(num_keys, 'source token')}: pass one sentence's (heads, target, source) "
            "or (layers, heads, target, source)."
        )
    return scores


def _titles(shape):
    """Titles of maps of `(layers, heads)`, `(heads,)` or one."""
    if len(shape) == 2:
        return [
            f"layer {layer}, head {head}"
            for layer in range(1, shape[0] + 1)
            for head in range(1, shape[1] + 1)
        ]
    return [f"head {head}" for head in range(1, shape[0] + 1)] if shape and shape[0] > 1 else [""]


def save_attention_plot(
    opened: "Opened",
    text: str,
    output: Path,
    target: str | None = None,
    kind: str = "cross",
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
) -> Path:
    """Draws what a model attends to while it translates a text.

    Args:
        opened: A run; or a SavedModel with the signature `attention`, which answers with the mean
            of the heads of one layer, of its own translation.
        text: The source.
        output: Name of the picture, with the ending of its format: `.png`, `.pdf` or `.svg`. It
            appears complete or not at all.
        target: A translation to draw instead of the model's own, greedy one.
        kind: "cross", from the translation to the source; "encoder" or "decoder", from each side
            to itself.
        layers, heads: Numbers of those to draw, from 1; all if empty.

    Returns:
        `output`.

    Example:

    >>> from keras_transformer.runs.opening import Opened
    >>> save_attention_plot(Opened("runs/dates"), "samedi 9 mai 1998", "map.png", layers=[1])
    """
    # Needs TensorFlow and the tokenizers; `plot_attention` does not.
    from keras_transformer.serving.exported_translator import ExportedTranslator
    from keras_transformer.translation.results import KINDS

    check_output(output)
    if not text.strip():
        raise ValueError("Nothing to draw: the text is empty.")
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: choose from {', '.join(KINDS)}.")
    model = opened.model
    if isinstance(model, ExportedTranslator):
        if target is not None or kind != "cross" or layers or heads:
            raise ValueError(
                f"{opened.path} is a SavedModel, which answers with the mean of the heads of one "
                "layer, of its own translation: leave out --target, --kind, --layers and --heads, "
                "or give the run directory it was exported from."
            )
        (maps,) = model.attention([text])
        scores, titles = maps.scores[kind], ["mean of the heads of one layer"]
    else:
        maps, scores, titles = _maps_of_run(model, text, target, kind, layers, heads)
    keys, queries = maps.labels(kind)
    return save_figure(plot_attention(scores, keys, queries, titles), output)


def _maps_of_run(translator, text, target, kind, layers, heads):
    """`AttentionMaps` of a run, the scores to draw and their titles."""
    from keras_transformer.translation.inspection import attention_maps
    from keras_transformer.translation.translator import to_indices

    translator.run_eagerly()
    model = translator.model
    stack = model.encoder if kind == "encoder" else model.decoder
    counts = stack.num_layers, model.num_heads
    layers, heads = layers or range(1, counts[0] + 1), heads or range(1, counts[1] + 1)
    rows, columns = to_indices("layer", layers, counts[0]), to_indices("head", heads, counts[1])
    maps = attention_maps(translator, text, target)
    titles = [f"layer {layer}, head {head}" for layer in layers for head in heads]
    return maps, maps.scores[kind][list(rows)][:, list(columns)], titles


def plot_alignment(
    source_tokens: Sequence[str | bytes],
    target_tokens: Sequence[str | bytes],
    alignment: Sequence[int] | Tensor,
) -> Figure:
    """Draws both sides as columns, and a line from each target token to its source token.

    Args:
        source_tokens: S strings, the column on the left.
        target_tokens: T strings, the column on the right.
        alignment: T positions in the source, from 0, as `Translator.align` returns them, or none;
            or weights `(T, S)`: the heavier, the stronger the line.

    Returns:
        `matplotlib.figure.Figure`.

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
    widths = [  # of the titles at least
        max([0.5, *measure(figure, side, MAX_FONT_SIZE, font)[:, 0]]) for side in sides
    ]
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
        style: dict[str, Any] = {"fontsize": MAX_FONT_SIZE, "ha": place, "va": "center"}
        axis.text(x, -1, title, color="dimgrey", style="italic", **style)
        for row, text in enumerate(side):
            axis.text(x, row, text, **style, **font)
    for row, column in np.argwhere(weights >= MIN_WEIGHT):
        weight = float(weights[row, column])
        line = [left + 0.08, right - 0.08], [column, row]
        axis.plot(*line, color=COLOURS[0], alpha=weight, linewidth=0.5 + 2 * weight)
    return figure


def _weights(alignment, sources, targets):
    """Weights `(T, S)` from 0 to 1."""
    given = np.asarray(to_numpy(alignment))
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


@dataclasses.dataclass
class _Labels:
    """The labels along one side of a map, as many as fit.

    Attributes:
        turned: Which of them are turned by 90°.
        room: Size of the longest one, at right angles to that side.
    """

    positions: np.ndarray
    texts: list[str]
    size: float
    turned: np.ndarray
    room: float

    @classmethod
    def along(cls, texts: list[str], length: float, figure: Any, font: Any, turn: Any) -> "_Labels":
        """Chooses the labels for a side of some length; `turn`: whether they may be turned."""
        cell = length / len(texts)
        size = float(np.clip(72 * cell / 1.4, MIN_FONT_SIZE, MAX_FONT_SIZE))
        widths, heights = measure(figure, texts, size, font).T
        turned = turn & (widths > 1.2 * heights)
        turned |= np.mean(turned) > 0.5  # then the short ones too, for an even look
        stacked = turned | (not turn)  # one above the other, like lines of text
        step = math.ceil(1.05 * np.where(stacked, heights, widths).max() / cell)
        positions = np.arange(0, len(texts), max(1, step))
        room = np.where(stacked, widths, heights)[positions].max()
        return cls(positions, [texts[i] for i in positions], size, turned[positions], room)


class _MapGrid:
    """The places of the maps, all of one size, and of the text around them.

    Everything is measured before it is drawn, so that nothing overlaps: a layout engine of
    matplotlib would shrink the maps to make space for long labels, and then the labels would not
    fit beside their rows.

    Args:
        figure: An empty one.
        font: Properties of a `Text`, as `readable` returns them.
        texts: Labels of the queries, labels of the keys, and a title for each map.
        num_queries, num_keys: How many of them are labels of queries, and of keys.
        columns: Maps in a row; by default two or four.
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
        of_titles = measure(figure, self.titles, MAX_FONT_SIZE, font)[:, 0].max()
        self.width = max(MIN_MAP_SIZE, of_titles, min(largest, CELL * num_keys))
        self.height = max(MIN_MAP_SIZE, min(largest, CELL * num_queries))
        self.keys = _Labels.along(keys, self.width, figure, font, turn=True)
        self.queries = _Labels.along(queries, self.height, figure, font, turn=False)
        self.left, self.bottom = (x.room + TICKS + LINE for x in (self.queries, self.keys))
        self.row_gap = GAP + LINE * any(self.titles)
        self.right = self.left + self.columns * (self.width + GAP) - GAP
        self.top = self.bottom + self.rows * (self.height + self.row_gap) - self.row_gap
        size = self.right + BAR_GAP + BAR + BAR_LABELS, self.top + self.row_gap
        figure.set_size_inches(size)
        self.size = np.array([*size, *size])

    def add_map(self, number: int) -> Axes:
        """The axes of a map, labelled: its queries in the first column, its keys at the bottom."""
        row, column = divmod(number, self.columns)
        x = self.left + column * (self.width + GAP)
        y = self.top - self.height - row * (self.height + self.row_gap)
        axis = self.figure.add_axes(np.array([x, y, self.width, self.height]) / self.size)
        axis.set_title(self.titles[number], fontsize=MAX_FONT_SIZE, **self.font)
        for name, labels in (("x", self.keys), ("y", self.queries)):
            options = self.font | {"fontsize": labels.size}
            axis.set(**{f"{name}ticks": labels.positions})
            ticks = getattr(axis, f"set_{name}ticklabels")(labels.texts, **options)
            for tick, turned in zip(ticks, labels.turned, strict=True):
                tick.set_rotation(90 if turned else 0)
        lowest = number + self.columns >= len(self.titles)
        axis.tick_params(labelbottom=lowest, labelleft=column == 0)
        axis.set_xlabel("key" if lowest else "", fontsize=MAX_FONT_SIZE)
        axis.set_ylabel("query" if column == 0 else "", fontsize=MAX_FONT_SIZE)
        return axis

    def add_bar(self) -> Axes:
        """The axes of the colour bar: beside all maps."""
        box = [self.right + BAR_GAP, self.bottom, BAR, self.top - self.bottom]
        return self.figure.add_axes(np.array(box) / self.size)
