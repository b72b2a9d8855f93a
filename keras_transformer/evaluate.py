"""Scores of translations: BLEU, chrF and TER by sacreBLEU, and exact match.

Confidence intervals and the comparison of two systems use sacreBLEU's bootstrap: the test set is
resampled with replacement `n_bootstrap` times, and each sample is scored.
"""

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import sacrebleu

from keras_transformer.translation.corpus_scores import (
    check_lengths,
    make_metrics,
    score_systems,
)
from keras_transformer.utils import Pairs

# A function that translates, or translations.
System: TypeAlias = Callable[[list[str]], Sequence[str]] | Sequence[str]


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
            `translator.translate`; or a list of translations, in the order of the pairs.
        pairs: Sequence of (source, target), or of `Pair`s, whose groups are also reported.
        bleu_tokenize: sacreBLEU's tokenizer: `"13a"` for plain text, `"none"` for tokenized text,
            and so on.
        compare: A second system, given like `translate`.
        n_bootstrap: Number of bootstrap samples, each with `len(pairs)` sentences. 1,000 take some
            seconds and 0.1 MB of memory per sentence. 0 omits intervals and p-values.
        worst: Number of wrong translations to report.

    Returns:
        Dict of `bleu`, `chrf`, `ter` (edits, of which there should be few), `exact_match` (all in
        percent), `bleu_interval`, `chrf_interval` and `ter_interval` (lists of low and high: the
        95 % interval around the mean of the bootstrap samples), `signature` (sacreBLEU's, of all),
        `sentences`, `by_group` (exact match of each group, worst first), `worst` (wrong
        translations, lowest chrF first, each a dict of source, target, translation, chrf) and
        `lines_per_second` (tokenizing, decoding and tracing the graph included; None for existing
        translations). With `compare` also `comparison`: a dict of the same scores and intervals of
        the other system, with `bleu_p_value` and so on, the probabilities of a difference at least
        as large by chance, 1 for equal scores.

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
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    outputs, rates = zip(*(_time_translation(x, sources) for x in systems), strict=True)
    for output in outputs:
        check_lengths(output, pairs, n_bootstrap)
    report, *others = score_systems(outputs, targets, bleu_tokenize, n_bootstrap)
    report |= {
        "sentences": len(pairs),
        "by_group": _match_by_group(pairs, outputs[0]),
        "worst": _list_worst(sources, targets, outputs[0], worst) if worst else [],
        "lines_per_second": rates[0],
    }
    for other, rate in zip(others, rates[1:], strict=True):
        report["comparison"] = {**other, "lines_per_second": rate}
    return report


def _time_translation(system, sources):
    """Returns translations and sentences per second, None for existing translations."""
    if not callable(system):
        return list(system), None
    start = time.perf_counter()
    outputs = system(sources)
    return outputs, len(sources) / (time.perf_counter() - start)


def _match_by_group(pairs, outputs):
    """Returns the exact match of each group, worst first; empty if pairs have no groups."""
    hits = collections.defaultdict(list)
    for pair, output in zip(pairs, outputs, strict=True):
        if len(pair) > 2 and pair[2]:
            hits[pair[2]].append(output == pair[1])
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
