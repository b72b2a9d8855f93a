"""BLEU, chrF and TER of a corpus by sacreBLEU, and exact match; intervals by its bootstrap."""

from collections.abc import Sequence, Sized
from typing import Any

import sacrebleu
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

from keras_transformer.utils import counted

UNSPACED = "zh", "ja-mecab", "ko-mecab", "char"  # tokenizers for text without spaces
QUICK = "bleu", "chrf"  # metrics, which take a second for thousands of sentences


def corpus_scores(
    outputs: Sequence[str],
    references: Sequence[str],
    bleu_tokenize: str = "13a",
    names: Sequence[str] = QUICK,
) -> dict[str, Any]:
    """Scores translations, without intervals.

    Returns:
        Dict of the metrics in `names`, of `bleu`, `chrf` and `ter`, in percent, and `signature`
        (sacreBLEU's, of all).
    """
    check_lengths(outputs, references)
    metrics = {
        name: metric for name, metric in make_metrics(bleu_tokenize).items() if name in names
    }
    scores = {
        name: metric.corpus_score(outputs, [references]).score for name, metric in metrics.items()
    }
    return scores | {"signature": " ".join(str(m.get_signature()) for m in metrics.values())}


def score_systems(
    systems: Sequence[Sequence[str]], targets: Sequence[str], bleu_tokenize: str, n_bootstrap: int
) -> list[dict[str, Any]]:
    """Scores several systems on one test set, with `n_bootstrap` samples; 0 for none.

    Returns:
        For each system a dict of `bleu`, `chrf`, `ter` and `exact_match`, with samples also of
        intervals, and of p-values against the first; the first has the `signature` too.
    """
    reports: list[dict[str, Any]] = []
    for outputs in systems:
        right = [output == target for output, target in zip(outputs, targets, strict=True)]
        reports.append({"exact_match": 100 * sum(right) / len(right)})
    metrics = make_metrics(bleu_tokenize)
    if not n_bootstrap:
        scores = (corpus_scores(x, targets, bleu_tokenize, [*metrics]) for x in systems)
        return [report | more for report, more in zip(reports, scores, strict=True)]
    named = [(str(number), outputs) for number, outputs in enumerate(systems)]
    signatures, results = PairedTest(named, metrics, [targets], "bs", n_bootstrap)()
    reports[0]["signature"] = " ".join(map(str, signatures.values()))
    result: Any  # a Result; sacreBLEU's hint also knows the name of a system
    # sacreBLEU's own names, "BLEU", "chrF2" and "TER", come in the order of ours.
    for name, theirs in zip(metrics, signatures, strict=True):
        for report, result in zip(reports, results[theirs], strict=True):
            report[name] = result.score
            # The mean and half the width; an interval ends at the ends of the scale.
            low, high = float(result.mean - result.ci), float(result.mean + result.ci)
            report[f"{name}_interval"] = [
                max(low, 0.0),
                high if name == "ter" else min(high, 100.0),
            ]
            if result.p_value is not None:
                # For equal scores, sacreBLEU reports a significant difference.
                equal = result.score == reports[0][name]
                report[f"{name}_p_value"] = 1.0 if equal else result.p_value
    return reports


def make_metrics(bleu_tokenize: str) -> dict[str, Metric]:
    """sacreBLEU's metrics by our names for them."""
    if bleu_tokenize not in sacrebleu.BLEU.TOKENIZERS:
        raise ValueError(
            f"sacreBLEU has no tokenizer {bleu_tokenize!r}: choose one of "
            f"{', '.join(sacrebleu.BLEU.TOKENIZERS)}."
        )
    try:
        bleu = sacrebleu.BLEU(tokenize=bleu_tokenize, force=True)
    except (RuntimeError, OSError) as error:  # a package or a download is missing
        reason = " ".join(str(error).split())
        raise ValueError(f"{bleu_tokenize!r} cannot be used as tokenizer: {reason}") from error
    unspaced = bleu_tokenize in UNSPACED
    ter = sacrebleu.TER(normalized=unspaced, asian_support=unspaced)
    return {"bleu": bleu, "chrf": sacrebleu.CHRF(), "ter": ter}


def check_lengths(outputs: Sized, references: Sized, n_bootstrap: int = 0) -> None:
    """Checks the numbers of outputs, references and bootstrap samples."""
    if not len(references):
        raise ValueError("Nothing to evaluate: received no sentence pairs.")
    if len(outputs) != len(references):
        raise ValueError(
            f"Received {counted(len(outputs), 'hypothesis', 'hypotheses')} but "
            f"{counted(len(references), 'reference')}."
        )
    if n_bootstrap < 0:
        raise ValueError(
            f"n_bootstrap must be at least 0, received {n_bootstrap}; 0 means no intervals."
        )
