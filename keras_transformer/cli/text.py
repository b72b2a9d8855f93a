"""The commands `translate`, `score` and `align`: what the command line does with text."""

import dataclasses
import sys

import tyro

from keras_transformer.presets import SearchConfig
from keras_transformer.translation.hypotheses import check_n_best
from keras_transformer.typing import Path


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


def translate(
    path: tyro.conf.Positional[str],
    search: tyro.conf.OmitArgPrefixes[SearchOptions] = DEFAULTS,
    prefix: str | None = None,
    n_best: int | None = None,
    precision: str | None = None,
) -> None:
    """Translate stdin to stdout, line by line.

    Args:
        path: A run directory, or a SavedModel (its version directory, or the one above).
        search: How to search.
        prefix: Text file of what the translations begin with, line by line.
        n_best: Print so many translations of each line, as "line number from 0 ||| translation
            ||| score". A beam's are the best, ranked by that score, log_prob / ((5 + length) / 6)^α
            with α the length penalty; with --sample, so many are drawn, and the score is log_prob,
            the natural logarithm of the probability.
        precision: What a run computes in: float32, mixed_bfloat16, mixed_float16 or auto (timed
            here); by default as it was trained, but in float32 where that is as fast.
    """
    from keras_transformer.corpora.text_files import read_lines
    from keras_transformer.runs.load import open_translator

    config = search.config
    check_n_best(n_best, config)
    set_threads(path, precision=precision)
    translator = open_translator(path, config, n_best, precision)
    prefixes = prefix and read_lines(prefix)
    lines = sys.stdin.buffer.read().split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, answer in enumerate(translator(lines, prefixes=prefixes)):
        if n_best is None:
            print(_one_line(answer))
        else:
            for text, _, score in answer:
                print(f"{number} ||| {_one_line(text)} ||| {score:.6f}")


def score(
    path: tyro.conf.Positional[str],
    source: str,
    target: str | None = None,
    precision: str | None = None,
) -> None:
    """Print how probable given translations are: per line log-probability, tab, tokens.

    The natural logarithm, not normalised by length; END counts as a token.

    Args:
        path: A run directory, or a SavedModel with the signature score, which cuts targets that
            are too long where a run refuses them.
        source: Sentences: text, .gz, or a .tsv with both columns.
        target: Their translations, line by line.
        precision: What to compute in, as `translate` has it.
    """
    from keras_transformer.corpora.text_files import read_pairs

    sources, targets, _ = zip(*read_pairs(source, target), strict=True)
    for log_prob, tokens in _open_model(path, precision).score(sources, targets):
        print(f"{log_prob:.6f}\t{tokens}")


def align(
    path: tyro.conf.Positional[str],
    source: str,
    target: str | None = None,
    layers: tuple[int, ...] = (),
    heads: tuple[int, ...] = (),
    tokens: bool = False,
    precision: str | None = None,
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
    """
    from keras_transformer.corpora.lines import is_table
    from keras_transformer.corpora.text_files import read_lines, read_pairs
    from keras_transformer.runs.files import is_run

    if is_run(path) or target or is_table(source):
        sources, targets, _ = zip(*read_pairs(source, target), strict=True)
    else:
        sources, targets = tuple(read_lines(source)), None
    for pieces, target_pieces, positions in _open_model(path, precision).align(
        sources, targets, layers or None, heads or None
    ):
        pairs = " ".join(f"{i}-{j}" for j, i in enumerate(positions))
        print(*([" ".join(pieces), " ".join(target_pieces)] if tokens else []), pairs, sep=" ||| ")


def _open_model(path, precision):
    """Opens what translates; a run with an operation on each core."""
    from keras_transformer.runs.load import open_model

    set_threads(path, precision=precision)
    return open_model(path, precision)


def set_threads(*paths: Path | None, precision: str | None = None) -> None:
    """Has each core of the processor do an operation of its own where a run is to be opened.

    Args:
        *paths: What is opened; None is nothing.
        precision: What runs compute in, refused first if there is none such: importing TensorFlow
            takes seconds.
    """
    from keras_transformer.presets import check_precision
    from keras_transformer.runs.files import is_run

    check_precision(precision)
    if any(is_run(path) for path in paths if path):
        from keras_transformer.kernels.tensorflow.threads import work_apart

        work_apart()


def _one_line(text):
    """One line of what the model writes, whatever bytes it spells."""
    return " ".join(text.splitlines())
