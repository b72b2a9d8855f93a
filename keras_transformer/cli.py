"""The command line, `keras-transformer`: thin, every command is a function scripts can call.

Results go to stdout, everything else to stderr. A mistake of the user's gives one sentence and
exit status 2. TensorFlow is imported by the commands that need it, not for their help texts.
"""

import argparse
import dataclasses
import json
import logging
import os
import sys

import tyro

from keras_transformer.presets import PRESETS, TrainConfig, get_preset


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a model into a run directory."""

    output: str
    """Directory to make; it must not hold another run."""
    preset: str = "dates"
    """dates, tiny, small, base or big: the defaults of all options below."""
    resume: bool = False
    """Go on with the run in --output from its last whole epoch."""
    config: tyro.conf.OmitArgPrefixes[TrainConfig] = PRESETS["dates"]

    def run(self) -> None:
        """Carries the command out."""
        from keras_transformer.train import train

        train(self.config, self.output, resume=self.resume)


def translate(path: tyro.conf.Positional[str]) -> None:
    """Translate stdin to stdout, line by line.

    Args:
        path: A run directory, or a SavedModel (its version directory, or the one above).
    """
    from keras_transformer.run_directory import open_translator

    translator = open_translator(path)
    lines = sys.stdin.buffer.read().split(b"\n")
    if not lines[-1]:
        lines.pop()
    for line in translator(lines):
        # What the model writes is one line, whatever bytes it spells.
        sys.stdout.write(" ".join(line.splitlines()) + "\n")


def evaluate(
    path: tyro.conf.Positional[str],
    source: str | None = None,
    target: str | None = None,
    bleu_tokenize: str = "13a",
    json: bool = False,
) -> None:
    """Compare translations with references: BLEU, chrF and exact match.

    Args:
        path: A run directory, or a SavedModel (its version directory, or the one above).
        source: Sentences to translate: text, .gz, or a .tsv with both columns. Without it, the
            held-out test of the built-in dates.
        target: Their translations, line by line.
        bleu_tokenize: sacreBLEU's tokenizer; none for text that is tokenized already.
        json: Print one JSON object.
    """
    from keras_transformer import run_directory
    from keras_transformer.corpora.dates import LANGUAGES, dates
    from keras_transformer.corpora.text_files import read_pairs
    from keras_transformer.evaluate import evaluate as score

    if source:
        pairs = read_pairs(source, target)
    elif target:
        raise ValueError("--source is missing: name the sentences that --target translates.")
    else:
        languages = LANGUAGES
        if run_directory.is_run(path):
            config = run_directory.read_config(path)
            if config.train_source:
                raise ValueError(f"{path} was not trained on dates: name --source and --target.")
            languages = config.languages or LANGUAGES
        pairs = dates(languages).test
    report = score(run_directory.open_translator(path), pairs, bleu_tokenize)
    _print_report(report, json)


def export(
    path: tyro.conf.Positional[str], base: tyro.conf.Positional[str], version: int | None = None
) -> None:
    """Write a run as base/<version>/, a SavedModel that TF Serving takes as it is.

    Args:
        path: A run directory.
        base: Directory of the versions of this model.
        version: A free positive integer; by default one more than the highest there is.
    """
    from keras_transformer.run_directory import load
    from keras_transformer.saved_model import export as publish

    print(publish(load(path), base, version))


def main() -> None:
    """Entry point of `keras-transformer`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            {
                "train": _with_defaults_of_preset(sys.argv[1:]),
                "translate": translate,
                "evaluate": evaluate,
                "export": export,
            },
            prog="keras-transformer",
            description="Train, use and export Transformers that translate text.",
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        if isinstance(command, Train):
            command.run()
    except ValueError as error:
        print(f"keras-transformer: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # whoever read stdout, such as head, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)


def _with_defaults_of_preset(arguments):
    """`Train`, its options defaulting to what the preset on the command line says."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset", default="dates")
    config = get_preset(parser.parse_known_args(arguments)[0].preset)
    field = dataclasses.field(default=config)
    return dataclasses.make_dataclass(
        "Train",
        [("config", tyro.conf.OmitArgPrefixes[TrainConfig], field)],
        bases=(Train,),
        frozen=True,
        namespace={"__doc__": Train.__doc__},
    )


def _print_report(report, as_json):
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
        return
    for group, rate in report["by_group"].items():
        print(f"{group:12} {rate:6.1f} %")
    for row in report["worst"]:
        print(f"{row['source']}\n    expected {row['target']}, received {row['translation']}")
    print(f"{report['signature']}\nsentences: {report['sentences']}")
    print(f"BLEU: {report['bleu']:.2f}\nchrF: {report['chrf']:.2f}")
    print(f"exact match: {report['exact_match']:.1f} %")


if __name__ == "__main__":
    main()
