"""The commands `attention`, `plot` and `explore`, which show what a model does."""

import sys
from typing import Annotated

from keras_transformer.cli.text import Precision, set_threads


def attention(
    path: Annotated[
        str,
        "run directory; or SavedModel with the signature attention, which draws the mean of the "
        "heads of one layer: leave out --target, --kind, --layers and --heads",
    ],
    text: Annotated[str, "the sentence to translate"],
    /,
    output: Annotated[str, "picture to write: .png, .pdf or .svg"] = "attention.png",
    target: Annotated[str | None, "translation to show instead of the model's own"] = None,
    kind: Annotated[
        str, "cross, from the translation to the source; encoder or decoder, from a side to itself"
    ] = "cross",
    layers: Annotated[tuple[int, ...], "layers to draw, from 1; default: all"] = (),
    heads: Annotated[tuple[int, ...], "heads to draw, from 1; default: all"] = (),
    precision: Precision = None,
) -> None:
    """Draw what each token of a translation attends to: rows are queries, columns keys."""
    from keras_transformer.visualization.figures import check_output

    check_output(output)  # before TensorFlow is imported
    (model,) = set_threads(path, precision=precision)
    from keras_transformer.visualization.attention import save_attention_plot

    print(save_attention_plot(model, text, output, target, kind, layers, heads, precision))


def plot(
    run: Annotated[
        tuple[str, ...], "run directory, or several; the picture shows the directories' names"
    ],
    /,
    output: Annotated[str, "picture to write: .png, .pdf or .svg"] = "curves.png",
) -> None:
    """Draw learning rate, losses, BLEU and chrF of one or several trainings into a picture."""
    from keras_transformer.visualization.curves import save_runs_plot

    print(save_runs_plot(run, output))


def explore(
    path: Annotated[
        str,
        "run directory; or SavedModel (its version directory, or the one above), best exported "
        "with explore, beam and sample among --signatures",
    ],
    /,
    port: Annotated[int, "port to listen on; 0: any that is free"] = 0,
    no_browser: Annotated[bool, "print the address, and open no browser"] = False,
) -> None:
    """Open a local web page that shows how a model translates a sentence.

    The page shows the translation, the attention weights of every layer and head, and other
    translations by beam search and random sampling. Select a target token to see its alternatives;
    select one of these, and the translation continues from there. The command prints the page's
    address, which contains a secret token and is reachable from this machine only. Press Ctrl-C to
    stop.
    """
    from keras_transformer.visualization.explorer.server import listen, open_explorer

    with listen(port) as listening:
        (model,) = set_threads(path)
        explorer = open_explorer(model, listening)
        print(explorer.address, flush=True)
        print("Press Ctrl-C to stop the explorer.", file=sys.stderr)
        explorer.run(browser=not no_browser)
