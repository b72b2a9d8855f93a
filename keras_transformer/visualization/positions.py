"""Position encodings."""

import keras
from matplotlib.figure import Figure

from keras_transformer.layers.positional_embedding import sinusoidal_encoding
from keras_transformer.visualization.figures import SIGNED, new_figure


def plot_position_encoding(length: int = 100, d_model: int = 128) -> Figure:
    """Draws the sinusoidal encoding: positions downwards, its entries to the right.

    Args:
        length: Number of positions.
        d_model: D, number of entries.

    Returns:
        `matplotlib.figure.Figure`, which no window shows: a notebook does where it is the value
        of a cell.

    Example:

    >>> plot_position_encoding(length=50, d_model=64).savefig("positions.png")
    """
    encoding = keras.ops.convert_to_numpy(sinusoidal_encoding(length, d_model))
    figure = new_figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(encoding, vmin=-1, vmax=1, cmap=SIGNED, aspect="auto")
    axis.set(xlabel="entry", ylabel="position", title="sinusoidal position encoding")
    figure.colorbar(image)
    return figure
