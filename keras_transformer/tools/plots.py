"""A translation in pictures: attention maps, alignments, and the probabilities of its tokens.

At the end is what all pictures share, `curves.py` too: figures without windows, fonts and files.
"""

import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from keras_transformer.translation.sentences import KINDS, TokenStep
from keras_transformer.utils import Path, Tensor, counted, replacing

if TYPE_CHECKING:
    from keras_transformer.runs.opening import Opened

# Okabe and Ito (2008): distinct for the colour-blind, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
WEIGHTS = "Blues"  # colour map from 0 to 1: light to dark
SIGNED = "RdBu"  # colour map from -1 to 1: red to blue, distinct for the colour-blind
MAX_FONT_SIZE, MIN_FONT_SIZE = 10, 6  # points, of labels
MAX_LABEL_LENGTH = 24  # characters of a label; longer ones are truncated
JOINERS = "\u200c\u200d"  # invisible, but the shapes of Persian and Hindi letters depend on them
# In inches.
CELL = 0.22  # a token's row or column if there is space: enough for a label of 10 points
MIN_MAP_SIZE = 1.3
MAPS = 14.0  # largest width of all maps together
MARGIN = 0.3  # around a map: title, names of the axes, ticks
COLOUR_BAR = 1.0  # with its labels
LINES = 1.6  # between the columns of an alignment
MIN_WEIGHT = 0.1  # of a line of an alignment that is drawn
# Probabilities of tokens: in points, then in inches.
CELL_FONT_SIZE = MAX_FONT_SIZE - 1
ROW = 0.28
PROBABILITY = 0.6  # a probability and the space around it
STEPS, HEADER = 0.7, 0.8  # numbers of the steps; title and numbers of the ranks


def plot_attention(
    attention_scores: Tensor | Sequence[Tensor],
    source_tokens: Sequence[str | bytes],
    target_tokens: Sequence[str | bytes],
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draws which source position each target position attends to, one map per head.

    If not all labels fit side by side, every second token has one, or every third. For characters
    that matplotlib's own font lacks, install the Noto fonts.

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
    columns = columns or min(len(scores), 2 if len(scores) <= 4 else 4)
    return _draw_maps(scores, columns, *map(to_labels, (titles, source_tokens, target_tokens)))


def _draw_maps(scores, columns, titles, keys, queries):
    """Draws maps `(N, T, S)` side by side, with labels at the left and at the bottom."""
    rows = math.ceil(len(scores) / columns)
    largest = MAPS / columns - MARGIN
    width = max(MIN_MAP_SIZE, text_width(titles, MAX_FONT_SIZE), min(largest, CELL * len(keys)))
    height = max(MIN_MAP_SIZE, min(largest, CELL * len(queries)))
    labelled_rows = 1 if len(scores) % columns == 0 else 2  # labels are below the lowest maps
    figure = new_figure(
        columns * (width + MARGIN) + text_width(queries, MAX_FONT_SIZE) + COLOUR_BAR,
        rows * (height + MARGIN) + labelled_rows * text_width(keys, MAX_FONT_SIZE),
    )
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for i, axis in enumerate(axes):
        axis.set_visible(i < len(scores))
    for i, (axis, weights) in enumerate(zip(axes, scores, strict=False)):
        image = axis.imshow(weights, vmin=0, vmax=1, cmap=WEIGHTS, aspect="auto")
        axis.set_title(titles[i], fontsize=MAX_FONT_SIZE, **text_style())
        _label(axis.xaxis, keys, width / len(keys), turn=True)
        _label(axis.yaxis, queries, height / len(queries), turn=False)
        lowest = i + columns >= len(scores)
        axis.tick_params(labelbottom=lowest, labelleft=i % columns == 0)
        axis.set_xlabel("key" if lowest else "", fontsize=MAX_FONT_SIZE)
        axis.set_ylabel("" if i % columns else "query", fontsize=MAX_FONT_SIZE)
    bar = figure.colorbar(image, ax=axes[: len(scores)], aspect=40)
    bar.set_label("attention weight", fontsize=MAX_FONT_SIZE)
    bar.ax.tick_params(labelsize=MAX_FONT_SIZE)
    return figure


def _label(axis, labels, cell, turn):
    """Labels the tokens along an axis, as many as fit: each, every second one and so on."""
    size = float(np.clip(72 * cell / 1.4, MIN_FONT_SIZE, MAX_FONT_SIZE))
    step = math.ceil(1.2 * size / 72 / cell)
    labels = labels[::step]
    axis.set_ticks(np.arange(len(labels)) * step, labels, fontsize=size, **text_style())
    turned = np.array([turn and len(label) > 2 for label in labels])
    turned |= turned.mean() > 0.5  # then the short ones too, for an even look
    for text, is_turned in zip(axis.get_ticklabels(), turned, strict=True):
        text.set_rotation(90 if is_turned else 0)


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
        return [f"layer {i + 1}, head {j + 1}" for i, j in np.ndindex(*shape)]
    return [f"head {i + 1}" for i in range(shape[0])] if shape and shape[0] > 1 else [""]


def save_attention_plot(
    opened: "Opened",
    text: str,
    output: Path,
    target: str | None = None,
    kind: str = "cross",
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
) -> Path:
    """Draws what a model attends to while it translates a text, by its layers and heads from 1.

    `target` is drawn instead of the model's own, greedy translation. Returns `output`.
    """
    if not text.strip():
        raise ValueError("Nothing to draw: the text is empty.")
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: choose from {', '.join(KINDS)}.")
    maps, scores, titles = _maps_of_run(opened.model, text, target, kind, layers, heads)
    keys, queries = maps.labels(kind)
    return save_figure(plot_attention(scores, keys, queries, titles), output)


def _maps_of_run(translator, text, target, kind, layers, heads):
    """`AttentionMaps` of a run, the scores to draw and their titles."""
    from keras_transformer.translation.inspection import attention_maps
    from keras_transformer.translation.translator import to_indices

    translator.run_eagerly = True
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
    sides = to_labels(source_tokens), to_labels(target_tokens)
    width = LINES + sum(text_width(side, MAX_FONT_SIZE) for side in sides)
    rows = max(map(len, sides), default=0)
    figure = new_figure(width + MARGIN, CELL * (rows + 2))
    left = figure.subplots()
    right = left.twinx()
    axes: list[Axes] = [left, right]
    for axis, side, labels in zip(axes, ("source", "target"), sides, strict=True):
        axis.set(xlim=(0, 1), ylim=(rows - 0.5, -0.5), xticks=[], frame_on=False)
        axis.set_yticks(range(len(labels)), labels, fontsize=MAX_FONT_SIZE, **text_style())
        axis.tick_params(length=0)
        axis.set_title(
            side,
            loc="left" if axis is left else "right",
            color="dimgrey",
            style="italic",
            fontsize=MAX_FONT_SIZE,
        )
    for row, column in np.argwhere(weights >= MIN_WEIGHT):
        weight = float(weights[row, column])
        line = [0, 1], [column, row]
        left.plot(*line, color=COLOURS[0], alpha=weight, linewidth=0.5 + 2 * weight)
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


def plot_token_probabilities(
    steps: Sequence[TokenStep] | Mapping[str, Sequence[TokenStep]],
) -> Figure:
    """Draws the most probable tokens of each step, one row per step; the taken one is framed.

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
    cell = PROBABILITY + text_width(labels.values(), CELL_FONT_SIZE)
    columns = [max(map(len, rows)) for rows in panels.values()]
    rows = max(map(len, panels.values()))
    figure = new_figure(cell * sum(columns) + STEPS * len(columns), ROW * rows + HEADER)
    axes = figure.subplots(1, len(panels), width_ratios=columns, squeeze=False).flat
    for axis, count, (name, panel) in zip(axes, columns, panels.items(), strict=True):
        axis.set(xlim=(0, count), ylim=(rows, 0))
        axis.set_title(*to_labels([name]), loc="left", fontsize=MAX_FONT_SIZE, **text_style())
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
    style = {"color": _legible(colour), "fontsize": CELL_FONT_SIZE, "va": "center"}
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
    axis.set_xlabel("rank", fontsize=CELL_FONT_SIZE - 1)
    axis.set_ylabel("step", fontsize=CELL_FONT_SIZE - 1)
    axis.tick_params(length=0, labelsize=CELL_FONT_SIZE - 1)
    axis.spines[:].set_visible(False)


def _legible(colour):
    """Black or white, whichever stands out more from a colour: WCAG 2, relative luminance."""
    rgb = np.asarray(colour[:3])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return "black" if linear @ [0.2126, 0.7152, 0.0722] > 0.179 else "white"


# --- what all pictures share ---


class _Picture(Figure):
    """A figure that pyplot does not know, so that no window opens; a notebook shows it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", bbox_inches="tight")
        return file.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of a size in inches, with matplotlib's constrained layout."""
    return _Picture(figsize=(width, height), layout="constrained")


def colour(number: int) -> str:
    """Returns the colour of the curve of that number, from 0."""
    return COLOURS[number % len(COLOURS)]


def check_output(output: Path) -> None:
    """Raises an error for a path that could not be written, before anything is computed."""
    folder, name = os.path.split(output)
    ending = os.path.splitext(name)[1].lstrip(".").lower()
    known = FigureCanvasAgg.get_supported_filetypes()
    if ending not in known:
        raise ValueError(
            f"The format of {output} is unknown: its name must end with one of "
            f"{', '.join(f'.{x}' for x in sorted(known))}."
        )
    if not os.path.isdir(folder or "."):
        raise ValueError(f"{output} cannot be written: the directory {folder} is missing.")


def save_figure(figure: Figure, output: Path) -> Path:
    """Writes a figure into a file of the format that its name ends with, and returns its name."""
    check_output(output)
    with replacing(output) as temporary:
        figure.savefig(temporary, dpi=150)
    return output


def to_numpy(array: Any) -> np.ndarray:
    """Converts an array of any backend of Keras; Keras is not imported with this module."""
    import keras

    return keras.ops.convert_to_numpy(array)


def text_style() -> dict[str, Any]:
    """Returns properties of a `Text` for tokens: fonts for all scripts, and no formulas.

    Matplotlib draws each character in the first font that has it, and warns if none has.
    """
    noto = {font.name for font in font_manager.fontManager.ttflist if "Noto Sans" in font.name}
    families = [*matplotlib.rcParams["font.family"], *sorted(noto)]
    return {"fontfamily": families, "parse_math": False}


def text_width(texts: Iterable[str], size: float) -> float:
    """Returns the width in inches of the widest text in a font of a size in points."""
    figure = new_figure(1, 1)
    drawn = [figure.text(0, 0, text, fontsize=size, **text_style()) for text in set(texts)]
    return max([0.0, *(text.get_window_extent().width / figure.dpi for text in drawn)])


def to_labels(tokens: Iterable[str | bytes]) -> list[str]:
    """Returns tokens, strings or UTF-8, as labels: short, and without control characters."""
    texts = [x.decode(errors="replace") if isinstance(x, bytes) else str(x) for x in tokens]
    texts = [
        "".join(c if c.isprintable() or c in JOINERS else f"U+{ord(c):04X}" for c in text)
        for text in texts
    ]
    limit = MAX_LABEL_LENGTH
    return [text if len(text) <= limit else f"{text[: limit - 1]}…" for text in texts]
