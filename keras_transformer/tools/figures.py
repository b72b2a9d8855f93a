"""What all pictures share: figures without windows, colours, fonts and files."""

import io
import os
from collections.abc import Iterable
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from keras_transformer.utils import Path, replacing

# Okabe and Ito (2008): distinct for the colour-blind, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
WEIGHTS = "Blues"  # colour map from 0 to 1: light to dark
SIGNED = "RdBu"  # colour map from -1 to 1: red to blue, distinct for the colour-blind
MAX_FONT_SIZE, MIN_FONT_SIZE = 10, 6  # points, of labels
MAX_LABEL_LENGTH = 24  # characters of a label; longer ones are truncated
JOINERS = "\u200c\u200d"  # invisible, but the shapes of Persian and Hindi letters depend on them


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
