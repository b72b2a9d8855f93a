"""The commands `attention`, `plot` and `explore`, which visualize a model and its training."""

import sys
from typing import Annotated

from keras_transformer.cli.text import Precision, set_threads


def attention(
    path: Annotated[
        str,
        "run directory; or SavedModel with the signature attention, which draws the mean of the "
        "heads of one layer: leave out --target, --kind, --layers and --heads",
    ],
    text: Annotated[str, "sentence to translate"],
    /,
    output: Annotated[str, "picture to write: .png, .pdf or .svg"] = "attention.png",
    target: Annotated[str | None, "translation to show instead of the model's"] = None,
    kind: Annotated[
        str, "cross-attention (cross), or self-attention of the encoder or the decoder"
    ] = "cross",
    layers: Annotated[tuple[int, ...], "layers to draw, from 1; default: all"] = (),
    heads: Annotated[tuple[int, ...], "heads to draw, from 1; default: all"] = (),
    precision: Precision = None,
) -> None:
    """Draw the attention weights of a translation: rows are queries, columns are keys."""
    from keras_transformer.tools.figures import check_output

    check_output(output)  # before TensorFlow is imported
    (model,) = set_threads(path, precision=precision)
    from keras_transformer.tools.translation_plots import save_attention_plot

    print(save_attention_plot(model, text, output, target, kind, layers, heads, precision))


def plot(
    run: Annotated[tuple[str, ...], "one or more run directories; the legend has their names"],
    /,
    output: Annotated[str, "picture to write: .png, .pdf or .svg"] = "curves.png",
) -> None:
    """Draw learning rate, losses, BLEU and chrF of one or more trainings."""
    from keras_transformer.tools.curves import save_runs_plot

    print(save_runs_plot(run, output))


def explore(
    path: Annotated[
        str,
        "run directory; or SavedModel (its version directory, or the one above), exported with the "
        "signatures explore, beam and sample for all views",
    ],
    /,
    port: Annotated[int, "port to listen on; 0: any free port"] = 0,
    no_browser: Annotated[bool, "print the address only, without opening a browser"] = False,
) -> None:
    """Open a local web page that shows how a model translates a sentence.

    The page shows the translation, the attention weights of every layer and head, and other
    translations by beam search and random sampling. Select a target token to see its alternatives;
    select one of these, and the translation continues from there. The command prints the page's
    address, which contains a secret token and is reachable from this machine only. Press Ctrl-C to
    stop.
    """
    from keras_transformer.tools.explorer.server import listen, open_explorer

    with listen(port) as listening:
        (model,) = set_threads(path)
        explorer = open_explorer(model, listening)
        print(explorer.address, flush=True)
        print("Press Ctrl-C to stop the explorer.", file=sys.stderr)
        explorer.run(browser=not no_browser)
