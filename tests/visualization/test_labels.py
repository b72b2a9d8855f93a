"""Labels in the characters of any script, with a font for them and without."""

import matplotlib
import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen

import keras_transformer as kt
from keras_transformer.visualization.labels import readable

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib import font_manager  # noqa: E402


@pytest.fixture
def no_other_fonts(monkeypatch):
    """A machine with the fonts that matplotlib brings along, whatever this one has."""
    brought = matplotlib.get_data_path()
    fonts = [x for x in font_manager.fontManager.ttflist if x.fname.startswith(brought)]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    yield
    plt.close("all")


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
    assert readable(texts) == (texts, matplotlib.rcParams["font.family"])
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
    texts = ["a\nb", "\x00", "\ud800", "\ue123", "\U0010fffd", "\u0378"]
    expected = ["aU+000Ab", "U+0000", "U+D800", "U+E123", "U+10FFFD", "U+0378"]
    assert readable(texts) == (expected, matplotlib.rcParams["font.family"])


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
