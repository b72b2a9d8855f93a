"""The attention of a run or an export while it translates a text, as a picture in a file."""

from collections.abc import Sequence

from keras_transformer.runs.models import open_model
from keras_transformer.serving.exported_translator import ExportedTranslator
from keras_transformer.translation.results import KINDS
from keras_transformer.typing import Path
from keras_transformer.visualization.figures import check_output, save_figure


def save_attention_plot(
    path: Path,
    text: str,
    output: Path,
    target: str | None = None,
    kind: str = "cross",
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    precision: str | None = None,
) -> Path:
    """Draws what a model attends to while it translates a text.

    Args:
        path: A run directory; or a SavedModel with the signature `attention`, which answers with
            the mean of the heads of one layer, of its own translation.
        text: The source.
        output: Name of the picture; its ending, such as `.png`, `.pdf` or `.svg`, says of what
            format. It appears complete or not at all.
        target: A translation to look at instead of the model's own, greedy one.
        kind: "cross", from the translation to the source; "encoder" or "decoder", from each side
            to itself.
        layers, heads: Numbers, from 0, of those to draw; all if there is none.
        precision: What a run computes in, as `load` has it.

    Returns:
        `output`.

    Raises:
        ValueError: If the text is empty, there is no such kind, layer or head, an export is asked
            for more than it answers, or the picture cannot be written.

    Example:

    >>> save_attention_plot("runs/dates", "samedi 9 mai 1998", "map.png", layers=[1])
    """
    check_output(output)
    if not text.strip():
        raise ValueError("There is nothing to look at: the text is empty.")
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: choose from {', '.join(KINDS)}.")
    model = open_model(path, precision)
    if isinstance(model, ExportedTranslator):
        if target is not None or kind != "cross" or layers or heads:
            raise ValueError(
                f"{path} is a SavedModel, which answers with the mean of the heads of one layer, "
                "of its own translation: leave out --target, --kind, --layer and --head, or give "
                "the run directory it was exported from."
            )
        (maps,) = model.attention([text])
        scores, titles = maps.scores[kind], ["mean of the heads of one layer"]
    else:
        maps, scores, titles = _of_run(model, text, target, kind, layers, heads)
    from keras_transformer.visualization.attention import plot_attention

    keys, queries = maps.labels(kind)
    return save_figure(plot_attention(scores, keys, queries, titles), output)


def _of_run(translator, text, target, kind, layers, heads):
    """`AttentionMaps`, those to be drawn and their titles."""
    from keras_transformer.translation.inspection import attention_maps
    from keras_transformer.translation.translator import check_numbers

    translator.run_eagerly()
    counts = translator.model.num_layers, translator.model.num_heads
    layers = check_numbers("layer", layers or range(counts[0]), counts[0])
    heads = check_numbers("head", heads or range(counts[1]), counts[1])
    maps = attention_maps(translator, text, target)
    titles = [f"layer {layer}, head {head}" for layer in layers for head in heads]
    return maps, maps.scores[kind][list(layers)][:, list(heads)], titles
