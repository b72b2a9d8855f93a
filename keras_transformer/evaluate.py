"""Scores of translations: BLEU and chrF by sacreBLEU, and exact match.

Intervals and the comparison of two systems are sacreBLEU's bootstrap: the test set is drawn anew,
with replacement, `n_bootstrap` times, and scored each time.
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

# What translates, or its translations.
System: TypeAlias = Callable[[list[str]], Sequence[str]] | Sequence[str]


def open_system(path: Path, **options: Any) -> System:
    """Opens whatever can be evaluated.

    Args:
        path: A run directory, a SavedModel's base or version directory, or a text file of
            translations, line by line.
        **options: How to translate; see `open_translator`.

    Returns:
        What `evaluate` takes: a function from sentences to translations, or the translations.

    Raises:
        ValueError: If `path` is none of these.
    """
    from keras_transformer.data.text_files import read_lines
    from keras_transformer.runs.models import open_translator

    return read_lines(path) if os.path.isfile(path) else open_translator(path, **options)


def bleu_tokenizer(path: Path) -> str:
    """Name of sacreBLEU's tokenizer by which the models of a run were validated.

    Args:
        path: A run directory or a SavedModel, as `open_system` takes them.

    Returns:
        The run's `bleu_tokenize`; `"13a"` where nothing is known of a run.
    """
    from keras_transformer.runs.run import Run
    from keras_transformer.serving.versions import read_card, version_dir

    if os.path.isfile(path):
        return "13a"
    run = Run.of(path)
    card = run.describe() if run.has_model else read_card(version_dir(path))
    return card.get("recipe", {}).get("bleu_tokenize", "13a")


def lossy_target(path: Path) -> str | None:
    """What the translations of a model lack by its target's vocabulary, in words.

    Args:
        path: A run directory or a SavedModel, as `open_system` takes them.

    Returns:
        A few words where that is WordPiece, whose detokenizing is lossy; else None.
    """
    from keras_transformer.runs.run import Run
    from keras_transformer.serving.versions import read_card, version_dir
    from keras_transformer.tokenizers import saved
    from keras_transformer.tokenizers.vocabularies import detokenizing_loses, from_model

    if os.path.isfile(path):
        return None
    if not Run(path).has_model:
        target = read_card(version_dir(path)).get("vocabulary", {}).get("target", {})
        return target.get("detokenizing_loses")
    model = saved.read(path)[1]
    if saved.ending(model) == saved.SUBWORD:
        return None
    return detokenizing_loses(from_model(model)[1])


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
        translate: Function from a list of strings to a list of as many: `translator.translate`, or
            what `open_system` returns. Or a list of translations, in the order of the pairs.
        pairs: Sequence of (source, target), or of `Pair`s, whose groups are then reported too.
        bleu_tokenize: sacreBLEU's tokenizer: `"13a"` for plain text, `"none"` for text that is
            tokenized already, and so on.
        compare: Another system, given like `translate`.
        n_bootstrap: Number of bootstrap samples, each of as many sentences as there are: some
            seconds and 0.1 MB of memory a sentence for 1,000. 0 leaves intervals and p-values out.
        worst: How many wrong translations to name.

    Returns:
        Dict of what `score_translations` returns and `lines_per_second`: sentences by the seconds
        that `translate` took for all of them. That covers tokenizing, decoding, and tracing the
        graph at the first batch, but not loading the model. None for translations already made.

    Raises:
        ValueError: If there are no pairs, not as many translations as pairs, a negative number of
            samples, or the tokenizer is unknown or not installed.
    """
    if worst < 0:
        raise ValueError(f"worst must not be negative, received {worst}.")
    systems = [translate] if compare is None else [translate, compare]
    # Now, not after an hour of translating.
    make_metrics(bleu_tokenize)
    for system in systems:
        check_lengths(pairs if callable(system) else system, pairs, n_bootstrap)
    sources = [pair[0] for pair in pairs]
    outputs, rate = _run(translate, sources)
    other, other_rate = (None, None) if compare is None else _run(compare, sources)
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
        pairs: Sequence of (source, target), or of `Pair`s, whose groups are then reported too.
        outputs: List of the sources' translations.
        bleu_tokenize: sacreBLEU's tokenizer.
        compare: List of another system's translations of them.
        n_bootstrap: Number of bootstrap samples; 0 leaves intervals and p-values out.
        worst: How many wrong translations to name.

    Returns:
        Dict of `bleu`, `chrf`, `exact_match` (all 0–100), `bleu_interval` and `chrf_interval`
        (lists of low and high: the 95 % interval around the mean of the bootstrap samples),
        `signature` (sacreBLEU's, of both), `sentences`, `by_group` (exact match of each group,
        worst first) and `worst` (wrong translations, the least similar first, each a
        dict of source, target, translation, chrf). With `compare` also of `comparison`: a dict of
        the same scores and intervals of the other system, with `bleu_p_value` and `chrf_p_value`,
        the probabilities of so large a difference by chance alone, 1 where there is none.

    Raises:
        ValueError: As `evaluate` does.
    """
    systems = [outputs] if compare is None else [outputs, compare]
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    for system in systems:
        check_lengths(system, pairs, n_bootstrap)
    report, *others = score_systems(systems, targets, bleu_tokenize, n_bootstrap)
    report |= {
        "sentences": len(pairs),
        "by_group": _by_group(pairs, exact_matches(outputs, targets)),
        "worst": _worst(sources, targets, outputs, worst) if worst else [],
    }
    if others:
        report["comparison"] = others[0]
    return report


def _run(system, sources):
    """Translations and sentences per second, None where there was nothing to be done."""
    if not callable(system):
        return list(system), None
    start = time.perf_counter()
    outputs = system(sources)
    return outputs, len(sources) / (time.perf_counter() - start)


def _by_group(pairs, right):
    """Exact match of each group, worst first; empty where pairs have no groups."""
    hits = collections.defaultdict(list)
    for pair, hit in zip(pairs, right, strict=True):
        if len(pair) > 2 and pair[2]:
            hits[pair[2]].append(hit)
    rates = {group: 100 * sum(values) / len(values) for group, values in hits.items()}
    return dict(sorted(rates.items(), key=lambda item: (item[1], item[0])))


def _worst(sources, targets, outputs, count):
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
