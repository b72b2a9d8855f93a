"""The commands that make runs: `prepare`, `train`, `config` and `average`."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

from keras_transformer.presets import PRESETS, PrepareConfig, TrainConfig, change, get_preset
from keras_transformer.runs.streams import check_stdout

DEFAULT = "dates"
# Beside the text, what a training on other text does not take from the run that it starts from.
OTHER_TEXT = (
    *("corpus", "valid_fraction", "languages", "start_from", "freeze", "freeze_vectors"),
    "log_file",
)


def prepare(
    *,
    output: Annotated[str, "directory to make"],
    processes: Annotated[int | None, "how many tokenize; none: one for each core"] = None,
    corpus: PrepareConfig,
) -> None:
    """Tokenize a corpus of any size once, for train --corpus.

    The same text and options give the same bytes. If it is interrupted, the same command resumes
    after the last complete shard.
    """
    from keras_transformer.runs.training_data import prepare

    prepare(corpus, output, processes)


def train(
    *,
    output: Annotated[str, "directory to make; it must not hold another run"],
    preset: Annotated[
        str | None, f"defaults of all other options: {', '.join(PRESETS)} (if unset: {DEFAULT})"
    ] = None,
    config: Annotated[
        str | None, "file with these defaults instead, such as config.yaml of a run to repeat"
    ] = None,
    resume: Annotated[bool, "continue the run in --output from its last checkpoint"] = False,
    accept_changed_text: Annotated[
        bool, "with --resume: continue even though the text has changed"
    ] = False,
    plot: Annotated[bool, "draw learning rate, loss and BLEU into curves.png in --output"] = False,
    options: Annotated[dict[str, Any], TrainConfig],
) -> None:
    """Train a model into a run directory.

    Exit status 3: the training has diverged; what was saved before that is kept.
    """
    from keras_transformer.runs.checks import check_training
    from keras_transformer.runs.run import Run

    chosen, run = configure(options, output, preset, config, resume), Run(output)
    check_training(chosen, run, resume)  # before TensorFlow is imported, which takes seconds
    from keras_transformer.train import train

    train(chosen, run, resume, accept_changed_text)
    if plot:
        from keras_transformer.visualization.curves import save_run_plot

        print(f"curves drawn into {save_run_plot(output)}", file=sys.stderr)


def configure(
    options: Mapping[str, Any],
    output: str | None = None,
    preset: str | None = None,
    config: str | None = None,
    resume: bool = False,
) -> TrainConfig:
    """Makes the configuration of a training.

    Args:
        options: The given fields of `TrainConfig` and `ModelConfig`, which change the configuration
            that the other arguments lead to, or a run to start from.
        output, preset, config, resume: Options of `train`.

    Returns:
        `TrainConfig`.

    Raises:
        ValueError: If it is invalid, or what it is based on is missing or named twice.
    """
    if preset and config:
        raise ValueError("--preset and --config both say how to train: leave out one of the two.")
    base, values = PRESETS[DEFAULT], {}
    if preset:
        base = get_preset(preset)
    elif config:
        from keras_transformer.runs.configuration import read_values

        base, values = TrainConfig(), read_values(config)
    elif resume and output:
        from keras_transformer.runs.run import Run

        base = Run(output).read_config()
    elif options.get("start_from"):
        from keras_transformer.runs.run import TEXTS, VECTORS, VOCABULARIES, Run

        base = Run(options["start_from"]).read_config()
        names = (*TEXTS, *VOCABULARIES, *VECTORS, *OTHER_TEXT)
        values = {name: getattr(TrainConfig, name) for name in names}
    if options.get("corpus") and not resume:
        from keras_transformer.runs.checks import parse_corpora, vocabulary_options

        values |= vocabulary_options(parse_corpora(options["corpus"])[0][0])
    return change(base, {**values, **options})


def defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the options of `train` that the given ones lead to, for its help."""
    bases = {
        name: given[name] for name in ("output", "preset", "config", "resume") if name in given
    }
    others = (*bases, "accept_changed_text", "plot")
    chosen = configure({k: v for k, v in given.items() if k not in others}, **bases)
    return vars(chosen.model) | vars(chosen)


def config(preset: Annotated[str, ", ".join(PRESETS)] = DEFAULT) -> None:
    """Print a configuration with comments, for train --config."""
    from keras_transformer.runs.configuration import to_yaml

    check_stdout()
    print(to_yaml(get_preset(preset)), end="")


def average(
    path: Annotated[str, "run directory"],
    output: Annotated[str, "directory to make"],
    /,
    number: Annotated[
        int, "how many checkpoints; as many must have been kept (train --keep-checkpoints)"
    ] = 5,
    by: Annotated[str, "which of them: best or last"] = "best",
) -> None:
    """Make a run whose model is the mean of several checkpoints of another, and validate it."""
    from keras_transformer.runs.models import average

    average(path, output, number, by)
