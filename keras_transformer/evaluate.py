"""How good translations are: BLEU and chrF by sacreBLEU, and exact match.

Intervals and the comparison of two systems are sacreBLEU's bootstrap: the test set is drawn anew,
with replacement, `n_bootstrap` times, and scored each time.
"""

import collections
import os
import time

import sacrebleu
from sacrebleu.significance import PairedTest


def open_system(path, **options):
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
    from keras_transformer.corpora.text_files import read_lines
    from keras_transformer.run_directory import open_translator

    return read_lines(path) if os.path.isfile(path) else open_translator(path, **options)


def evaluate(translate, pairs, bleu_tokenize="13a", compare=None, n_bootstrap=1000):
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

    Returns:
        Dict of what `score_translations` returns and `lines_per_second`: sentences by the seconds
        that `translate` took for all of them. That covers tokenizing, decoding, and tracing the
        graph at the first batch, but not loading the model. None for translations already made.

    Raises:
        ValueError: If there are no pairs, not as many translations as pairs, a negative number of
            samples, or the tokenizer is unknown or not installed.
    """
    systems = [translate] if compare is None else [translate, compare]
    # Now, not after an hour of translating.
    _metrics(bleu_tokenize)
    for system in systems:
        _check(pairs if callable(system) else system, pairs, n_bootstrap)
    sources = [pair[0] for pair in pairs]
    outputs, rate = _run(translate, sources)
    other, other_rate = (None, None) if compare is None else _run(compare, sources)
    report = score_translations(pairs, outputs, bleu_tokenize, other, n_bootstrap)
    report["lines_per_second"] = rate
    if compare is not None:
        report["comparison"]["lines_per_second"] = other_rate
    return report


def score_translations(pairs, outputs, bleu_tokenize="13a", compare=None, n_bootstrap=1000):
    """Compares translations with the targets, and with another system's translations.

    Args:
        pairs: Sequence of (source, target), or of `Pair`s, whose groups are then reported too.
        outputs: List of the sources' translations.
        bleu_tokenize: sacreBLEU's tokenizer.
        compare: List of another system's translations of them.
        n_bootstrap: Number of bootstrap samples; 0 leaves intervals and p-values out.

    Returns:
        Dict of `bleu`, `chrf`, `exact_match` (all 0–100), `bleu_interval` and `chrf_interval`
        (lists of low and high: the 95 % interval around the mean of the bootstrap samples),
        `signature` (sacreBLEU's, of both), `sentences`, `by_group` (exact match of each group,
        worst first) and `worst` (up to ten wrong translations, the least similar first, each a
        dict of source, target, translation, chrf). With `compare` also of `comparison`: a dict of
        the same scores and intervals of the other system, with `bleu_p_value` and `chrf_p_value`,
        the probabilities of so large a difference by chance alone, 1 where there is none.

    Raises:
        ValueError: As `evaluate` does.
    """
    systems = [outputs] if compare is None else [outputs, compare]
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    for system in systems:
        _check(system, pairs, n_bootstrap)
    report, *others = _scores(systems, targets, bleu_tokenize, n_bootstrap)
    report |= {
        "sentences": len(pairs),
        "by_group": _by_group(pairs, _hits(outputs, targets)),
        "worst": _worst(sources, targets, outputs),
    }
    if others:
        report["comparison"] = others[0]
    return report


def corpus_scores(outputs, references, bleu_tokenize="13a"):
    """Scores translations, without intervals: quick enough for every validation.

    Args:
        outputs: List of strings, the translations.
        references: List of as many strings, what they should be.
        bleu_tokenize: sacreBLEU's tokenizer.

    Returns:
        Dict of `bleu`, `chrf` (both 0–100) and `signature` (sacreBLEU's, of both).

    Raises:
        ValueError: If there are none, the numbers of outputs and references differ, or the
            tokenizer is unknown or not installed.
    """
    _check(outputs, references)
    metrics = _metrics(bleu_tokenize)
    scores = {
        name: metric.corpus_score(outputs, [references]).score for name, metric in metrics.items()
    }
    return scores | {"signature": " ".join(str(m.get_signature()) for m in metrics.values())}


def _scores(systems, targets, bleu_tokenize, n_bootstrap):
    """Scores of each system; with samples, also intervals, and p-values against the first."""
    reports = []
    for outputs in systems:
        right = _hits(outputs, targets)
        reports.append({"exact_match": 100 * sum(right) / len(right)})
    if not n_bootstrap:
        scores = (corpus_scores(outputs, targets, bleu_tokenize) for outputs in systems)
        return [report | more for report, more in zip(reports, scores, strict=True)]
    named = [(str(number), outputs) for number, outputs in enumerate(systems)]
    metrics = _metrics(bleu_tokenize)
    signatures, results = PairedTest(named, metrics, [targets], "bs", n_bootstrap)()
    reports[0]["signature"] = " ".join(map(str, signatures.values()))
    # sacreBLEU's own names, "BLEU" and "chrF2", come in the order of ours.
    for name, theirs in zip(metrics, signatures, strict=True):
        for report, result in zip(reports, results[theirs], strict=True):
            report[name] = result.score
            # The mean and half the width; where scores reach an end of the scale, it ends there.
            low, high = float(result.mean - result.ci), float(result.mean + result.ci)
            report[f"{name}_interval"] = [max(low, 0.0), min(high, 100.0)]
            if result.p_value is not None:
                # Of equal scores, sacreBLEU calls the difference of nothing significant.
                equal = result.score == reports[0][name]
                report[f"{name}_p_value"] = 1.0 if equal else result.p_value
    return reports


def _metrics(bleu_tokenize):
    """The metrics by our names for them."""
    if bleu_tokenize not in sacrebleu.BLEU.TOKENIZERS:
        raise ValueError(
            f"sacreBLEU has no tokenizer {bleu_tokenize!r}: choose one of "
            f"{', '.join(sacrebleu.BLEU.TOKENIZERS)}."
        )
    try:
        bleu = sacrebleu.BLEU(tokenize=bleu_tokenize, force=True)
    except (RuntimeError, OSError) as error:  # a package or a download is missing
        reason = " ".join(str(error).split())
        raise ValueError(f"{bleu_tokenize!r} cannot be used to compare: {reason}") from error
    return {"bleu": bleu, "chrf": sacrebleu.CHRF()}


def _check(outputs, references, n_bootstrap=0):
    if not len(references):
        raise ValueError("There is nothing to evaluate: no sentence pair was given.")
    if len(outputs) != len(references):
        raise ValueError(
            f"There are {len(outputs)} hypotheses but {len(references)} references: give one "
            "translation for each reference, in the same order."
        )
    if n_bootstrap < 0:
        raise ValueError(
            f"n_bootstrap={n_bootstrap} is no number of samples: give 1000, or 0 for no intervals."
        )


def _run(system, sources):
    """Translations and sentences per second, None where there was nothing to be done."""
    if not callable(system):
        return list(system), None
    start = time.perf_counter()
    outputs = system(sources)
    return outputs, len(sources) / (time.perf_counter() - start)


def _hits(outputs, targets):
    return [output == target for output, target in zip(outputs, targets, strict=True)]


def _by_group(pairs, right):
    """Exact match of each group, worst first; empty where pairs have no groups."""
    hits = collections.defaultdict(list)
    for pair, hit in zip(pairs, right, strict=True):
        if len(pair) > 2 and pair[2]:
            hits[pair[2]].append(hit)
    rates = {group: 100 * sum(values) / len(values) for group, values in hits.items()}
    return dict(sorted(rates.items(), key=lambda item: (item[1], item[0])))


def _worst(sources, targets, outputs, count=10):
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
