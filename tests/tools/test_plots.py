"""A translation in pictures: they show what they are given, and all that is written can be read."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import keras_transformer as kt
from keras_transformer.tools.plots import text_width, to_labels
from keras_transformer.translation.sentences import TokenStep
from tests.support.toy_translator import random_translator

WORDS = "the quick Donaudampfschifffahrtsgesellschaft jumps over internationalization".split()
MANY = [WORDS[i % len(WORDS)] for i in range(60)]
DATE = [*"▁samedi▁9▁mai▁1998", "</s>"]


def draw(sources, targets, *more, **options):
    """A picture of weights at random, of `more` heads or layers and heads; and the weights."""
    size = (*more, len(targets))
    scores = np.random.default_rng(0).dirichlet(np.ones(len(sources)), size)
    return kt.plot_attention(scores, sources, targets, **options), scores


def maps_of(figure):
    return [axis for axis in figure.axes[:-1] if axis.images]


PAIRS = [(DATE, DATE[5:], [4]), (WORDS, [*"abcd"], []), (MANY, MANY, [8]), (WORDS, WORDS, [2, 3])]


@pytest.mark.parametrize("sources, targets, heads", PAIRS, ids=["date", "map", "long", "layers"])
def test_what_is_written_can_be_read(sources, targets, heads):
    figure, scores = draw(sources, targets, *heads)
    figure.draw_without_rendering()
    texts = [x for x in figure.findobj(Text) if x.get_visible() and x.get_text().strip()]
    boxes = np.array([text.get_window_extent().extents for text in texts])
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    both = np.all((low < boxes[None, :, 2:]) & (boxes[None, :, :2] < high), axis=-1)
    overlapping = np.argwhere(np.triu(both, 1))
    assert not [(texts[i].get_text(), texts[j].get_text()) for i, j in overlapping]
    assert np.all(boxes >= 0) and np.all(boxes[:, 2:] <= figure.bbox.size)
    assert all(text.get_fontsize() >= 6 for text in texts)
    assert np.all(figure.get_size_inches() < 18)
    drawn = np.array([axis.images[0].get_array() for axis in maps_of(figure)])
    np.testing.assert_array_equal(drawn, scores.reshape(-1, len(targets), len(sources)))
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == [], "pyplot would open a window"


def test_a_map_for_each_head_and_a_row_for_each_layer():
    figure, _ = draw(list("abcde"), ["$x_1$", "$\\frac", *"yz"], 3)
    maps = maps_of(figure)
    assert [axis.get_title() for axis in maps] == ["head 1", "head 2", "head 3"]
    across, along = maps[-1].get_xticklabels(), maps[-1].get_yticklabels()
    assert [label.get_text() for label in across] == list("abcde")
    assert [label.get_text() for label in along] == ["$x_1$", "$\\frac", *"yz"]
    assert not any(label.get_parse_math() for label in along)
    assert figure.axes[-1].get_ylim() == (0, 1)  # the bar of colours
    maps = maps_of(draw(list("abcde"), list("wxyz"), 2, 3)[0])
    titles = [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2, 3)]
    assert [axis.get_title() for axis in maps] == titles
    tops = [axis.get_position().y1 for axis in maps]
    assert tops[0] == tops[2] > tops[3] == tops[5]
    assert maps_of(draw(list("ab"), list("cd"), 1)[0])[0].get_title() == ""


def test_long_words_are_turned_and_shortened_and_labels_thinned():
    labels = draw(WORDS, list("ab"))[0].axes[0].get_xticklabels()
    assert {label.get_rotation() for label in labels} == {90}  # short ones among them too
    assert labels[2].get_text() == "Donaudampfschifffahrtsg…"
    labels = draw(DATE, list("ab"))[0].axes[0].get_xticklabels()
    turned = [label.get_text() for label in labels if label.get_rotation() == 90]
    assert turned == ["</s>"]  # characters stay upright
    for count, step in ((60, 1), (200, 2)):
        tokens = [f"token {i}" for i in range(count)]
        axis = draw(tokens, tokens)[0].axes[0]
        for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
            assert [label.get_text() for label in labels] == tokens[::step]
        assert axis.get_xticks().tolist() == list(range(0, count, step))


def test_shapes_that_do_not_fit():
    for plot, shape, sides, message in (
        (kt.plot_attention, (2, 3), ("abcd", "xy"), r"\(2, 3\) do not fit 2 target and 4 source"),
        (kt.plot_attention, (1, 2, 2, 2, 3), ("abc", "xy"), "do not fit 2 target and 3 source"),
        (kt.plot_attention, (2, 0), ("", "xy"), r"\(2, 0\) do not fit 2 target and 0 source"),
        (kt.plot_attention, (2, 2, 3), ("abc", "xy", ["one"]), r"2 titles, .* \['one'\]"),
        (kt.plot_alignment, (2,), ("abc", "x"), r"\(2,\) does not fit 3 source and 1 target"),
        (kt.plot_alignment, (3, 1), ("abc", "x"), r"shape \(3, 1\) does not fit"),
    ):
        numbers, sides = np.ones(shape), map(list, sides)
        with pytest.raises(ValueError, match=message):
            plot(numbers, *sides) if plot is kt.plot_attention else plot(*sides, numbers)


SOURCE, TARGET = ["▁a", "▁red", "▁hat", "東"], ["▁ein", "▁rot", "er", "▁hut", "$x_1$"]


def lines_of(figure):
    rows = [(line.get_ydata(), line.get_alpha()) for line in figure.axes[0].lines]
    return {(int(b), int(a)): alpha for (a, b), alpha in rows}


@pytest.mark.filterwarnings("ignore:Glyph")
def test_alignment():
    figure = kt.plot_alignment(SOURCE, TARGET, [0, 1, 1, 2, 3])
    assert lines_of(figure) == {(0, 0): 1, (1, 1): 1, (2, 1): 1, (3, 2): 1, (4, 3): 1}
    sides = [[x.get_text() for x in axis.get_yticklabels()] for axis in figure.axes]
    assert sides == [SOURCE, TARGET]
    left, right = (axis.get_yticklabels()[1].get_window_extent() for axis in figure.axes)
    assert left.x1 < right.x0 and left.y0 == pytest.approx(right.y0, abs=1)
    weights = [(0.75, 0.2, 0.05), (0, 0, 1)]
    figure = kt.plot_alignment(["x", "y", "z"], ["u", "v"], np.array(weights))
    assert lines_of(figure) == {(0, 0): 0.75, (0, 1): 0.2, (1, 2): 1}
    assert lines_of(kt.plot_alignment([], ["u"], [])) == {}
    (aligned,) = random_translator().align(["abc"], ["AB"])
    assert set(lines_of(kt.plot_alignment(*aligned))) == {*enumerate(aligned[2])}
    for wrong, message in (([3], "1 position below"), ([[-2.0, 0, 0]], "from 0 to 1")):
        with pytest.raises(ValueError, match=message):
            kt.plot_alignment(list("abc"), ["x"], np.array(wrong))


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
    first, axis = kt.plot_token_probabilities({"greedy": STEPS[:1], "$top_k$": STEPS}).axes
    cells, frames = cells_of(axis)
    rows = ["a 0.70", "b 0.20"], ["b 0.60", "c 0.30", "z <.01"], ["c 0.50", "d 0.25"]
    assert cells == {(i, j): x.split() for i, row in enumerate(rows) for j, x in enumerate(row)}
    assert frames == [(0, 0), (1, 2), (2, 1)]
    assert [x.get_text() for x in axis.get_xticklabels()] == ["1", "2", "lower"]
    assert [x.get_text() for x in axis.get_yticklabels()] == ["0", "1", "2"]
    assert [x.get_title(loc="left") for x in (first, axis)] == ["greedy", "$top_k$"]
    assert len(cells_of(first)[0]) == 2
    assert first.get_position().x1 < axis.get_position().x0
    with pytest.raises(ValueError, match="Received no steps"):
        kt.plot_token_probabilities({"greedy": []})
    # Text stands out from its cell.
    (axis,) = kt.plot_token_probabilities([step("a", p, a=p) for p in (0.05, 0.5, 0.95)]).axes
    assert [text.get_color() for text in axis.texts[::2]] == ["black", "black", "white"]


def test_what_is_no_character_is_a_number():
    texts = ["a\nb", "\x00", "\ud800", "\ue123", "\u0378", "x\u202ey"]
    expected = ["aU+000Ab", "U+0000", "U+D800", "U+E123", "U+0378", "xU+202Ey"]
    assert to_labels(texts) == expected
    assert to_labels(["x" * 24, "x" * 25, b"\xc3\xbc"]) == ["x" * 24, "x" * 23 + "…", "ü"]


def test_arabic_is_joined():
    beh = "\u0628"
    assert text_width([beh * 3], 10) < 0.8 * 3 * text_width([beh], 10)
    joined = f"{beh}\u200c{beh}"  # kept apart by a joiner, which stays
    assert to_labels([joined]) == [joined]
    assert text_width([joined], 10) > text_width([beh * 2], 10)
