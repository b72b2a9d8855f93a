"""Pictures show what they are given, and all that is written can be read."""

import math
import os
import pathlib

import keras
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import keras_transformer as kt
from keras_transformer.runs.run import COLUMNS, SCORES, Run
from keras_transformer.tools import curves
from keras_transformer.tools.curves import save_runs_plot
from keras_transformer.tools.plots import to_labels
from keras_transformer.translation.sentences import TokenStep
from tests.support.toy_translator import random_translator

WORDS = "the quick Donaudampfschifffahrtsgesellschaft jumps over internationalization".split()
MANY = [WORDS[i % len(WORDS)] for i in range(60)]
DATE = [*"▁samedi▁9▁mai▁1998", "</s>"]


def draw(sources, targets, *more):
    """A picture of weights at random, of `more` heads or layers and heads; and the weights."""
    scores = np.random.default_rng(0).dirichlet(np.ones(len(sources)), (*more, len(targets)))
    return kt.plot_attention(scores, sources, targets), scores


def maps_of(figure):
    return [axis for axis in figure.axes[:-1] if axis.images]


PAIRS = [(DATE, DATE[5:], [4]), (WORDS, [*"abcd"], []), (MANY, MANY, [5]), (WORDS, WORDS, [2, 3])]


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
    drawn = np.array([axis.images[0].get_array() for axis in maps_of(figure)])
    np.testing.assert_array_equal(drawn, scores.reshape(-1, len(targets), len(sources)))
    assert plt.get_fignums() == [], "pyplot would open a window"


def test_a_map_for_each_head_and_a_row_for_each_layer():
    figure, _ = draw(list("abcde"), ["$x_1$", "$\\frac", *"yz"], 3)
    maps = maps_of(figure)
    assert [axis.get_title() for axis in maps] == ["head 1", "head 2", "head 3"]
    along = maps[-1].get_yticklabels()
    assert [label.get_text() for label in along] == ["$x_1$", "$\\frac", *"yz"]
    assert not any(label.get_parse_math() for label in along)
    assert figure.axes[-1].get_ylim() == (0, 1)  # the bar of colours
    maps = maps_of(draw(list("abcde"), list("wxyz"), 2, 3)[0])
    titles = [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2, 3)]
    assert [axis.get_title() for axis in maps] == titles


def test_shapes_that_do_not_fit():
    for shape, sides, message in (
        ((2, 3), ("abcd", "xy"), r"\(2, 3\) do not fit 2 target and 4 source"),
        ((1, 2, 2, 2, 3), ("abc", "xy"), "do not fit 2 target and 3 source"),
        ((2, 0), ("", "xy"), r"\(2, 0\) do not fit 2 target and 0 source"),
        ((2, 2, 3), ("abc", "xy", ["one"]), r"2 titles, .* \['one'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            kt.plot_attention(np.ones(shape), *map(list, sides))


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
    figure = kt.plot_alignment(list("xyz"), list("uv"), np.array([(0.75, 0.2, 0.05), (0, 0, 1)]))
    assert lines_of(figure) == {(0, 0): 0.75, (0, 1): 0.2, (1, 2): 1}
    assert lines_of(kt.plot_alignment([], ["u"], [])) == {}
    (aligned,) = random_translator().align(["abc"], ["AB"])
    assert set(lines_of(kt.plot_alignment(*aligned))) == {*enumerate(aligned[2])}
    wrong = ([3], "1 position below"), ([0, 0], r"\(2,\) does not fit"), ([[-2.0, 0, 0]], "0 to 1")
    for given, message in wrong:
        with pytest.raises(ValueError, match=message):
            kt.plot_alignment(list("abc"), ["x"], np.array(given))


def step(token, taken, **best):
    return TokenStep(token, math.log(taken), [(x, math.log(p)) for x, p in best.items()])


STEPS = [step("a", 0.7, a=0.7, b=0.2), step("z", 0.001, b=0.6, c=0.3)]
STEPS += [step("d", 0.25, c=0.5, d=0.25)]


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
    with pytest.raises(ValueError, match="Received no steps"):
        kt.plot_token_probabilities({"greedy": []})


def test_what_is_no_character_is_a_number():
    """But for joiners, which keep Arabic letters apart."""
    texts = ["a\nb", "\ud800", "\u0378", "x\u202ey", "\u0628\u200c\u0628"]
    assert to_labels(texts) == ["aU+000Ab", "U+D800", "U+0378", "xU+202Ey", texts[-1]]
    assert to_labels(["x" * 24, "x" * 25, b"\xc3\xbc"]) == ["x" * 24, "x" * 23 + "…", "ü"]


# Of trainings.
ROWS = [
    (100, 2_000_000, 1.5, 0.002, 4.0, 4.5, None, None),
    (200, 4_000_000, 3.0, 0.001, 3.0, 3.5, 12.0, 30.0),
    (300, 6_000_000, 4.5, 0.0005, 2.0, 3.0, 15.0, 33.5),
]
HISTORY = [dict(zip(COLUMNS + SCORES, row, strict=True)) for row in ROWS]


def test_position_encoding_and_learning_rate():
    (image,) = kt.plot_position_encoding(length=30, d_model=8).axes[0].images
    assert image.get_array().shape == (30, 8)
    assert image.get_array()[1, 0] == pytest.approx(np.sin(1))
    schedule = kt.WarmupInverseSqrt(peak=2.0, warmup_steps=100)
    (line,) = kt.plot_learning_rate(schedule, 400).axes[0].lines
    updates, rates = line.get_data()
    assert updates[np.argmax(rates)] == 100 and max(rates) == pytest.approx(2)


def test_history_of_fit():
    history = keras.callbacks.History()
    history.history = {"loss": [3.0, 2.0], "val_loss": [3.5, 2.5]}
    for given in (history, history.history):
        (axis,) = kt.plot_history(given).axes
        found = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
        assert found == {"training": [3.0, 2.0], "validation": [3.5, 2.5]}
    with pytest.raises(ValueError, match="has no loss"):
        kt.plot_history({})


def curves_of(axis):
    return [line.get_xydata().tolist() for line in axis.lines]


def test_run_is_drawn_over_updates_tokens_and_minutes():
    rate, loss, *scores = kt.plot_run(HISTORY).axes
    assert curves_of(rate) == [[[100, 0.002], [200, 0.001], [300, 0.0005]]]
    validation, training = [[100, 4.5], [200, 3.5], [300, 3]], [[100, 4], [200, 3], [300, 2]]
    assert curves_of(loss) == [validation, training]
    bleu = [[4, 12], [6, 15]], [[3, 12], [4.5, 15]]  # the first validation has none
    chrf = [[4, 30], [6, 33.5]], [[3, 30], [4.5, 33.5]]
    assert [curves_of(axis) for axis in scores] == [[curve] for curve in (*bleu, *chrf)]


def test_losses_that_are_not_finite():
    for losses in ([np.inf, np.inf], [4.0, np.nan], [0.0]):
        rows = [HISTORY[0] | {"loss": x, "val_loss": x, "val_bleu": x} for x in losses]
        for figure in (kt.plot_run(rows), kt.plot_history({"loss": losses, "val_loss": losses})):
            figure.draw_without_rendering()
            scales = {axis.get_yscale() for axis in figure.axes if "loss" in axis.get_ylabel()}
            assert scales == {"log" if 4.0 in losses else "linear"}


def test_runs_are_told_apart():
    figure = kt.plot_runs({"one": HISTORY, "two": [x | {"val_loss": 1.0} for x in HISTORY[:2]]})
    loss = figure.axes[1]
    assert [len(line.get_xdata()) for line in loss.lines] == [3, 3, 2, 2]
    first, _, second, _ = [line.get_color() for line in loss.lines]
    (legend,) = figure.legends
    assert [line.get_color() for line in legend.get_lines()] == [first, second] != [first] * 2
    with pytest.raises(ValueError, match="has no validation"):
        kt.plot_runs({"one": HISTORY, "two": []})


def make_run(folder):
    folder.mkdir(parents=True)
    Run(folder).write_history(HISTORY)
    return str(folder)


def test_picture_of_a_run(tmp_path, monkeypatch):
    path = make_run(tmp_path / "run")
    assert kt.save_run_plot(path) == os.path.join(path, "curves.png")
    assert sorted(os.listdir(path)) == ["curves.png", "history.csv"]
    picture = (tmp_path / "run" / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000

    def broken(figure, name, **options):
        pathlib.Path(name).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", broken)
    with pytest.raises(ValueError, match=r"written \(No space left on device\)"):
        kt.save_run_plot(path)
    assert (tmp_path / "run" / "curves.png").read_bytes() == picture


def test_runs_go_by_the_names_of_their_directories(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(curves, "plot_runs", lambda found: drawn.append(list(found)) or Figure())
    one, two, namesake = [make_run(tmp_path / name) for name in ("one", "two", "a/one")]
    save_runs_plot([one + "/", two], tmp_path / "x.svg")
    save_runs_plot([one, two, namesake], tmp_path / "x.svg")
    assert drawn == [["one", "two"], [one, two, namesake]]
    with pytest.raises(ValueError, match="curves.xyz is unknown: .*png"):
        save_runs_plot([one], tmp_path / "curves.xyz")


def test_history_that_cannot_be_drawn(tmp_path):
    head = ",".join(COLUMNS) + "\n"
    with pytest.raises(ValueError, match="has no history.csv: give a run"):
        kt.save_run_plot(tmp_path)
    wrong = f"{head}1,2,3,4,five,6\n", "is corrupted .*'five'"
    for text, message in ((head, "has no rows yet"), wrong):
        (tmp_path / "history.csv").write_text(text)
        with pytest.raises(ValueError, match=message):
            kt.save_run_plot(tmp_path)
    assert os.listdir(tmp_path) == ["history.csv"]
