"""The picture of a search step by step."""

import math

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

import keras_transformer as kt
from keras_transformer.translation.sentences import TokenStep


def step(token, taken, **best):
    return TokenStep(token, math.log(taken), [(x, math.log(p)) for x, p in best.items()])


STEPS = [
    step("a", 0.7, a=0.7, b=0.2),
    step("z", 0.001, b=0.6, c=0.3),
    step("d", 0.25, c=0.5, d=0.25),
]


def cells_of(axis):
    """{(step, rank from 0): [piece, probability]} and where the frames are."""
    cells = {}
    for text in axis.texts:
        x, y = text.get_position()
        # A probability ends on the right of its cell.
        place = int(y), int(x) if text.get_ha() == "left" else math.ceil(x) - 1
        cells.setdefault(place, []).append(text.get_text())
    frames = [x for x in axis.patches if isinstance(x, Rectangle) and not x.get_fill()]
    return cells, [(int(x.get_y()), int(x.get_x())) for x in frames]


def test_a_row_for_each_step():
    (axis,) = kt.plot_token_probabilities(STEPS).axes
    cells, frames = cells_of(axis)
    assert cells == {
        (0, 0): ["a", "0.70"],
        (0, 1): ["b", "0.20"],
        (1, 0): ["b", "0.60"],
        (1, 1): ["c", "0.30"],
        (1, 2): ["z", "<.01"],
        (2, 0): ["c", "0.50"],
        (2, 1): ["d", "0.25"],
    }
    assert frames == [(0, 0), (1, 2), (2, 1)]
    assert [x.get_text() for x in axis.get_xticklabels()] == ["1", "2", "lower"]
    assert [x.get_text() for x in axis.get_yticklabels()] == ["0", "1", "2"]


def test_text_stands_out_from_its_cell():
    shares = np.linspace(0.01, 0.99, 21)
    steps = [step("a", p, a=p) for p in shares]
    (axis,) = kt.plot_token_probabilities(steps).axes
    cells = [x for x in axis.patches if isinstance(x, Rectangle) and x.get_fill()]
    for i, cell in enumerate(cells):
        lightness = luminance(cell.get_facecolor())
        for text in axis.texts[2 * i : 2 * i + 2]:
            lighter, darker = sorted([luminance(to_rgb(text.get_color())), lightness])[::-1]
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, shares[i]  # WCAG 2, 1.4.3


def luminance(colour):
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_searches_side_by_side():
    figure = kt.plot_token_probabilities({"greedy": STEPS[:1], "$top_k$": STEPS})
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["greedy", "$top_k$"]
    assert len(cells_of(figure.axes[0])[0]) == 2 and len(cells_of(figure.axes[1])[0]) == 7
    first, second = (axis.get_position() for axis in figure.axes)
    assert first.x1 < second.x0


@pytest.mark.parametrize("steps", [[], {}, {"greedy": []}])
def test_nothing_to_draw(steps):
    with pytest.raises(ValueError, match="Received no steps"):
        kt.plot_token_probabilities(steps)
