"""The commands that create runs: `prepare`, `train`, `config`, `import` and `average`."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

from keras_transformer.cli.text import Language
from keras_transformer.presets import PRESETS, PrepareConfig, TrainConfig, change, get_preset
from keras_transformer.utils import check_stdout

DEFAULT_PRESET = "dates"
# Fields, in addition to the text, that fine-tuning does not inherit from the run of --start-from.
NOT_INHERITED = (
    *("corpus", "valid_fraction", "languages", "start_from", "freeze"),
    "subword_sampling",
)


def prepare(
    *,
    output: Annotated[str, "directory to create"],
    processes: Annotated[int | None, "blocks of text tokenized at once; none: one per core"] = None,
    corpus: Annotated[dict[str, Any], PrepareConfig],
) -> None:
    """Tokenize a corpus of any size once, for train --corpus.

    The output depends on the text and the options only, unless segmentations are sampled.
    """
    from keras_transformer.runs.training_data import prepare

    prepare(PrepareConfig(**corpus), output, processes)


def train(
    *,
    output: Annotated[str, "directory of the run to create or resume"],
    preset: Annotated[
        str | None, f"defaults: {', '.join(PRESETS)} (if unset: {DEFAULT_PRESET})"
    ] = None,
    config: Annotated[str | None, "defaults from a file, such as config.yaml of a run"] = None,
    resume: Annotated[bool, "resume the run in --output from its last checkpoint"] = False,
    plot: Annotated[bool, "draw the training curves into curves.png in --output"] = False,
    options: Annotated[dict[str, Any], TrainConfig],
) -> None:
    """Train a model and write it into a run directory.

    The help shows the defaults of --preset or --config, or those of the preset dates.

    Without options for the data, the command trains a small model that converts written dates to
    ISO 8601, in minutes: keras-transformer train --output runs/dates. To train on your own text,
    two files with one sentence per line: keras-transformer train --preset tiny --train-source FILE
    --train-target FILE --valid-fraction 0.02 --output runs/mine.

    Exit status 3 means that the training diverged; earlier checkpoints are kept.
    """
    from keras_transformer.runs.training_data import check_training

    chosen = configure(options, output, preset, config, resume)
    run = check_training(chosen, output, resume)  # before TensorFlow is imported, for seconds
    has_preset = preset or config or resume or chosen.start_from
    if chosen.train_source and not has_preset and "model_type" not in options:
        print(
            f"warning: the default, --preset {DEFAULT_PRESET}, splits text into characters: give "
            "--preset tiny or small for ordinary text.",
            file=sys.stderr,
        )
    from keras_transformer.train import train_run

    train_run(chosen, run, resume)
    if plot:
        from keras_transformer.tools.curves import save_run_plot

        print(f"curves: {save_run_plot(output)}", file=sys.stderr)


def configure(
    options: Mapping[str, Any],
    output: str | None = None,
    preset: str | None = None,
    config: str | None = None,
    resume: bool = False,
) -> TrainConfig:
    """Builds the configuration of a training.

    The given fields of `TrainConfig` and `ModelConfig` override the preset, the file or the run
    that the other arguments, which are options of `train`, name.
    """
    if preset and config:
        raise ValueError("--preset and --config cannot be used together: leave out one of the two.")
    resumed, origin = output if resume else None, options.get("start_from")
    if preset or not (config or resumed or origin):
        base, values = get_preset(preset or DEFAULT_PRESET), {}
    else:
        base, values = _read_base(config, resumed, origin)
    if options.get("corpus") and not resume:
        from keras_transformer.runs.training_data import parse_corpora, vocabulary_options

        values |= vocabulary_options(parse_corpora(options["corpus"])[0][0])
    return change(base, {**values, **options})


def _read_base(config, resumed, origin):
    """Reads the configuration of a file or of a run, and the fields that replace some of it."""
    # Here, as `train --help` needs no YAML, whose module would take a quarter of its time.
    from keras_transformer.runs.run import TEXTS, VECTORS, VOCABULARIES, Run, read_values

    if config:
        return TrainConfig(), read_values(config)
    if resumed:
        return Run(resumed).read_config(), {}
    base = Run(origin).read_config()
    names = (*TEXTS, *VOCABULARIES, *VECTORS, *NOT_INHERITED)
    return base, {name: getattr(TrainConfig, name) for name in names} | _gentle_schedule(base)


def _gentle_schedule(base):
    """The schedule of a fine-tuning: that of a training from scratch would undo what was learned.

    A run that was fine-tuned itself passes its own schedule on.
    """
    if base.start_from is not None:
        return {}
    rate = base.learning_rate or (base.model.d_model * base.warmup_steps) ** -0.5
    schedule = {"learning_rate": float(f"{rate / 10:.1e}"), "warmup_steps": 50, "cooldown_steps": 0}
    batch = max(1024, base.model.max_length)
    return schedule | {"epochs": 5, "steps_per_epoch": None, "tokens_per_batch": batch}


def find_train_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults of the options of `train` after the given ones, for its help."""
    bases = {
        name: given[name] for name in ("output", "preset", "config", "resume") if name in given
    }
    chosen = configure({k: v for k, v in given.items() if k not in (*bases, "plot")}, **bases)
    return vars(chosen.model) | vars(chosen)


def config(preset: Annotated[str, ", ".join(PRESETS)] = DEFAULT_PRESET) -> None:
    """Print a preset as YAML with comments, for train --config."""
    from keras_transformer.runs.run import to_yaml

    check_stdout()
    print(to_yaml(get_preset(preset)), end="")


def import_(
    path: Annotated[
        str,
        "folder or zip of Hugging Face or of OPUS-MT, run directory of OpenNMT-tf 2, or a name "
        "such as Helsinki-NLP/opus-mt-en-de",
    ],
    output: Annotated[str, "run directory to create"],
    /,
    num_heads: Annotated[int | None, "heads, for models outside of OpenNMT-tf's catalog"] = None,
    activation: Annotated[str | None, "their activation, relu or silu; if unset: relu"] = None,
    source_language: Language = None,
    target_language: Language = None,
) -> None:
    """Import a model of OPUS-MT (Marian), M2M100, NLLB or OpenNMT-tf as a run for all commands.

    Nothing in its files is executed. Its beam size and length penalty become the defaults of
    translate, evaluate and export, and so do the languages that are given.
    """
    from keras_transformer.tools.importers.importing import import_model

    how = num_heads, activation, source_language, target_language
    print(import_model(path, output, *how))


def average(
    path: Annotated[str, "run directory"],
    output: Annotated[str, "directory to create"],
    /,
    number: Annotated[int, "checkpoints to average; see train --keep-checkpoints"] = 5,
    by: Annotated[str, "best or last checkpoints"] = "best",
) -> None:
    """Average checkpoints of a run into a new run, and validate it."""
    from keras_transformer.runs.averaging import average

    average(path, output, number, by)
