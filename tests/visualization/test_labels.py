"""Labels in the characters of any script, with a font for them and without."""

import matplotlib
import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager

import keras_transformer as kt
from keras_transformer.visualization.figures import new_figure, readable

ITS_OWN = {"fontfamily": matplotlib.rcParams["font.family"], "parse_math": False}


@pytest.fixture
def no_other_fonts(monkeypatch):
    """A machine with the fonts that matplotlib brings along, whatever this one has."""
    brought = matplotlib.get_data_path()
    fonts = [x for x in font_manager.fontManager.ttflist if x.fname.startswith(brought)]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])


def make_font(path, name, characters):
    """A font in which each of the characters is a square."""
    pen = TTGlyphPen(None)
    for number, point in enumerate([(100, 0), (100, 800), (900, 800), (900, 0)]):
        pen.lineTo(point) if number else pen.moveTo(point)
    pen.closePath()
    builder = FontBuilder(1000)
    names = [".notdef", *(f"u{ord(c):X}" for c in characters)]
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(c): f"u{ord(c):X}" for c in characters})
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 100)))
    builder.setupHorizontalHeader(ascent=900, descent=-200)
    builder.setupNameTable({"familyName": name, "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=900, sTypoDescender=-200, usWeightClass=400)
    builder.setupPost()
    builder.save(path)
    return str(path)


def test_usual_characters_need_no_other_font(no_other_fonts):
    texts = ["the", "über", "▁день", "</s>", "", "😀", "a\u0301"]
    assert readable(texts) == (texts, ITS_OWN)
    assert readable([text.encode() for text in texts])[0] == texts
    assert readable(["x" * 24, "x" * 25])[0] == ["x" * 24, "x" * 23 + "…"]


def test_without_a_font_one_warning_says_what_to_install(no_other_fonts):
    tokens = ["東京", "한", "の", "नमस्ते", "▁9", "🦊"]
    with pytest.warns(UserWarning) as caught:
        figure = kt.plot_attention(np.ones((2, 1, 6)) / 6, tokens, ["東"])
        figure.draw_without_rendering()  # where matplotlib would warn once more
    (warning,) = caught
    assert warning.filename == __file__
    assert str(warning.message) == (
        "No installed font has 京東 (CJK), तनमसे… (Devanagari), 한 (Hangul), の (Hiragana), "
        "🦊 (symbols): U+0924 stands there. "
        "On Debian: apt-get install fonts-noto-cjk fonts-noto-core fonts-symbola."
    )
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels[:3] == ["U+6771U+4EAC", "U+D55C", "U+306E"] and labels[4:] == ["▁9", "U+1F98A"]
    assert labels[3] == "U+0928U+092EU+0938U+094…"


def test_what_is_no_character_is_a_number_without_a_warning(no_other_fonts):
    texts = ["a\nb", "\x00", "\ud800", "\ue123", "\U0010fffd", "\u0378", "x\u202ey", "\u200d"]
    expected = [
        "aU+000Ab",
        "U+0000",
        "U+D800",
        "U+E123",
        "U+10FFFD",
        "U+0378",
        "xU+202Ey",
        "U+200D",
    ]
    assert readable(texts) == (expected, ITS_OWN)


@pytest.mark.parametrize("since", [False, True], ids=["known", "installed since"])
def test_other_fonts_are_found(since, no_other_fonts, monkeypatch, tmp_path):
    """Those that matplotlib knows, and those that were installed after it had looked for some."""
    paths = [
        make_font(tmp_path / "one.ttf", "Squares Sans", "東京"),
        make_font(tmp_path / "two.ttf", "Squares Serif", "東한"),
    ]
    if since:
        (tmp_path / "broken.ttf").write_bytes(b"no font")
        monkeypatch.setattr(
            font_manager, "findSystemFonts", lambda: [str(tmp_path / "broken.ttf"), *paths]
        )
    else:
        for path in paths:
            font_manager.fontManager.addfont(path)
    tokens = ["東京", "한", "▁9"]
    figure = kt.plot_attention(np.ones((3, 3)) / 3, tokens, tokens)  # without a warning
    figure.draw_without_rendering()
    for label in figure.axes[0].get_xticklabels():
        families = [*matplotlib.rcParams["font.family"], "Squares Sans", "Squares Serif"]
        assert label.get_fontfamily() == families
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == tokens


def test_a_font_that_is_gone_is_passed_over(no_other_fonts, tmp_path):
    path = tmp_path / "gone.ttf"
    font_manager.fontManager.addfont(make_font(path, "Squares Sans", "東"))
    path.unlink()
    with pytest.warns(UserWarning, match=r"has 東 \(CJK\): U\+6771 stands there"):
        assert readable(["東"])[0] == ["U+6771"]


def width(text):
    drawn = new_figure().text(0, 0, text, **readable([text])[1])
    return drawn.get_window_extent().width


def test_arabic_is_joined_and_runs_from_right_to_left():
    assert width("\u0628" * 3) < 0.8 * 3 * width("\u0628")
    joined = "\u0628\u200c\u0628"  # kept apart by a joiner, which stays
    assert readable([joined])[0] == [joined] and width(joined) > width("\u0628" * 2)
    figure = new_figure(figsize=(2, 1))
    (text,), font = readable(["\u0627\u0628\u0628\u0628"])  # alef, a stroke, is written first
    figure.text(0.1, 0.4, text, fontsize=30, **font)
    ink = _ink(figure)
    columns = np.flatnonzero(ink.any(axis=0))
    left, right = np.array_split(ink[:, columns[0] : columns[-1] + 1], 2, axis=1)
    tops = [np.flatnonzero(half.any(axis=1))[0] for half in (left, right)]
    assert tops[1] < tops[0] - 5, "the tall letter stands on the right"


def test_a_vowel_sign_is_not_cut_from_its_letter(no_other_fonts):
    assert readable(["x" * 21 + "e\u0301\u0301" + "x" * 5])[0] == ["x" * 21 + "…"]


def test_the_font_that_has_most_comes_first(no_other_fonts, tmp_path):
    """A word is joined in one font only."""
    for name, characters in (("A Sans", "東"), ("B Serif", "東京한")):
        font_manager.fontManager.addfont(make_font(tmp_path / f"{name}.ttf", name, characters))
    assert readable(["東京한"])[1]["fontfamily"] == [*ITS_OWN["fontfamily"], "B Serif"]


def _ink(figure):
    """Where a figure is dark."""
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].mean(axis=-1) < 128
