"""The commands `translate`, `score` and `align`: what the command line does with text."""

import collections
import contextlib
import dataclasses
import functools
import io
import itertools
import os
import sys
from typing import Any

import tyro

from keras_transformer.cli.stream_progress import StreamProgress, size_of
from keras_transformer.cli.unfinished_output import UnfinishedOutput
from keras_transformer.presets import SearchConfig
from keras_transformer.runs.streams import check_stdout, is_stdout_read
from keras_transformer.translation.results import check_n_best
from keras_transformer.translation.sentence_batches import IncomingLines, translate_stream
from keras_transformer.typing import Path
from keras_transformer.wording import counted


@dataclasses.dataclass(frozen=True)
class SearchOptions(SearchConfig):
    """Options of the search."""

    def __post_init__(self) -> None:
        pass  # checked by `config`: what tyro is told of a mistake, it draws a box around

    @property
    def config(self) -> SearchConfig:
        """The `SearchConfig` of these options.

        Raises:
            ValueError: If there is none.
        """
        return SearchConfig(**dataclasses.asdict(self))


DEFAULTS = SearchOptions()
TARGET = "--target"  # the option of that name, in errors


def translate(
    path: tyro.conf.Positional[str],
    search: tyro.conf.OmitArgPrefixes[SearchOptions] = DEFAULTS,
    prefix: str | None = None,
    n_best: int | None = None,
    precision: str | None = None,
    resume: str | None = None,
    allow_ops: tuple[str, ...] = (),
) -> None:
    """Translate stdin to stdout, line by line, while it comes in.

    Args:
        path: A run directory, or a SavedModel (its version directory, or the one above).
        search: How to search. What --sample draws for a line follows from the seed and its number.
        prefix: Text file of what the translations begin with, line by line.
        n_best: Print so many translations of each line, as "line number from 0 ||| translation
            ||| score". A beam's are the best, ranked by that score, log_prob / ((5 + length) / 6)^α
            with α the length penalty; with --sample, so many are drawn, and the score is log_prob,
            the natural logarithm of the probability. Always so many lines: what a beam has not
            found, as of a blank line, is empty, with the score -1e9.
        precision: What a run computes in: float32, mixed_bfloat16, mixed_float16 or auto (timed
            here); by default as it was trained, but in float32 where that is as fast.
        resume: File that such a command wrote until it was stopped: give the same input and options
            again, and the rest is translated and appended. One that is not there yet is begun.
        allow_ops: Ops that a SavedModel may hold besides, as `check` has them.
    """
    from keras_transformer.data.text_files import iterate_lines
    from keras_transformer.runs.models import open_translator

    config = search.config
    check_n_best(n_best, config)
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
        # Read now, for mistakes to be said now.
        prefixes = itertools.chain(list(itertools.islice(prefixes, 1)), prefixes)
    (model,) = set_threads(path, precision=precision)
    translator = open_translator(model, config, n_best, precision, prefix is not None, allow_ops)
    with output.open() if output else contextlib.nullcontext(sys.stdout) as file:
        for answers in translate_stream(translator, lines, prefixes, first):
            _write(file, answers, first, n_best)
            first += len(answers)
            progress(len(answers), lines.bytes_taken)
            if not (output or is_stdout_read()):
                break
    progress.end()


def _read_stdin():
    """The lines of stdin, and what tells how far they are translated."""
    if sys.stdin is None:
        raise ValueError("stdin is closed: give lines to translate.")
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # whoever calls this function has put something in its place
        return IncomingLines(sys.stdin.buffer.read1), StreamProgress()
    # Not through Python's buffer: a thread that waits there would not let the process end.
    read = functools.partial(os.read, descriptor)
    return IncomingLines(read), StreamProgress(size_of(descriptor))


def _write(file, answers, first, n_best):
    """Writes translations where they can be seen at once; `first` is the first line's number."""
    try:
        for number, answer in enumerate(answers, first):
            if n_best is None:
                print(_one_line(answer), file=file)
            else:
                for text, _, score in answer:
                    print(f"{number} ||| {_one_line(text)} ||| {score:.6f}", file=file)
        file.flush()
    except OSError as error:  # such as a full disk
        # What is left in the buffer cannot be written at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
        raise ValueError(
            f"Translations cannot be written ({error.strerror}): with --resume, the rest can be "
            "appended later."
        ) from error


def score(
    path: tyro.conf.Positional[str],
    source: str,
    target: str | None = None,
    precision: str | None = None,
    allow_ops: tuple[str, ...] = (),
) -> None:
    """Print how probable given translations are: per line log-probability, tab, tokens.

    The natural logarithm, not normalised by length; END counts as a token.

    Args:
        path: A run directory, or a SavedModel with the signature score, which cuts targets that
            are too long where a run refuses them.
        source: Sentences: text, .gz, or a .tsv with both columns.
        target: Their translations, line by line.
        precision: What to compute in, as `translate` has it.
        allow_ops: Ops that a SavedModel may hold besides, as `check` has them.
    """
    from keras_transformer.data.text_files import read_pairs

    check_stdout()
    sources, targets, _ = zip(*read_pairs(source, target, TARGET), strict=True)
    for log_prob, tokens in _open_model(path, precision, allow_ops).score(sources, targets):
        print(f"{log_prob:.6f}\t{tokens}")


def align(
    path: tyro.conf.Positional[str],
    source: str,
    target: str | None = None,
    layers: tuple[int, ...] = (),
    heads: tuple[int, ...] = (),
    tokens: bool = False,
    precision: str | None = None,
    allow_ops: tuple[str, ...] = (),
) -> None:
    """Print what each target token attends to most, as pairs of positions source-target from 0.

    Args:
        path: A run directory, or a SavedModel with the signature attention, which aligns its own
            translations: leave out --target, --layers and --heads.
        source: Sentences: text, .gz, or a .tsv with both columns.
        target: Their translations, line by line.
        layers: Decoder layers, from 0, whose attention is averaged; none: the last but one, of
            fewer than three the last.
        heads: Their heads, from 0; none: all.
        tokens: Print the tokens that are counted as well: "source ||| target ||| pairs".
        precision: What to compute in, as `translate` has it.
        allow_ops: Ops that a SavedModel may hold besides, as `check` has them.
    """
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
    """Opens what translates; a run with an operation on each core."""
    from keras_transformer.runs.models import open_model

    (model,) = set_threads(path, precision=precision)
    return open_model(model, precision, allow_ops)


def set_threads(*paths: Path | None, precision: str | None = None) -> list[Any]:
    """Has each core of the processor do an operation of its own if a run is to be opened.

    Args:
        *paths: The paths to be opened; None is nothing.
        precision: Of computation in runs, checked first: importing TensorFlow takes seconds.

    Returns:
        List of the paths; runs as `Run`, which have been inspected.
    """
    from keras_transformer.presets import check_precision
    from keras_transformer.runs.run import Run

    check_precision(precision)
    opened: list[Any] = [Run(path) if path and Run(path).has_model else path for path in paths]
    runs = [one for one in opened if isinstance(one, Run)]
    for run in runs:
        run.inspect()
    if runs:
        from keras_transformer.kernels.tensorflow.machine import work_apart

        work_apart()
    return opened


def _one_line(text):
    """One line of what the model writes, whatever bytes it spells."""
    return " ".join(text.splitlines())
