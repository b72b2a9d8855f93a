"""The command line, `keras-transformer`: thin, every command is a function scripts can call.

Results go to stdout, everything else to stderr. A mistake of the user's gives one sentence and
exit status 2, a training that diverges status 3. TensorFlow is imported by the commands that need
it, not for their help texts.
"""

import json
import logging
import os
import platform
import sys

import tyro

from keras_transformer.cli.exploring import explore
from keras_transformer.cli.parsing import parse_command
from keras_transformer.cli.pictures import attention, plot
from keras_transformer.cli.preparing import prepare
from keras_transformer.cli.serving import check, export
from keras_transformer.cli.text import (
    DEFAULTS,
    TARGET,
    SearchOptions,
    align,
    score,
    set_threads,
    translate,
)
from keras_transformer.cli.training import Train, config, train_command
from keras_transformer.presets import GREEDY
from keras_transformer.runs.streams import check_stdout

WORST = {"source": "source", "expected": "target", "received": "translation"}  # titles, keys
DIVERGED = 3  # exit status: the options are valid, and starting again as it was will not help
WIDTH = 90  # characters that are shown of a wrong translation


def evaluate(
    path: tyro.conf.Positional[str],
    source: str | None = None,
    target: str | None = None,
    bleu_tokenize: str | None = None,
    compare: str | None = None,
    n_bootstrap: int = 1000,
    worst: int = 0,
    json: bool = False,
    precision: str | None = None,
    search: tyro.conf.OmitArgPrefixes[SearchOptions] = DEFAULTS,
    allow_ops: tuple[str, ...] = (),
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
        worst: Print so many wrong translations, the least similar to what is expected first.
        json: Print one JSON object.
        precision: What runs compute in: float32, mixed_bfloat16, mixed_float16 or auto (timed
            here); by default as they were trained, but in float32 where that is as fast.
        search: How to search, of both systems.
        allow_ops: Ops that a SavedModel may hold besides, as `check` has them.
    """
    check_stdout()
    from keras_transformer.evaluate import bleu_tokenizer, lossy_target, open_system
    from keras_transformer.evaluate import evaluate as measure

    pairs = _pairs(path, source, target)
    model, other_model = set_threads(path, compare, precision=precision)
    options = dict(search=search.config, precision=precision, allow_ops=allow_ops)
    system = open_system(model, **options)
    other = open_system(other_model, **options) if compare else None
    chosen = search.config != GREEDY or precision
    if chosen and not callable(system) and not callable(other):
        raise ValueError(
            f"{path} holds translations: leave out the options of the search and --precision."
        )
    for one in filter(None, (model, other_model)):
        if losses := lossy_target(one):
            print(
                f"{one} writes WordPiece, without {losses}: BLEU compares fairly with references "
                "that lack these too",
                file=sys.stderr,
            )
    tokenize = bleu_tokenize or bleu_tokenizer(model)
    report = measure(system, pairs, tokenize, other, n_bootstrap, worst)
    if other:
        report["comparison"]["system"] = compare
    _print_report(report, json)


def _pairs(path, source, target):
    """The pairs that are named, or the test of the dates that a run was trained on."""
    from keras_transformer.data.dates import LANGUAGES, dates
    from keras_transformer.data.text_files import read_pairs
    from keras_transformer.runs.run import Run

    if source:
        return read_pairs(source, target, TARGET)
    if target:
        raise ValueError("--source is missing: name the sentences that --target translates.")
    languages: tuple[str, ...] = LANGUAGES
    run = Run.of(path)
    if run.has_model:
        config = run.read_config()
        if config.train_source or config.corpus:
            raise ValueError(f"{path} was not trained on dates: name --source and --target.")
        languages = config.languages or LANGUAGES
    return dates(languages).test


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
        number: How many checkpoints; as many must have been kept (--keep-checkpoints of train).
        by: Which: the best, or the last.
    """
    from keras_transformer.runs.models import average

    average(path, output, number, by)


def main() -> None:
    """Entry point of `keras-transformer`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Whatever other programs of Keras have left in ~/.keras/keras.json or in the environment.
    os.environ["KERAS_HOME"] = os.path.join(os.path.dirname(__file__), "keras_home")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    if platform.machine() in ("x86_64", "AMD64"):
        # Without AVX512-VNNI TensorFlow leaves oneDNN off, though it pays there too: with AVX2, a
        # step of training takes 0.85 of the time.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    name = next(iter(sys.argv[1:]), None)
    try:
        command = parse_command(
            {
                "prepare": prepare,
                "train": train_command(sys.argv[1:]),
                "config": config,
                "translate": translate,
                "evaluate": evaluate,
                "score": score,
                "align": align,
                "attention": attention,
                "explore": explore,
                "plot": plot,
                "average": average,
                "export": export,
                "check": check,
            },
            # Of a training and its text, any flag may undo what is the default, or say it again.
            config=() if name in ("train", "prepare") else (tyro.conf.FlagCreatePairsOff,),
        )
        if isinstance(command, Train):
            command.run()
        sys.stdout.flush()
    except ValueError as error:
        print(f"keras-transformer: {error}", file=sys.stderr)
        sys.exit(2)
    except FloatingPointError as error:  # a training has diverged
        print(f"keras-transformer: {error}", file=sys.stderr)
        sys.exit(DIVERGED)
    except KeyboardInterrupt:
        sys.exit(130)


def _print_report(report, as_json):
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
        return
    for group, rate in report["by_group"].items():
        print(f"{group:12} {rate:6.1f} %")
    for row in report["worst"]:
        for title, key in WORST.items():
            print(f"{title:9}{_cut(row[key])}")
    print(f"{report['signature']}\nsentences: {report['sentences']}")
    if other := report.get("comparison"):
        _print_scores(other, f" of {other['system']}")
    _print_scores(report)


def _cut(text):
    """One line, whatever ends of lines are in the text."""
    text = " ".join(text.split())
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


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
