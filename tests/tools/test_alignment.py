"""The picture of an alignment."""

import numpy as np
import pytest

import keras_transformer as kt

SOURCE, TARGET = ["▁a", "▁red", "▁hat", "東"], ["▁ein", "▁rot", "er", "▁hut", "$x_1$"]


def lines_of(figure):
    """{(target row, source row): how strong the line is}."""
    axis = figure.axes[0]
    rows = [(line.get_ydata(), line.get_alpha()) for line in axis.lines]
    return {(int(b), int(a)): alpha for (a, b), alpha in rows}


@pytest.mark.filterwarnings("ignore:Glyph")
def test_positions():
    figure = kt.plot_alignment(SOURCE, TARGET, [0, 1, 1, 2, 3])
    expected = {(0, 0): 1, (1, 1): 1, (2, 1): 1, (3, 2): 1, (4, 3): 1}
    assert lines_of(figure) == expected
    sides = [[x.get_text() for x in axis.get_yticklabels()] for axis in figure.axes]
    assert sides == [SOURCE, TARGET]
    left, right = (axis.get_yticklabels()[1].get_window_extent() for axis in figure.axes)
    assert left.x1 < right.x0 and left.y0 == pytest.approx(right.y0, abs=1)


def test_weights():
    weights = np.zeros((2, 3))
    weights[0], weights[1] = (0.75, 0.2, 0.05), (0, 0, 1)
    figure = kt.plot_alignment(["x", "y", "z"], ["u", "v"], weights)
    assert lines_of(figure) == {(0, 0): 0.75, (0, 1): 0.2, (1, 2): 1}


def test_nothing_aligned():
    assert lines_of(kt.plot_alignment([], ["u"], [])) == {}


@pytest.mark.parametrize(
    "alignment, message",
    [
        ([0, 1], r"shape \(2,\) does not fit 3 source and 1 target tokens: pass 1 position below"),
        ([3], r"does not fit 3 source and 1 target"),
        ([-1], r"does not fit"),
        (np.ones((3, 1)), r"shape \(3, 1\) does not fit"),
        (np.full((1, 3), -2.0), "from 0 to 1"),
    ],
)
def test_what_does_not_fit(alignment, message):
    with pytest.raises(ValueError, match=message):
        kt.plot_alignment(list("abc"), ["x"], alignment)


def test_what_align_finds_is_drawn_as_it_is():
    from tests.support.toy_translator import trained_translator

    (aligned,) = trained_translator().align(["abc"], ["AB"])
    figure = kt.plot_alignment(*aligned)
    assert set(lines_of(figure)) == {(row, place) for row, place in enumerate(aligned[2])}
