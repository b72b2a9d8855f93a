"""Labels that can be read: in fonts that have their characters, else in numbers of Unicode."""

import itertools
import os
import unicodedata
import warnings
from collections.abc import Iterable

import matplotlib
from matplotlib import font_manager

LONGEST = 24  # characters of a label; of a longer one, the beginning is drawn
EAST_ASIAN = ("CJK", "Hiragana", "Katakana", "Hangul", "Bopomofo", "Ideographic", "Fullwidth")
# Neither letter nor symbol: control characters, surrogates, what is private or not assigned.
NO_CHARACTER = ("Cc", "Cs", "Co", "Cn")


def readable(labels: Iterable[str | bytes]) -> tuple[list[str], list[str]]:
    """Makes labels that matplotlib can draw.

    The fonts of `rcParams["font.family"]` come first; for characters that they lack, others that
    are installed. What no font has becomes its number, as U+6771, and one warning says which
    script it is of and where Debian has a font for it.

    Args:
        labels: Strings, or UTF-8.

    Returns:
        As many strings, shortened where they are long, and the font families to draw them in.
    """
    texts = [x.decode(errors="replace") if isinstance(x, bytes) else str(x) for x in labels]
    characters = {c for c in "".join(texts) if unicodedata.category(c) not in ("Cc", "Cs")}
    families, missing = _families(characters)
    strangers = {c for c in missing if unicodedata.category(c) not in NO_CHARACTER}
    if strangers:
        warnings.warn(_sentence(strangers), stacklevel=3)  # where the picture was asked for
    drawn = characters - missing
    texts = ["".join(c if c in drawn else f"U+{ord(c):04X}" for c in text) for text in texts]
    return [_shorten(text) for text in texts], families


def _shorten(text):
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _families(characters):
    """Font families that have the characters; and those that none has."""
    families, missing = list(matplotlib.rcParams["font.family"]), set(characters)
    for family in families:
        missing -= _covered(
            font_manager.findfont(font_manager.FontProperties(family=[family])), missing
        )
    for entries in (_installed, _installed_since):
        for entry in entries() if missing else ():
            if covered := _covered(entry.fname, missing):
                families.append(entry.name)
                missing -= covered
    return families, missing


def _covered(path, characters):
    """The characters that a font file has."""
    try:
        font = font_manager.get_font(path)
    except (OSError, RuntimeError):  # matplotlib remembers fonts that are gone by now
        return set()
    return {c for c in characters if font.get_char_index(ord(c))}


def _installed():
    """Upright fonts of regular weight, those without serifs first; matplotlib's own mathematical
    ones, which have signs in the places of others, left out."""
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
    """The same with the fonts that were installed since matplotlib has looked for some."""
    known = {os.path.realpath(entry.fname) for entry in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if os.path.realpath(path) not in known:
            try:
                font_manager.fontManager.addfont(path)
            except (OSError, RuntimeError, NotImplementedError):  # no font that it could draw with
                continue
    return _installed()


def _sentence(characters):
    """The warning: which characters have no font, and what to install."""
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
