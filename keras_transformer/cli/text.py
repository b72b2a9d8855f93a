"""The commands that read text: `translate`, `evaluate`, `score` and `align`."""

import collections
import contextlib
import functools
import io
import itertools
import json as json_module
import os
import sys
from typing import Annotated, Any

from keras_transformer.cli.serving import Ops
from keras_transformer.cli.translations import StreamProgress, UnfinishedOutput, size_of
from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.runs.streams import check_stdout, is_stdout_read
from keras_transformer.translation.results import check_n_best
from keras_transformer.translation.sentence_batches import IncomingLines, translate_stream
from keras_transformer.utils import Path, counted

Precision = Annotated[
    str | None,
    "what a run computes in: float32, mixed_bfloat16, mixed_float16 or auto (timed here); if "
    "unset, as it was trained, but in float32 where that is as fast",
]
Source = Annotated[str, "sentences: text, .gz, or a .tsv with both columns"]
Target = Annotated[str | None, "their translations, line by line"]
TARGET = "--target"  # the option of that name, in errors
WORST = {"source": "source", "expected": "target", "received": "translation"}  # titles, keys
WIDTH = 90  # characters that are shown of a wrong translation


def translate(
    path: Annotated[str, "run directory, or SavedModel (its version directory, or the one above)"],
    /,
    prefix: Annotated[
        str | None, "text file with the beginnings of the translations, line by line"
    ] = None,
    n_best: Annotated[int | None, "translations to print of each line, with their scores"] = None,
    precision: Precision = None,
    resume: Annotated[
        str | None,
        "file with the output of the same command that was stopped: given the same input and "
        "options, it is completed; one that does not exist is begun",
    ] = None,
    allow_ops: Ops = (),
    *,
    search: SearchConfig,
) -> None:
    """Translate stdin to stdout, line by line, while it comes in.

    With --n-best, each translation is printed as "line number from 0 ||| translation ||| score". A
    beam's are the best, ranked by that score, log_prob / ((5 + length) / 6)^α with α the length
    penalty; with --sample, so many are drawn, and the score is log_prob, the natural logarithm of
    the probability. There are always so many lines: what a beam has not found, as of a blank line,
    is empty, with the score -1e9.

    What --sample draws for a line follows from the seed and the line's number.
    """
    from keras_transformer.data.text_files import iterate_lines
    from keras_transformer.runs.models import open_translator

    check_n_best(n_best, search)
    if resume is None:
        check_stdout()
    lines, progress = _read_stdin()
    output = UnfinishedOutput(resume, n_best) if resume else None
    first = output.done if output else 0
    if (found := lines.skip(first)) < first:
        raise ValueError(
            f"{resume} has the translations of {counted(first, 'line')}, but stdin has only "
            f"{found:,}: give the input that it was begun with."
        )
    prefixes = None
    if prefix is not None:
        prefixes = itertools.chain.from_iterable(iterate_lines(prefix))
        collections.deque(itertools.islice(prefixes, first), maxlen=0)
        # Read now, so that mistakes are found now.
        prefixes = itertools.chain(list(itertools.islice(prefixes, 1)), prefixes)
    (model,) = set_threads(path, precision=precision)
    translator = open_translator(model, search, n_best, precision, prefix is not None, allow_ops)
    with output.open() if output else contextlib.nullcontext(sys.stdout) as file:
        for answers in translate_stream(translator, lines, prefixes, first):
            _write(file, answers, first, n_best)
            first += len(answers)
            progress(len(answers), lines.bytes_taken)
            if not (output or is_stdout_read()):
                break
    progress.end()


def _read_stdin():
    """The lines of stdin, and their progress."""
    if sys.stdin is None:
        raise ValueError("stdin is closed: give lines to translate.")
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # replaced by the caller
        return IncomingLines(sys.stdin.buffer.read1), StreamProgress()
    # Not through Python's buffer: a thread that waits there would keep the process from exiting.
    read = functools.partial(os.read, descriptor)
    return IncomingLines(read), StreamProgress(size_of(descriptor))


def _write(file, answers, first, n_best):
    """Writes translations and flushes them; `first` is the number of the first line."""
    try:
        for number, answer in enumerate(answers, first):
            if n_best is None:
                print(_one_line(answer), file=file)
            else:
                for text, _, score in answer:
                    print(f"{number} ||| {_one_line(text)} ||| {score:.6f}", file=file)
        file.flush()
    except OSError as error:  # such as a full disk
        # The rest of the buffer could not be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
        raise ValueError(
            f"Translations cannot be written ({error.strerror}): with --resume, the rest can be "
            "appended later."
        ) from error


def evaluate(
    path: Annotated[
        str,
        "run directory, SavedModel (its version directory, or the one above), or text file of "
        "translations, line by line",
    ],
    /,
    source: Annotated[
        str | None,
        "sentences to translate: text, .gz, or a .tsv with both columns; if unset, the held-out "
        "test of the built-in dates",
    ] = None,
    target: Target = None,
    bleu_tokenize: Annotated[
        str | None,
        "sacreBLEU's tokenizer; none if text is tokenized already; if unset, the one that the run "
        "was validated by, or 13a",
    ] = None,
    compare: Annotated[
        str | None, "another system, given like the first: do their scores differ by chance?"
    ] = None,
    n_bootstrap: Annotated[int, "samples for 95 % intervals and p-values; 0: neither"] = 1000,
    worst: Annotated[int, "wrong translations to print, the worst first"] = 0,
    json: Annotated[bool, "print one JSON object"] = False,
    precision: Precision = None,
    allow_ops: Ops = (),
    *,
    search: SearchConfig,
) -> None:
    """Compare translations with references: BLEU, chrF and exact match.

    The options of the search apply to both systems.
    """
    check_stdout()
    from keras_transformer.evaluate import bleu_tokenizer, lossy_target, open_system
    from keras_transformer.evaluate import evaluate as measure

    pairs = _pairs(path, source, target)
    model, other_model = set_threads(path, compare, precision=precision)
    options = dict(search=search, precision=precision, allow_ops=allow_ops)
    system = open_system(model, **options)
    other = open_system(other_model, **options) if compare else None
    chosen = search != GREEDY or precision
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
    """The pairs in the given files, or the test part of the dates that a run was trained on."""
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


def _print_report(report, as_json):
    if as_json:
        print(json_module.dumps(report, ensure_ascii=False))
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
    """A truncated text in one line."""
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


def score(
    path: Annotated[
        str,
        "run directory; or SavedModel with the signature score, which truncates targets that are "
        "too long, where a run refuses them",
    ],
    /,
    source: Source,
    target: Target = None,
    precision: Precision = None,
    allow_ops: Ops = (),
) -> None:
    """Print how probable given translations are: per line log-probability, tab, tokens.

    The natural logarithm, not normalised by length; END counts as a token.
    """
    from keras_transformer.data.text_files import read_pairs

    check_stdout()
    sources, targets, _ = zip(*read_pairs(source, target, TARGET), strict=True)
    for log_prob, tokens in _open_model(path, precision, allow_ops).score(sources, targets):
        print(f"{log_prob:.6f}\t{tokens}")


def align(
    path: Annotated[
        str,
        "run directory; or SavedModel with the signature attention, which aligns its own "
        "translations: leave out --target, --layers and --heads",
    ],
    /,
    source: Source,
    target: Target = None,
    layers: Annotated[
        tuple[int, ...],
        "decoder layers, from 1, whose attention is averaged; default: the last but one, of fewer "
        "than three the last",
    ] = (),
    heads: Annotated[tuple[int, ...], "their heads, from 1; default: all"] = (),
    tokens: Annotated[bool, "print the tokens as well: source ||| target ||| pairs"] = False,
    precision: Precision = None,
    allow_ops: Ops = (),
) -> None:
    """Print what each target token attends to most, as pairs of positions source-target from 0."""
    from keras_transformer.data.text_files import is_table, read_lines, read_pairs
    from keras_transformer.runs.run import Run

    check_stdout()
    if Run(path).has_model or target or is_table(source):
        sources, targets, _ = zip(*read_pairs(source, target, TARGET), strict=True)
    else:
        sources, targets = tuple(read_lines(source)), None
    for pieces, target_pieces, positions in _open_model(path, precision, allow_ops).align(
        sources, targets, layers or None, heads or None
    ):
        pairs = " ".join(f"{i}-{j}" for j, i in enumerate(positions))
        print(*([" ".join(pieces), " ".join(target_pieces)] if tokens else []), pairs, sep=" ||| ")


def _open_model(path, precision, allow_ops):
    """Opens a model; a run with one operation on each core."""
    from keras_transformer.runs.models import open_model

    (model,) = set_threads(path, precision=precision)
    return open_model(model, precision, allow_ops)


def set_threads(*paths: Path | None, precision: str | None = None) -> list[Any]:
    """Runs an operation on each core if one of the paths is a run, after inspecting it.

    Args:
        *paths: Paths of models, or None.
        precision: Of the computation of runs, checked before TensorFlow is imported.

    Returns:
        List of the paths; runs as `Run`, which have been inspected.
    """
    from keras_transformer.presets.options import check_precision
    from keras_transformer.runs.run import Run

    check_precision(precision)
    opened: list[Any] = [Run(path) if path and Run(path).has_model else path for path in paths]
    runs = [one for one in opened if isinstance(one, Run)]
    for run in runs:
        run.inspect()
    if runs:
        from keras_transformer.kernels.tensorflow.machine import configure_threads

        configure_threads()
    return opened


def _one_line(text):
    """A translation in one line, even if it has line ends."""
    return " ".join(text.splitlines())
