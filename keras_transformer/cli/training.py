"""The commands `train` and `config`: a training from options, a preset, a file or another run."""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import tyro

from keras_transformer.presets import PRESETS, TrainConfig, get_preset
from keras_transformer.runs.streams import check_stdout

DEFAULT = "dates"
# What a training on other text does not have from the run that it starts from, beside the text.
OTHER_TEXT = (
    *("corpus", "valid_fraction", "languages", "start_from", "freeze", "freeze_vectors"),
    "log_file",
)


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a model into a run directory.

    Exit status 3: the training has diverged; what was saved before that is kept.
    """

    output: str
    """Directory to make; it must not hold another run."""
    preset: str | None = None
    """dates (if none is named), tiny, small, base or big: the defaults of all options below."""
    config: str | None = None
    """File with the defaults instead, such as the config.yaml of a run, which it repeats."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Go on with the run in --output, as it was begun, from where it was saved last."""
    accept_changed_text: tyro.conf.FlagCreatePairsOff[bool] = False
    """With --resume: go on though the text is another than the run was begun with."""
    plot: tyro.conf.FlagCreatePairsOff[bool] = False
    """Draw learning rate, loss and BLEU into curves.png in --output."""
    training: tyro.conf.OmitArgPrefixes[TrainConfig] = PRESETS[DEFAULT]

    def run(self) -> None:
        """Carries the command out."""
        from keras_transformer.runs.checks import check_training
        from keras_transformer.runs.run import Run

        # Mistakes first: importing TensorFlow takes seconds.
        run = Run(self.output)
        check_training(self.training, run, self.resume)
        from keras_transformer.train import train

        train(self.training, run, self.resume, self.accept_changed_text)
        if self.plot:
            from keras_transformer.visualization.curves import save_run_plot

            print(f"curves drawn into {save_run_plot(self.output)}", file=sys.stderr)


def config(preset: str = DEFAULT) -> None:
    """Print a configuration with comments, for train --config.

    Args:
        preset: dates, tiny, small, base or big.
    """
    from keras_transformer.runs.configuration import to_yaml

    check_stdout()
    print(to_yaml(get_preset(preset)), end="")


def train_command(arguments: Sequence[str]) -> type[Train]:
    """Makes the command `train`.

    Args:
        arguments: Those of the command line.

    Returns:
        `Train`, its options defaulting to what the preset, the file or the run says that they name.

    Raises:
        ValueError: If there is no such thing, or they name two.
    """
    field = dataclasses.field(default=_defaults(arguments))
    return dataclasses.make_dataclass(
        "Train",
        [("training", tyro.conf.OmitArgPrefixes[TrainConfig], field)],
        bases=(Train,),
        frozen=True,
        namespace={"__doc__": Train.__doc__},
    )


def _defaults(arguments):
    """The configuration that the options change."""
    if arguments[:1] != ["train"]:
        return PRESETS[DEFAULT]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("preset", "config", "output", "start-from"):
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}")
    parser.add_argument("--corpus", nargs="*", action="extend")
    parser.add_argument("--resume", action="store_true")
    named = parser.parse_known_args(arguments)[0]
    if named.preset and named.config:
        raise ValueError("--preset and --config both say how to train: leave out one of the two.")
    config = _named(named)
    if named.corpus and named.corpus != ["none"] and not named.resume:
        from keras_transformer.runs.checks import parse_corpora, vocabulary_options

        first = parse_corpora(named.corpus)[0][0]
        config = dataclasses.replace(config, **vocabulary_options(first))
    return config


def _named(named):
    """The configuration of the preset, the file or the run that is named."""
    if named.preset:
        return get_preset(named.preset)
    from keras_transformer.runs import configuration
    from keras_transformer.runs.run import TEXTS, VECTORS, VOCABULARIES, Run

    if named.config:
        return configuration.from_yaml(named.config)
    if named.resume and named.output:
        return Run(named.output).read_config()
    if named.start_from:
        other = (*TEXTS, *VOCABULARIES, *VECTORS, *OTHER_TEXT)
        fresh = {name: getattr(TrainConfig(), name) for name in other}
        return dataclasses.replace(Run(named.start_from).read_config(), **fresh)
    return PRESETS[DEFAULT]
