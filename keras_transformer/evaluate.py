"""Scores of translations: BLEU and chrF by sacreBLEU, and exact match.

Confidence intervals and the comparison of two systems use sacreBLEU's bootstrap: the test set is
resampled with replacement `n_bootstrap` times, and each sample is scored.
"""

import collections
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import sacrebleu

from keras_transformer.translation.corpus_scores import (
    check_lengths,
    exact_matches,
    make_metrics,
    score_systems,
)
from keras_transformer.utils import Pairs, Path

# A function that translates, or translations.
System: TypeAlias = Callable[[list[str]], Sequence[str]] | Sequence[str]


def open_system(path: Path, **options: Any) -> System:
    """Opens a system for `evaluate`.

    Args:
        path: A run directory, a SavedModel's base or version directory, or a text file with
            translations, line by line.
        **options: Options of `open_translator`.

    Returns:
        A function from sentences to translations, or the translations in the file.
    """
    from keras_transformer.data.text_files import read_lines
    from keras_transformer.runs.models import open_translator

    return read_lines(path) if os.path.isfile(path) else open_translator(path, **options)


def bleu_tokenizer(path: Path) -> str:
    """Returns the name of sacreBLEU's tokenizer for the validation of a run.

    Args:
        path: A path for `open_system`.

    Returns:
        `bleu_tokenize` of the run; `"13a"` if unknown.
    """
    from keras_transformer.runs.run import Run
    from keras_transformer.serving.versions import read_card, version_dir

    if os.path.isfile(path):
        return "13a"
    run = Run.from_path(path)
    card = run.describe() if run.has_model else read_card(version_dir(path))
    return card.get("recipe", {}).get("bleu_tokenize", "13a")


def find_detokenizing_losses(path: Path, references: Sequence[str]) -> str:
    """Describes what the target vocabulary of a model cannot write; empty if it can write all.

    Of an export, only what its card says about a WordPiece vocabulary is known.

    Args:
        path: A path for `open_system`.
        references: The references, which translations are compared with as they are.
    """
    from keras_transformer.runs.run import Run
    from keras_transformer.serving.versions import read_card, version_dir
    from keras_transformer.tokenizers import saved
    from keras_transformer.tokenizers.saved import describe_lost

    if os.path.isfile(path):
        return ""
    if Run(path).has_model:
        return describe_lost(saved.read(path)[1], references)
    target = read_card(version_dir(path)).get("vocabulary", {}).get("target", {})
    return f"it loses {losses}" if (losses := target.get("detokenizing_loses")) else ""


def evaluate(
    translate: System,
    pairs: Pairs,
    bleu_tokenize: str = "13a",
    compare: System | None = None,
    n_bootstrap: int = 1000,
    worst: int = 10,
) -> dict[str, Any]:
    """Translates the sources and compares with the targets.

    Args:
        translate: Function from a list of strings to the list of their translations, such as
            `translator.translate` or the result of `open_system`; or a list of translations, in the
            order of the pairs.
        pairs: Sequence of (source, target), or of `Pair`s, whose groups are also reported.
        bleu_tokenize: sacreBLEU's tokenizer: `"13a"` for plain text, `"none"` for tokenized text,
            and so on.
        compare: A second system, given like `translate`.
        n_bootstrap: Number of bootstrap samples, each with `len(pairs)` sentences. 1,000 take some
            seconds and 0.1 MB of memory per sentence. 0 omits intervals and p-values.
        worst: Number of wrong translations to report.

    Returns:
        The dict of `score_translations`, with `lines_per_second`, the number of sentences divided
        by the duration of `translate`. This includes tokenizing, decoding and tracing the graph,
        but not loading the model. None for existing translations.

    Raises:
        ValueError: If there are no pairs, the number of translations differs, `n_bootstrap` is
            negative, or the tokenizer is unknown or not installed.
    """
    if worst < 0:
        raise ValueError(f"worst must be at least 0, received {worst}.")
    systems = [translate] if compare is None else [translate, compare]
    # Raises now, not after an hour of translating.
    make_metrics(bleu_tokenize)
    for system in systems:
        check_lengths(pairs if callable(system) else system, pairs, n_bootstrap)
    sources = [pair[0] for pair in pairs]
    outputs, rate = _time_translation(translate, sources)
    other, other_rate = (None, None) if compare is None else _time_translation(compare, sources)
    report = score_translations(pairs, outputs, bleu_tokenize, other, n_bootstrap, worst)
    report["lines_per_second"] = rate
    if compare is not None:
        report["comparison"]["lines_per_second"] = other_rate
    return report


def score_translations(
    pairs: Pairs,
    outputs: Sequence[str],
    bleu_tokenize: str = "13a",
    compare: Sequence[str] | None = None,
    n_bootstrap: int = 1000,
    worst: int = 10,
) -> dict[str, Any]:
    """Compares translations with the targets, and with another system's translations.

    Args:
        pairs: Sequence of (source, target), or of `Pair`s, whose groups are also reported.
        outputs: List of translations of the sources.
        bleu_tokenize: sacreBLEU's tokenizer.
        compare: List of translations by another system.
        n_bootstrap: Number of bootstrap samples; 0 omits intervals and p-values.
        worst: Number of wrong translations to report.

    Returns:
        Dict of `bleu`, `chrf`, `exact_match` (all 0–100), `bleu_interval` and `chrf_interval`
        (lists of low and high: the 95 % interval around the mean of the bootstrap samples),
        `signature` (sacreBLEU's, of both), `sentences`, `by_group` (exact match of each group,
        worst first) and `worst` (wrong translations, lowest chrF first, each a dict of source,
        target, translation, chrf). With `compare` also `comparison`: a dict of the same scores and
        intervals of the other system, with `bleu_p_value` and `chrf_p_value`, the probabilities of
        a difference at least as large by chance, 1 for equal scores.
    """
    systems = [outputs] if compare is None else [outputs, compare]
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    for system in systems:
        check_lengths(system, pairs, n_bootstrap)
    report, *others = score_systems(systems, targets, bleu_tokenize, n_bootstrap)
    report |= {
        "sentences": len(pairs),
        "by_group": _match_by_group(pairs, exact_matches(outputs, targets)),
        "worst": _list_worst(sources, targets, outputs, worst) if worst else [],
    }
    if others:
        report["comparison"] = others[0]
    return report


def _time_translation(system, sources):
    """Returns translations and sentences per second, None for existing translations."""
    if not callable(system):
        return list(system), None
    start = time.perf_counter()
    outputs = system(sources)
    return outputs, len(sources) / (time.perf_counter() - start)


def _match_by_group(pairs, matches):
    """Returns the exact match of each group, worst first; empty if pairs have no groups."""
    hits = collections.defaultdict(list)
    for pair, hit in zip(pairs, matches, strict=True):
        if len(pair) > 2 and pair[2]:
            hits[pair[2]].append(hit)
    rates = {group: 100 * sum(values) / len(values) for group, values in hits.items()}
    return dict(sorted(rates.items(), key=lambda item: (item[1], item[0])))


def _list_worst(sources, targets, outputs, count):
    wrong = [
        {
            "source": source,
            "target": target,
            "translation": output,
            "chrf": sacrebleu.sentence_chrf(output, [target]).score,
        }
        for source, target, output in zip(sources, targets, outputs, strict=True)
        if output != target
    ]
    return sorted(wrong, key=lambda row: row["chrf"])[:count]
