"""The pictures show what they are given."""

import matplotlib
import numpy as np
import pytest

import keras_transformer as kt

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_attention_map_per_head_with_labels(tmp_path):
    scores = np.random.default_rng(0).dirichlet(np.ones(5), size=(3, 4))  # (H, T, S)
    figure = kt.plot_attention(scores, list("abcde"), list("wxyz"))
    drawn = [axis for axis in figure.axes if axis.images]
    assert len(drawn) == 3
    for axis, head in zip(drawn, scores, strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), head)
    assert [label.get_text() for label in drawn[-1].get_xticklabels()] == list("abcde")
    assert [label.get_text() for label in drawn[-1].get_yticklabels()] == list("wxyz")
    figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_attention_of_a_model_fits():
    model = kt.Transformer(20, 20, 2, 16, 2, 32)
    _, scores = model((np.array([[5, 6, 7, 3]]), np.array([[2, 8]])), return_attention_scores=True)
    figure = kt.plot_attention(scores["cross"][-1][0], list("567#"), list("8#"), ["one", "two"])
    assert [axis.get_title() for axis in figure.axes] == ["one", "two"]


def test_wrong_number_of_tokens():
    with pytest.raises(ValueError, match=r"\(1, 2, 3\) do not fit 2 target and 4 source tokens"):
        kt.plot_attention(np.ones((2, 3)), list("abcd"), list("xy"))


def test_position_encoding():
    (image,) = kt.plot_position_encoding(length=30, d_model=8).axes[0].images
    assert image.get_array().shape == (30, 8)
    assert image.get_array()[1, 0] == pytest.approx(np.sin(1))


def test_learning_rate_peaks_where_the_schedule_does():
    (line,) = (
        kt.plot_learning_rate(kt.WarmupInverseSqrt(peak=2.0, warmup_steps=100), 400).axes[0].lines
    )
    updates, rates = line.get_data()
    assert updates[np.argmax(rates)] == 100 and max(rates) == pytest.approx(2)


def test_history():
    axis = kt.plot_history({"loss": [3.0, 2.0], "val_loss": [3.5, 2.5]}).axes[0]
    curves = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
    assert curves == {"training": [3.0, 2.0], "validation": [3.5, 2.5]}
    with pytest.raises(ValueError, match="no loss to draw"):
        kt.plot_history({})
