"""The commands `attention` and `plot`, which draw."""

from typing import Annotated

import tyro

from keras_transformer.cli.text import set_threads

Runs = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)"),
]


def attention(
    path: tyro.conf.Positional[str],
    text: tyro.conf.Positional[str],
    output: str = "attention.png",
    target: str | None = None,
    kind: str = "cross",
    layer: tuple[int, ...] = (),
    head: tuple[int, ...] = (),
    precision: str | None = None,
) -> None:
    """Draw what each token of a translation attends to: rows are queries, columns keys.

    Args:
        path: A run directory; or a SavedModel with the signature attention, which draws the mean of
            the heads of one layer: leave out --target, --kind, --layer and --head.
        text: The sentence to translate.
        output: Picture to write: .png, .pdf or .svg.
        target: A translation to look at instead of the model's own.
        kind: cross, from the translation to the source; encoder or decoder, from each side to
            itself.
        layer: Layers to draw, from 0; none: all.
        head: Their heads, from 0; none: all.
        precision: What a run computes in, as `translate` has it.
    """
    from keras_transformer.visualization.figures import check_output

    check_output(output)  # before TensorFlow is imported
    (model,) = set_threads(path, precision=precision)
    from keras_transformer.visualization.text_attention import save_attention_plot

    print(save_attention_plot(model, text, output, target, kind, layer, head, precision))


def plot(runs: Runs = (), output: str = "curves.png") -> None:
    """Draw learning rate, losses, BLEU and chrF of one or several trainings into a picture.

    Args:
        runs: Run directories; in the picture, they go by the directories' names.
        output: Picture to write: .png, .pdf or .svg.
    """
    from keras_transformer.visualization.curves import save_runs_plot

    if not runs:
        raise ValueError("There is nothing to draw: name one run directory or several.")
    print(save_runs_plot(runs, output))
