"""The pictures of trainings show what they are given."""

import os

import keras
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

import keras_transformer as kt
from keras_transformer.runs.run import COLUMNS, SCORES, Run
from keras_transformer.tools import curves
from keras_transformer.tools.curves import save_runs_plot

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


def make_run(folder):
    folder.mkdir(parents=True)
    Run(folder).write_history(HISTORY)
    return str(folder)


def test_run_is_drawn_over_updates_tokens_and_minutes():
    figure = kt.plot_run(HISTORY)
    rate, loss, *scores = figure.axes
    assert curves_of(rate) == [[[100, 0.002], [200, 0.001], [300, 0.0005]]]
    validation, training = [[100, 4.5], [200, 3.5], [300, 3]], [[100, 4], [200, 3], [300, 2]]
    assert curves_of(loss) == [validation, training]
    assert [line.get_linestyle() for line in loss.lines] == ["-", "--"]
    assert [text.get_text() for text in loss.get_legend().texts] == ["validation", "training"]
    bleu = [[4, 12], [6, 15]], [[3, 12], [4.5, 15]]  # the first validation has none
    chrf = [[4, 30], [6, 33.5]], [[3, 30], [4.5, 33.5]]
    assert [curves_of(axis) for axis in scores] == [[curve] for curve in (*bleu, *chrf)]
    across = ["steps", "steps", *["target tokens in millions", "minutes"] * 2]
    assert [axis.get_xlabel() for axis in figure.axes] == across
    along = [axis.get_ylabel().split()[0] for axis in figure.axes]
    assert along == ["learning", "loss", "BLEU", "BLEU", "chrF", "chrF"] and not figure.legends
    assert len(kt.plot_run(HISTORY[:1]).axes) == 2  # scores are drawn where there are any


def test_losses_that_are_not_finite():
    """What there is of a training that has diverged is drawn, logarithmically if it can be."""
    for losses in ([np.inf, np.inf], [4.0, np.nan], [0.0]):
        rows = [HISTORY[0] | {"loss": x, "val_loss": x, "val_bleu": x} for x in losses]
        for figure in (kt.plot_run(rows), kt.plot_history({"loss": losses, "val_loss": losses})):
            figure.draw_without_rendering()
            scales = {axis.get_yscale() for axis in figure.axes if "loss" in axis.get_ylabel()}
            assert scales == {"log" if 4.0 in losses else "linear"}


def test_runs_are_told_apart():
    other = [row | {"val_loss": 1.0} for row in HISTORY[:2]]
    figure = kt.plot_runs({"one": HISTORY, "two": other})
    loss = figure.axes[1]
    assert [len(line.get_xdata()) for line in loss.lines] == [3, 3, 2, 2]
    first, _, second, _ = [line.get_color() for line in loss.lines]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == ["one", "two"]
    assert [line.get_color() for line in legend.get_lines()] == [first, second]
    assert first != second
    with pytest.raises(ValueError, match="has no validation"):
        kt.plot_runs({"one": HISTORY, "two": []})


def test_picture_of_a_run(tmp_path, monkeypatch):
    path = make_run(tmp_path / "run")
    assert kt.save_run_plot(path) == os.path.join(path, "curves.png")
    assert sorted(os.listdir(path)) == ["curves.png", "history.csv"]
    picture = (tmp_path / "run" / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    assert plt.get_fignums() == []  # a training may draw after every validation

    def broken(figure, name, **options):
        with open(name, "wb") as file:
            file.write(b"half")
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
    assert b"<svg" in (tmp_path / "x.svg").read_bytes()
    with pytest.raises(ValueError, match="curves.xyz is unknown: .*png"):
        save_runs_plot([one], tmp_path / "curves.xyz")


def test_history_that_cannot_be_drawn(tmp_path):
    head = ",".join(COLUMNS) + "\n"
    with pytest.raises(ValueError, match="has no history.csv: give a run"):
        kt.save_run_plot(tmp_path)
    less = "step,loss,val_loss\n1,2,3\n", "is corrupted .'target_tokens'"
    wrong = f"{head}1,2,3,4,five,6\n", "is corrupted .*'five'"
    for text, message in ((head, "has no rows yet"), less, wrong):
        (tmp_path / "history.csv").write_text(text)
        with pytest.raises(ValueError, match=message):
            kt.save_run_plot(tmp_path)
    assert os.listdir(tmp_path) == ["history.csv"]
