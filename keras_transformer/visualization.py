"""Pictures: attention maps, position encodings, learning-rate schedules and loss curves.

Every function draws into axes or a new figure and returns the figure; nothing is shown or saved.
"""

import math

import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_transformer.layers.positional_embedding import sinusoidal_encoding


def plot_attention(attention_scores, source_tokens, target_tokens, titles=None):
    """Draws which source position each target position attends to, one map per head.

    Args:
        attention_scores: Array of shape `(H, T, S)`, or `(T, S)` for a single map: one sentence's
            weights from `model(…, return_attention_scores=True)`.
        source_tokens: S strings, the columns.
        target_tokens: T strings, the rows.
        titles: A title per map; by default "head 1" and so on.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the tokens do not match the scores' shape.
    """
    scores = keras.ops.convert_to_numpy(attention_scores)
    scores = scores[np.newaxis] if scores.ndim == 2 else scores
    expected = (len(target_tokens), len(source_tokens))
    if scores.ndim != 3 or scores.shape[1:] != expected:
        raise ValueError(
            f"Attention scores of shape {scores.shape} do not fit {expected[0]} target and "
            f"{expected[1]} source tokens: pass one sentence's (heads, target, source)."
        )
    heads = len(scores)
    columns = min(heads, 2)
    rows = math.ceil(heads / columns)
    width = 1.2 + 0.22 * len(source_tokens)
    height = 1.2 + 0.22 * len(target_tokens)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(columns * width, rows * height),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for i, axis in enumerate(axes.flat):
        if i >= heads:
            axis.axis("off")
            continue
        axis.imshow(scores[i], vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axis.set_title(titles[i] if titles else f"head {i + 1}")
        axis.set_xticks(range(len(source_tokens)), source_tokens)
        axis.set_yticks(range(len(target_tokens)), target_tokens)
    return figure


def plot_position_encoding(length=100, d_model=128):
    """Draws the sinusoidal encoding: positions downwards, its entries to the right.

    Args:
        length: Number of positions.
        d_model: D, number of entries.

    Returns:
        `matplotlib.figure.Figure`.
    """
    encoding = keras.ops.convert_to_numpy(sinusoidal_encoding(length, d_model))
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    image = axis.imshow(encoding, vmin=-1, vmax=1, cmap="RdBu", aspect="auto")
    axis.set(xlabel="entry", ylabel="position", title="sinusoidal position encoding")
    figure.colorbar(image)
    return figure


def plot_learning_rate(schedule, steps=20_000):
    """Draws a learning-rate schedule.

    Args:
        schedule: A Keras `LearningRateSchedule`, such as `WarmupInverseSqrt`.
        steps: Number of updates.

    Returns:
        `matplotlib.figure.Figure`.
    """
    at = np.unique(np.linspace(0, steps - 1, 500).astype(int))
    figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axis.plot(at + 1, keras.ops.convert_to_numpy(schedule(at)))
    axis.set(xlabel="update", ylabel="learning rate", ylim=(0, None))
    return figure


def plot_history(history):
    """Draws training and validation loss, epoch by epoch.

    Args:
        history: What `model.fit(…).history` holds and `train` returns: a dict of lists.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: If there is no loss in it.
    """
    if not history.get("loss"):
        raise ValueError("There is no loss to draw: pass the history of a training.")
    figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
    epochs = range(1, len(history["loss"]) + 1)
    for name, label in (("loss", "training"), ("val_loss", "validation")):
        if name in history:
            axis.plot(epochs, history[name], marker="o", label=label)
    axis.set(xlabel="epoch", ylabel="loss in nats per token", yscale="log")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend()
    return figure
