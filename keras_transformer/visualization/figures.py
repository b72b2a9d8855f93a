"""What all pictures share: figures that no window shows, and colours that everybody tells apart."""

import io
import os
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from keras_transformer.atomic_files import replacing
from keras_transformer.typing import Path

# Okabe and Ito (2008): told apart by the colour-blind, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
WEIGHTS = "Blues"  # from 0, nothing, to 1: light to dark, whatever colours one sees
SIGNED = "RdBu"  # from -1 to 1: red and blue, which the colour-blind tell apart
LARGEST_LABELS, SMALLEST_LABELS = 10, 6  # points


class _Picture(Figure):
    """A figure that belongs to its caller alone: pyplot does not know it, so no window opens.

    A notebook shows it where it is the value of a cell; `savefig` writes it into a file.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        # What notebooks ask for.
        file = io.BytesIO()
        self.savefig(file, format="png", bbox_inches="tight")
        return file.getvalue()


def new_figure(**options: Any) -> Figure:
    """A figure that belongs to its caller alone, as `_Picture` says.

    Args:
        **options: Of `matplotlib.figure.Figure`.
    """
    return _Picture(**options)


def colour(number: int) -> str:
    """The colour of the curve of that number, from 0."""
    return COLOURS[number % len(COLOURS)]


def check_output(output: Path) -> None:
    """Refuses a name of a picture that could not be written, before anything is computed.

    Raises:
        ValueError: If its ending says no format that there is, or there is no such directory.
    """
    folder, name = os.path.split(output)
    ending = os.path.splitext(name)[1].lstrip(".").lower()
    known = FigureCanvasAgg.get_supported_filetypes()
    if ending not in known:
        raise ValueError(
            f"{output} has to end with what says of which format it is to be: choose from "
            f"{', '.join(f'.{x}' for x in sorted(known))}."
        )
    if not os.path.isdir(folder or "."):
        raise ValueError(f"{output} cannot be written: there is no directory {folder}.")


def save_figure(figure: Figure, output: Path) -> Path:
    """Writes a figure into a file, complete or not at all.

    Args:
        figure: A matplotlib figure.
        output: Name of the picture; its ending, such as `.png`, `.pdf` or `.svg`, says of what
            format.

    Returns:
        `output`.

    Raises:
        ValueError: If it cannot be written.
    """
    check_output(output)
    with replacing(output) as temporary:
        figure.savefig(temporary, dpi=150)
    return output
