"""The commands that read text: `translate`, `evaluate`, `score` and `align`."""

import collections
import contextlib
import functools
import io
import itertools
import json as json_module
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

from keras_transformer.cli.rows import check_resumed, make_rows, open_output
from keras_transformer.presets import SearchConfig
from keras_transformer.translation.sentences import IncomingLines, check_n_best, translate_stream
from keras_transformer.utils import check_stdout

if TYPE_CHECKING:
    from keras_transformer.runs.opening import Opened

Ops = Annotated[
    tuple[str, ...],
    "additional TensorFlow ops to allow in the graph of a SavedModel, such as those of your own "
    "tokenizer",
]
Precision = Annotated[
    str | None,
    "dtype policy of a run: float32, mixed_bfloat16, mixed_float16, or auto for the faster one; if "
    "unset, that of the training, or float32 if that is as fast",
]
Language = Annotated[str | None, "code, for a model that translates between several languages"]
SAVED_MODEL = "SavedModel (its version directory, or the one above)"
Models = Annotated[tuple[str, ...], f"run directory, several as an ensemble, or {SAVED_MODEL}"]
Systems = Annotated[
    tuple[str, ...],
    f"run directory, several as an ensemble, {SAVED_MODEL}, or text file with translations, line "
    "by line",
]
Source = Annotated[str, "sentences: .txt, .gz or two-column .tsv"]
Target = Annotated[str | None, "their translations, line by line"]
TARGET = "--target"  # for errors
WORST = {"source": "source", "reference": "target", "hypothesis": "translation"}  # titles, keys


def translate(
    path: Models,
    /,
    prefix: Annotated[
        str | None, "text file with the prefix of each translation, line by line"
    ] = None,
    n_best: Annotated[int | None, "translations to print per line, with scores"] = None,
    format: Annotated[str, "format of input and output: text, or jsonl (JSON objects)"] = "text",
    field: Annotated[str | None, "member of the JSON objects to translate; default: text"] = None,
    output_field: Annotated[
        str | None, "new member with the translation; default: translation"
    ] = None,
    source_language: Language = None,
    target_language: Language = None,
    precision: Precision = None,
    resume: Annotated[
        str | None, "output file to complete, with the same input and options, or to create"
    ] = None,
    allow_ops: Ops = (),
    *,
    options: Annotated[dict[str, Any], SearchConfig],
) -> None:
    """Translate stdin to stdout, line by line, as input arrives.

    With --n-best N, each line gives N lines "line number from 0 ||| translation ||| score". Beam
    search ranks them by the score log_prob / ((5 + length) / 6)^α, where α is the length penalty,
    or log_prob / length^α with --length-norm length; with --sample, the score is log_prob, the
    natural logarithm of the probability. Missing translations, such as those of a blank line, are
    empty with score -1e9.

    With --format jsonl, the objects of the output are those of the input with one more member: the
    translation. With --n-best, that is a list of objects.

    The samples of a line depend on the seed and the line number only. An imported model has the
    beam size and the length penalty of its own configuration by default.
    """
    from keras_transformer.runs.opening import Opened, SentenceTranslator

    opened = Opened(path, options, precision, allow_ops, source_language, target_language)
    check_n_best(n_best, opened.search)
    rows = make_rows(format, field, output_field, n_best)
    lines = _open_stdin()
    output: Any = contextlib.nullcontext(sys.stdout)
    start = 0
    last: list[tuple[bytes, list[bytes]]] = []
    if resume is None:
        check_stdout()
    else:
        output, start, last = open_output(resume, lines, rows)
    prefixes = None if prefix is None else _read_prefixes(prefix, start - len(last))
    set_threads(opened)
    translator = SentenceTranslator(opened, n_best, prefix is not None)
    translate_lines = functools.partial(_translate_lines, rows, translator)
    try:
        with output as file:
            if last:
                check_resumed(str(resume), last, translate_lines, prefixes, start, rows)
            _write(file, translate_stream(translate_lines, lines.take, prefixes, start))
    except OSError as error:  # such as a full disk
        raise ValueError(f"The translations cannot be written: {error.strerror}.") from error


def _translate_lines(rows, translator, window, prefixes, first):
    """Returns for each line of a window its lines of the output; `first` is the first's number."""
    texts = [rows.read(line, number) for number, line in enumerate(window, first)]
    answers = translator(texts, prefixes=prefixes, first=first)
    return list(map(rows.write, window, itertools.count(first), answers))


def _write(file, windows):
    """Writes the lines of the output for each window, until nobody reads stdout any more."""
    if file is not sys.stdout and file.tell():
        file.truncate()  # what follows is incomplete
    for answers in windows:
        written = itertools.chain.from_iterable(answers)
        file.write("".join(f"{line}\n" for line in written))
        file.flush()
        if file is sys.stdout and not getattr(sys.stdout, "is_read", True):
            break


def _read_prefixes(path, first):
    """Iterates over the prefixes of the lines from `first` on."""
    from keras_transformer.data.text_files import iterate_lines

    prefixes = itertools.chain.from_iterable(iterate_lines(path))
    collections.deque(itertools.islice(prefixes, first), maxlen=0)
    # Read the first one now, so that mistakes are found before TensorFlow is imported.
    return itertools.chain(list(itertools.islice(prefixes, 1)), prefixes)


def _open_stdin():
    """Returns the lines of stdin."""
    if sys.stdin is None:
        raise ValueError("stdin is closed: give lines to translate.")
    if sys.stdin.isatty():
        print("Reading sentences from the terminal; end with Ctrl-D.", file=sys.stderr)
    try:
        # Not Python's buffer: a thread that waits there would keep the process from exiting.
        return IncomingLines(functools.partial(os.read, sys.stdin.fileno()))
    except io.UnsupportedOperation:  # replaced by the caller
        return IncomingLines(sys.stdin.buffer.read1)


def evaluate(
    path: Systems,
    /,
    source: Annotated[
        str | None,
        "sentences to translate: .txt, .gz or two-column .tsv; if unset, the test set of the "
        "built-in dates",
    ] = None,
    target: Target = None,
    bleu_tokenize: Annotated[
        str | None,
        "sacreBLEU tokenizer, such as 13a, or none for text that is already tokenized; default: "
        "that of the run's validation, or 13a",
    ] = None,
    compare: Annotated[
        str | None, "second system, given like the first, but no ensemble, for a significance test"
    ] = None,
    n_bootstrap: Annotated[int, "bootstrap samples for 95 % intervals; 0: none"] = 1000,
    worst: Annotated[int, "wrong translations to print, worst first"] = 0,
    json: Annotated[bool, "print the scores as one JSON object"] = False,
    source_language: Language = None,
    target_language: Language = None,
    precision: Precision = None,
    allow_ops: Ops = (),
    *,
    options: Annotated[dict[str, Any], SearchConfig],
) -> None:
    """Compare translations with references: BLEU, chrF, TER and exact match.

    The search options apply to both systems.
    """
    check_stdout()
    from keras_transformer.data.text_files import read_lines
    from keras_transformer.evaluate import evaluate as measure
    from keras_transformer.runs.opening import Opened, SentenceTranslator

    how = options, precision, allow_ops, source_language, target_language
    paths = [path] if compare is None else [path, (compare,)]
    systems = [
        read_lines(*one) if len(one) == 1 and os.path.isfile(*one) else Opened(one, *how)
        for one in paths
    ]
    models = [system for system in systems if isinstance(system, Opened)]
    if (options or precision or source_language or target_language) and not models:
        raise ValueError(
            f"{path[0]} is a file of translations: leave out the options of a search or a model."
        )
    pairs = _read_evaluation_pairs(systems[0], source, target)
    set_threads(*models)
    translate = [SentenceTranslator(x) if isinstance(x, Opened) else x for x in systems]
    _warn_of_losses(models, [pair[1] for pair in pairs])
    if bleu_tokenize is None:
        bleu_tokenize = getattr(systems[0], "bleu_tokenize", "13a")
    other = translate[1] if compare else None
    report = measure(translate[0], pairs, bleu_tokenize, other, n_bootstrap, worst)
    if compare:
        report["comparison"]["system"] = compare
    _print_report(report, json)


def _warn_of_losses(models, references):
    """Warns of references that a vocabulary cannot write."""
    for model in models:
        if losses := model.detokenizing_losses(references):
            print(
                f"warning: BLEU is fair to {model.path} only with references that its target "
                f"vocabulary can write: {losses}",
                file=sys.stderr,
            )


def _read_evaluation_pairs(system, source, target):
    """Reads the pairs in the given files, or the test set of the dates that a run learned."""
    from keras_transformer.data.dates import LANGUAGES, dates
    from keras_transformer.data.text_files import read_pairs

    if source:
        return read_pairs(source, target, TARGET)
    if target:
        raise ValueError("--source is missing: give the sources of --target.")
    languages: tuple[str, ...] = LANGUAGES
    if run := getattr(system, "run", None):
        config = run.read_config()
        if config.train_source or config.corpus or not config.dates:
            raise ValueError(f"--source is missing: {run} was not trained on the built-in dates.")
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
            print(f"{title:11}{' '.join(row[key].split()):.90}")
    print(f"signatures: {report['signature']}\nsentences: {report['sentences']}")
    if other := report.get("comparison"):
        _print_scores(other, f" of {other['system']}")
    _print_scores(report)


def _print_scores(report, system=""):
    if report["lines_per_second"]:
        rate = f"{report['lines_per_second']:.1f}"
        print(f"lines per second{system}: {rate} (excluding model loading)")
    for name, title in (("bleu", "BLEU"), ("chrf", "chrF"), ("ter", "TER")):
        line = f"{title}{system}: {report[name]:.2f}"
        if f"{name}_interval" in report:
            low, high = report[f"{name}_interval"]
            line += f" (95 % interval {low:.2f} to {high:.2f})"
        if f"{name}_p_value" in report:
            line += f", p = {report[f'{name}_p_value']:.3f} (paired bootstrap)"
        print(line)
    print(f"exact match{system}: {report['exact_match']:.1f} %")


def score(
    path: Annotated[
        tuple[str, ...],
        "run directory, several as an ensemble; or SavedModel with the signature score, which "
        "truncates overlong targets (a run raises an error)",
    ],
    /,
    source: Source,
    target: Target = None,
    source_language: Language = None,
    target_language: Language = None,
    precision: Precision = None,
    allow_ops: Ops = (),
) -> None:
    """Print the log-probability of given translations and their number of tokens, tab-separated.

    The logarithm is natural and not normalized by length; END counts as a token.
    """
    from keras_transformer.data.text_files import read_pairs
    from keras_transformer.runs.opening import Opened

    check_stdout()
    sources, targets, _ = zip(*read_pairs(source, target, TARGET), strict=True)
    opened = Opened(path, None, precision, allow_ops, source_language, target_language)
    set_threads(opened)
    for log_prob, tokens in opened.model.score(sources, targets):
        print(f"{log_prob:.6f}\t{tokens}")


def align(
    path: Annotated[str, "run directory"],
    /,
    source: Source,
    target: Target = None,
    layers: Annotated[
        tuple[int, ...],
        "decoder layers, from 1, whose attention is averaged; default: the second-to-last; with "
        "fewer than three layers, the last",
    ] = (),
    heads: Annotated[tuple[int, ...], "their heads, from 1; default: all"] = (),
    tokens: Annotated[bool, "print the tokens as well: source ||| target ||| pairs"] = False,
    source_language: Language = None,
    target_language: Language = None,
    precision: Precision = None,
) -> None:
    """Print word alignments from cross-attention, as pairs source-target of positions from 0."""
    from keras_transformer.data.text_files import read_pairs

    check_stdout()
    opened = open_run(path, precision, source_language, target_language)
    sources, targets, _ = zip(*read_pairs(source, target, TARGET), strict=True)
    set_threads(opened)
    for pieces, target_pieces, positions in opened.model.align(
        sources, targets, layers or None, heads or None
    ):
        pairs = " ".join(f"{i}-{j}" for j, i in enumerate(positions))
        print(*([" ".join(pieces), " ".join(target_pieces)] if tokens else []), pairs, sep=" ||| ")


def open_run(path: str, precision: str | None, *languages: str | None) -> "Opened":
    """Opens a run for what needs its layers."""
    from keras_transformer.runs.opening import Opened

    opened = Opened(path, None, precision, (), *languages)
    if opened.run is None:
        raise ValueError(f"{path} is a SavedModel: give the run directory it was exported from.")
    return opened


def set_threads(*opened: "Opened") -> None:
    """Configures TensorFlow to run one operation per core, if any of the models is a run."""
    if any(one.run for one in opened):
        from keras_transformer.kernels.tensorflow.machine import configure_threads

        configure_threads()
