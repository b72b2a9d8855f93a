"""What all pictures share: figures without windows, colours, and labels that can be read."""

import io
import itertools
import os
import unicodedata
import warnings
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
EAST_ASIAN = ("CJK", "Hiragana", "Katakana", "Hangul", "Bopomofo", "Ideographic", "Fullwidth")
# Neither letter nor symbol: control characters, surrogates, private or unassigned code points, and
# invisible ones, which may turn the direction of the text.
NO_CHARACTER = ("Cc", "Cs", "Co", "Cn", "Cf")
JOINERS = "\u200c\u200d"  # of these, the shapes of Persian and Hindi letters depend


class _Picture(Figure):
    """A figure that belongs to its caller alone: pyplot does not know it, so no window opens.

    A notebook shows it if it is the value of a cell; `savefig` writes it into a file.
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
    """Makes a figure that belongs to its caller alone, see `_Picture`.

    Args:
        **options: Of `matplotlib.figure.Figure`.
    """
    return _Picture(**options)


def colour(number: int) -> str:
    """The colour of the curve of that number, from 0."""
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
    """Writes a figure into a file, complete or not at all.

    Args:
        figure: A matplotlib figure.
        output: Name of the picture, with the ending of its format: `.png`, `.pdf` or `.svg`.

    Returns:
        `output`.
    """
    check_output(output)
    with replacing(output) as temporary:
        figure.savefig(temporary, dpi=150)
    return output


def to_numpy(array: Any) -> np.ndarray:
    """An array of any backend of Keras in NumPy; Keras is not imported with this module."""
    import keras

    return keras.ops.convert_to_numpy(array)


def measure(figure: Figure, texts: Iterable[str], size: float, font: dict[str, Any]) -> np.ndarray:
    """Measures texts before they are drawn.

    Args:
        figure: Where they will be drawn.
        texts: N strings.
        size: Of the font, in points.
        font: Properties of a `Text`, as `readable` returns them.

    Returns:
        Array `(N, 2)` of their widths and heights in inches.
    """
    texts = list(texts)
    drawn = figure.text(0, 0, "", fontsize=size, **font)
    extents = {}
    for text in set(texts):
        drawn.set_text(text)
        extents[text] = np.array(drawn.get_window_extent().size) / figure.dpi
    drawn.remove()
    return np.array([extents[text] for text in texts]).reshape(-1, 2)


def readable(labels: Iterable[str | bytes]) -> tuple[list[str], dict[str, Any]]:
    """Makes labels that matplotlib can draw: it shapes Arabic and Devanagari since 3.11.

    The fonts of `rcParams["font.family"]` come first; other installed fonts follow for characters
    that these lack. A character without a font becomes its number, such as U+6771, and one warning
    names its script and the Debian package of a font.

    Args:
        labels: Strings, or UTF-8.

    Returns:
        As many strings, truncated if they are long, and the properties of a matplotlib `Text` to
        draw them with.
    """
    texts = [x.decode(errors="replace") if isinstance(x, bytes) else str(x) for x in labels]
    characters = {c for text in texts for c in text if _can_be_drawn(c, text)}
    families, missing = _families(characters)
    strangers = {c for c in missing if unicodedata.category(c) not in NO_CHARACTER}
    if strangers:
        warnings.warn(_sentence(strangers), stacklevel=3)  # where the picture was asked for
    drawn = characters - missing
    texts = [
        "".join(c if c in drawn and _can_be_drawn(c, text) else f"U+{ord(c):04X}" for c in text)
        for text in texts
    ]
    return [_shorten(text) for text in texts], {"fontfamily": families, "parse_math": False}


def _can_be_drawn(character, text):
    """Whether to look for it in fonts; a joiner only beside other characters."""
    if character in JOINERS:
        return bool(text.strip(JOINERS))
    return unicodedata.category(character) not in ("Cc", "Cs", "Cf")


def _shorten(text):
    if len(text) <= MAX_LABEL_LENGTH:
        return text
    cut = MAX_LABEL_LENGTH - 1
    while cut and unicodedata.category(text[cut])[0] == "M":  # a vowel sign stays with its letter
        cut -= 1
    return text[: cut or MAX_LABEL_LENGTH - 1] + "…"


def _families(characters):
    """The font families that have the characters, and the characters that none has.

    Families with most of them come first, since letters are joined within one font only: many fonts
    have a few signs of Devanagari, one has them all.
    """
    families, missing = list(matplotlib.rcParams["font.family"]), set(characters)
    for family in families:
        missing -= _covered(
            font_manager.findfont(font_manager.FontProperties(family=[family])), missing
        )
    for entries in (_installed, _installed_since):
        found = [(x.name, _covered(x.fname, missing)) for x in (entries() if missing else ())]
        while any(covered & missing for _, covered in found):
            name, covered = max(found, key=lambda pair: len(pair[1] & missing))
            families.append(name)
            missing -= covered
    return families, missing


def _covered(path, characters):
    """The characters among these that a font file has."""
    try:
        font = font_manager.get_font(path)
    except (OSError, RuntimeError):  # a font that matplotlib remembers, but that was removed
        return set()
    return {c for c in characters if font.get_char_index(ord(c))}


def _installed():
    """Upright fonts of regular weight, sans-serif first.

    Matplotlib's mathematical fonts, which have other characters in some places, are left out.
    """
    own = matplotlib.get_data_path()
    entries = [
        entry
        for entry in font_manager.fontManager.ttflist
        if (entry.style, entry.variant, entry.weight) == ("normal", "normal", 400)
        and (entry.name == "DejaVu Sans" or not entry.fname.startswith(own))
    ]
    # Of a family for several countries, the Japanese one comes first, as in fontconfig.
    return sorted(entries, key=lambda e: ("Sans" not in e.name, not e.name.endswith("JP"), e.name))


def _installed_since():
    """The same, with fonts that were installed after matplotlib's list was made."""
    known = {os.path.realpath(entry.fname) for entry in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if os.path.realpath(path) not in known:
            try:
                font_manager.fontManager.addfont(path)
            except (OSError, RuntimeError, NotImplementedError):  # not a font that it can draw
                continue
    return _installed()


def _sentence(characters):
    """The warning: which characters lack a font, and what to install."""
    by_script = itertools.groupby(sorted(characters, key=lambda c: (_script(c), c)), key=_script)
    scripts = {script: "".join(some) for script, some in by_script}
    described = [
        f"{some[:5]}{'…' * (len(some) > 5)} ({script})" for script, some in scripts.items()
    ]
    packages = sorted({_package(script) for script in scripts})
    return (
        f"No installed font has {', '.join(described)}: U+{ord(min(characters)):04X} stands there. "
        f"On Debian: apt-get install {' '.join(packages)}."
    )


def _script(character):
    """The first word of a character's name, which for letters is their script."""
    if unicodedata.category(character).startswith("S"):
        return "symbols"
    word = unicodedata.name(character, "unknown").split()[0]
    return word if word == "CJK" else word.capitalize()


def _package(script):
    if script in EAST_ASIAN:
        return "fonts-noto-cjk"
    return "fonts-symbola" if script == "symbols" else "fonts-noto-core"
