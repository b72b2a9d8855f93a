"""How good translations are: BLEU and chrF by sacreBLEU, and exact match."""

import collections

import sacrebleu


def evaluate(translate, pairs, bleu_tokenize="13a"):
    """Translates the sources and compares with the targets.

    Args:
        translate: Function from a list of strings to a list of as many: `translator.translate`, or
            what `open_translator` returns.
        pairs: Sequence of (source, target), or of `Pair`s, whose groups are then reported too.
        bleu_tokenize: sacreBLEU's tokenizer: `"13a"` for plain text, `"none"` for text that is
            tokenized already, and so on.

    Returns:
        Dict of `bleu`, `chrf`, `exact_match` (all 0–100), `signature` (sacreBLEU's, of both),
        `sentences`, `by_group` (exact match of each group, worst first) and `worst` (up to ten
        wrong translations, the least similar first, each a dict of source, target, translation,
        chrf).

    Raises:
        ValueError: If there are no pairs, or the tokenizer is unknown or not installed.
    """
    if not len(pairs):
        raise ValueError("There is nothing to evaluate: no sentence pair was given.")
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
    chrf = sacrebleu.CHRF()
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    outputs = translate(sources)
    bleu_score = bleu.corpus_score(outputs, [targets]).score
    chrf_score = chrf.corpus_score(outputs, [targets]).score
    right = [output == target for output, target in zip(outputs, targets, strict=True)]
    return {
        "bleu": bleu_score,
        "chrf": chrf_score,
        "exact_match": 100 * sum(right) / len(right),
        "signature": f"{bleu.get_signature()} {chrf.get_signature()}",
        "sentences": len(pairs),
        "by_group": _by_group(pairs, right),
        "worst": _worst(sources, targets, outputs),
    }


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
