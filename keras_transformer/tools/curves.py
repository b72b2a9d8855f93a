"""Plots of trainings, learning-rate schedules and positional encodings.

Functions named plot_… return a new figure, which a notebook shows; they open no window and save
nothing. Functions named save_… read run directories and write a picture.
"""

import os
from collections.abc import Mapping, Sequence

import keras
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator

from keras_transformer.layers.positional_embedding import sinusoidal_encoding
from keras_transformer.runs.run import History, Run
from keras_transformer.tools.plots import SIGNED, colour, new_figure, save_figure
from keras_transformer.utils import Path

# The x-axes of a run's history: unit and label.
OVER = {
    "step": (1, "steps"),
    "target_tokens": (1e6, "target tokens in millions"),
    "minutes": (1, "minutes"),
}
SCORES = {"val_bleu": "BLEU on the validation set", "val_chrf": "chrF on the validation set"}


def plot_learning_rate(
    schedule: keras.optimizers.schedules.LearningRateSchedule, steps: int = 20_000
) -> Figure:
    """Draws a learning-rate schedule.

    Args:
        schedule: A Keras `LearningRateSchedule`, such as `WarmupInverseSqrt`.
        steps: Number of steps.

    Returns:
        `matplotlib.figure.Figure`.

    Example:

    >>> figure = plot_learning_rate(WarmupInverseSqrt(d_model=512, warmup_steps=4000))
    """
    at = np.unique(np.linspace(0, steps - 1, 500).astype(int))
    figure = new_figure(6, 3.5)
    axis = figure.subplots()
    axis.plot(at + 1, keras.ops.convert_to_numpy(schedule(at)), color=colour(0))
    axis.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    return figure


def plot_position_encoding(length: int = 100, d_model: int = 128) -> Figure:
    """Draws the sinusoidal encoding: one row per position, one column per dimension.

    Args:
        length: Number of positions.
        d_model: D, number of dimensions.

    Returns:
        `matplotlib.figure.Figure`.

    Example:

    >>> plot_position_encoding(length=50, d_model=64).savefig("positions.png")
    """
    encoding = keras.ops.convert_to_numpy(sinusoidal_encoding(length, d_model))
    figure = new_figure(7, 4)
    axis = figure.subplots()
    image = axis.imshow(encoding, vmin=-1, vmax=1, cmap=SIGNED, aspect="auto")
    axis.set(xlabel="dimension", ylabel="position", title="sinusoidal positional encoding")
    figure.colorbar(image)
    return figure


def plot_history(
    history: Mapping[str, Sequence[float]] | keras.callbacks.History,
) -> Figure:
    """Draws training and validation loss, epoch by epoch.

    Args:
        history: The return value of `model.fit(…)`, or a dict of lists such as `train` returns.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: If it has no loss.

    Example:

    >>> history = model.fit(dataset, validation_data=dataset, shuffle=False, verbose=0)
    >>> plot_history(history).savefig("history.png")
    """
    if isinstance(history, keras.callbacks.History):
        history = history.history
    if not history.get("loss"):
        raise ValueError("The history has no loss: pass the history of `fit`.")
    figure = new_figure(6, 3.5)
    axis = figure.subplots()
    epochs = range(1, len(history["loss"]) + 1)
    curves = (("loss", "training", "o--"), ("val_loss", "validation", "s-"))
    for number, (name, label, style) in enumerate(curves):
        if name in history:
            axis.plot(epochs, history[name], style, color=colour(number), label=label)
    axis.set(xlabel="epoch", ylabel="loss in nats per token", yscale=_scale(axis))
    axis.locator_params(axis="x", integer=True)
    axis.legend()
    return figure


def plot_run(history: History) -> Figure:
    """Draws a training's learning rate, losses, and BLEU and chrF if they were measured.

    Learning rate and losses are drawn over steps; BLEU and chrF over target tokens and over
    minutes, by which recipes are compared.

    Args:
        history: List of dicts, one for each validation, of `step`, `target_tokens` and `minutes`,
            all since the start of the training; `learning_rate`; `loss` and `val_loss` in nats per
            token; and, optionally, `val_bleu` and `val_chrf` (0–100). None means that a value is
            unknown.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: If it has no validation.

    Example:

    >>> first = {"step": 500, "target_tokens": 1e6, "minutes": 2, "learning_rate": 1e-3}
    >>> history = [first | {"loss": 4.1, "val_loss": 3.9, "val_bleu": 12.5}]
    >>> figure = plot_run(history)
    """
    return plot_runs({"": history})


def plot_runs(histories: Mapping[str, History]) -> Figure:
    """Draws several trainings into one figure, each in its own colour.

    Args:
        histories: Dict of names and histories, each as `plot_run` takes it.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: If there is no history, or one has no validation.

    Example:

    >>> first = {"step": 500, "target_tokens": 1e6, "minutes": 2, "learning_rate": 1e-3}
    >>> history = [first | {"loss": 4.1, "val_loss": 3.9, "val_bleu": 12.5}]
    >>> figure = plot_runs({"seed 1": history, "seed 2": history})
    """
    if not histories or not all(histories.values()):
        raise ValueError("The history has no validation: pass the history of a run.")
    panels = [
        ("step", ["learning_rate"], "learning rate"),
        ("step", ["val_loss", "loss"], "loss in nats per token"),
    ]
    for name, title in SCORES.items():
        if any(_points(history, "step", name) for history in histories.values()):
            panels += [(over, [name], title) for over in ("target_tokens", "minutes")]
    rows = len(panels) // 2
    figure = new_figure(9, 0.4 + 3 * rows)
    axes = figure.subplots(rows, 2, squeeze=False)
    for axis, (over, names, title) in zip(axes.flat, panels, strict=True):
        unit, label = OVER[over]
        for number, history in enumerate(histories.values()):
            for name, style in zip(names, (".-", ".--"), strict=False):
                points = np.array(_points(history, over, name), float).reshape(-1, 2)
                axis.plot(points[:, 0] / unit, points[:, 1], style, color=colour(number))
        axis.set(xlabel=label, ylabel=title, xlim=(0, None))
        axis.grid(alpha=0.3)
    rate_axis, loss_axis = axes[0]
    for axis in axes[0]:
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))  # 20k rather than 20000
    rate_axis.set_ylim(0, None)
    rate_axis.ticklabel_format(axis="y", scilimits=(-2, 3))
    if _scale(loss_axis) == "log":
        loss_axis.set_yscale("log")
        loss_axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    loss_axis.yaxis.set_major_formatter("{x:g}")  # 3 rather than 3 × 10⁰
    loss_axis.minorticks_off()
    styles = [Line2D([], [], color="black", linestyle=style) for style in ("-", "--")]
    loss_axis.legend(styles, ["validation", "training"])
    if len(histories) > 1:
        colours = [Line2D([], [], color=colour(number)) for number in range(len(histories))]
        figure.legend(colours, list(histories), loc="outside lower center", ncols=3)
    return figure


def save_run_plot(path: Path) -> str:
    """Draws a run's `history.csv` and saves the picture in the run directory.

    Args:
        path: A run directory.

    Returns:
        Name of the picture, `curves.png` in that directory.

    Raises:
        ValueError: If there is no history, or it has no validation.

    Example:

    >>> save_run_plot("runs/dates")
    'runs/dates/curves.png'
    """
    output = os.path.join(path, "curves.png")
    save_runs_plot([path], output)
    return output


def save_runs_plot(paths: Sequence[Path], output: Path) -> Path:
    """Draws the histories of runs into one picture, labelled by the names of their directories."""
    names = [os.path.basename(os.path.abspath(path)) for path in paths]
    if len(set(names)) < len(names):
        names = [os.fspath(path) for path in paths]
    figure = plot_runs({n: Run(path).read_history() for n, path in zip(names, paths, strict=True)})
    return save_figure(figure, output)


def _points(history, over, name):
    """Returns the (x, y) pairs of finite values."""
    pairs = np.array([(row.get(over), row.get(name)) for row in history], float)  # None: NaN
    return pairs[np.isfinite(pairs).all(axis=1)].tolist()


def _scale(axis):
    """Returns the scale of the loss axis: logarithmic if there are positive values."""
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axis.lines])
    return "log" if np.any(np.isfinite(values) & (values > 0)) else "linear"
