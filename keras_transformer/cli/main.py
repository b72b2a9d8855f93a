"""The command line, `keras-transformer`: thin, every command is a function scripts can call.

Results go to stdout, everything else to stderr. A mistake of the user's gives one sentence and
exit status 2. TensorFlow is imported by the commands that need it, not for their help texts.
"""

import argparse
import dataclasses
import json
import logging
import os
import platform
import sys

import tyro

from keras_transformer.cli.serving import check, export
from keras_transformer.cli.text import (
    DEFAULTS,
    SearchOptions,
    align,
    score,
    set_threads,
    translate,
)
from keras_transformer.presets import GREEDY, PRESETS, TrainConfig, get_preset


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a model into a run directory."""

    output: str
    """Directory to make; it must not hold another run."""
    preset: str = "dates"
    """dates, tiny, small, base or big: the defaults of all options below."""
    resume: bool = False
    """Go on with the run in --output from its last whole epoch."""
    plot: bool = False
    """Draw learning rate, loss and BLEU into curves.png in --output."""
    config: tyro.conf.OmitArgPrefixes[TrainConfig] = PRESETS["dates"]

    def run(self) -> None:
        """Carries the command out."""
        from keras_transformer.train import train

        train(self.config, self.output, resume=self.resume)
        if self.plot:
            from keras_transformer.visualization.curves import save_run_plot

            print(f"curves drawn into {save_run_plot(self.output)}", file=sys.stderr)


def evaluate(
    path: tyro.conf.Positional[str],
    source: str | None = None,
    target: str | None = None,
    bleu_tokenize: str | None = None,
    compare: str | None = None,
    n_bootstrap: int = 1000,
    json: bool = False,
    precision: str | None = None,
    search: tyro.conf.OmitArgPrefixes[SearchOptions] = DEFAULTS,
) -> None:
    """Compare translations with references: BLEU, chrF and exact match.

    Args:
        path: A run directory, a SavedModel (its version directory, or the one above), or a text
            file of translations, line by line.
        source: Sentences to translate: text, .gz, or a .tsv with both columns. Without it, the
            held-out test of the built-in dates.
        target: Their translations, line by line.
        bleu_tokenize: sacreBLEU's tokenizer; none for text that is tokenized already. By default
            the one that the run was validated by; of translations in a file, 13a.
        compare: Another system, given like the first: are their scores different, or is it chance?
        n_bootstrap: Samples for 95 % intervals and p-values; 0 for none of these.
        json: Print one JSON object.
        precision: What runs compute in: float32, mixed_bfloat16, mixed_float16 or auto (timed
            here); by default as they were trained, but in float32 where that is as fast.
        search: How to search, of both systems.
    """
    from keras_transformer.corpora.dates import LANGUAGES, dates
    from keras_transformer.corpora.text_files import read_pairs
    from keras_transformer.evaluate import bleu_tokenizer, open_system
    from keras_transformer.evaluate import evaluate as measure
    from keras_transformer.runs import files

    if source:
        pairs = read_pairs(source, target)
    elif target:
        raise ValueError("--source is missing: name the sentences that --target translates.")
    else:
        languages: tuple[str, ...] = LANGUAGES
        if files.is_run(path):
            config = files.read_config(path)
            if config.train_source:
                raise ValueError(f"{path} was not trained on dates: name --source and --target.")
            languages = config.languages or LANGUAGES
        pairs = dates(languages).test
    set_threads(path, compare, precision=precision)
    options = dict(search=search.config, precision=precision)
    system = open_system(path, **options)
    other = open_system(compare, **options) if compare else None
    chosen = search.config != GREEDY or precision
    if chosen and not callable(system) and not callable(other):
        raise ValueError(
            f"{path} holds translations: leave out the options of the search and --precision."
        )
    report = measure(system, pairs, bleu_tokenize or bleu_tokenizer(path), other, n_bootstrap)
    if other:
        report["comparison"]["system"] = compare
    _print_report(report, json)


def average(
    path: tyro.conf.Positional[str],
    output: tyro.conf.Positional[str],
    number: int = 5,
    by: str = "best",
) -> None:
    """Make a run whose model is the mean of several checkpoints of another, and validate it.

    Args:
        path: A run directory.
        output: Directory to make.
        number: Number of checkpoints.
        by: best or last.
    """
    from keras_transformer.runs.averaging import average

    average(path, output, number, by)


def plot(runs: tyro.conf.Positional[tuple[str, ...]], output: str = "curves.png") -> None:
    """Draw learning rate, losses, BLEU and chrF of one or several trainings into a picture.

    Args:
        runs: Run directories; in the picture, they go by the directories' names.
        output: Picture to write: .png, .pdf or .svg.
    """
    from keras_transformer.visualization.curves import save_runs_plot

    if not runs:
        raise ValueError("There is nothing to draw: name one run directory or several.")
    print(save_runs_plot(runs, output))


def main() -> None:
    """Entry point of `keras-transformer`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if platform.machine() in ("x86_64", "AMD64"):
        # Without AVX512-VNNI TensorFlow leaves oneDNN off, though it pays there too: with AVX2, a
        # step of training takes 0.85 of the time.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            {
                "train": _with_defaults_of_preset(sys.argv[1:]),
                "translate": translate,
                "evaluate": evaluate,
                "score": score,
                "align": align,
                "plot": plot,
                "average": average,
                "export": export,
                "check": check,
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
    if other := report.get("comparison"):
        _print_scores(other, f" of {other['system']}")
    _print_scores(report)


def _print_scores(report, of=""):
    if report["lines_per_second"]:
        print(f"lines per second{of}: {report['lines_per_second']:.1f}, the model loaded already")
    for name, title in (("bleu", "BLEU"), ("chrf", "chrF")):
        line = f"{title}{of}: {report[name]:.2f}"
        if f"{name}_interval" in report:
            low, high = report[f"{name}_interval"]
            line += f" (95 % interval {low:.2f} to {high:.2f})"
        if f"{name}_p_value" in report:
            line += f", difference by chance: p = {report[f'{name}_p_value']:.3f}"
        print(line)
    print(f"exact match{of}: {report['exact_match']:.1f} %")


if __name__ == "__main__":
    main()
