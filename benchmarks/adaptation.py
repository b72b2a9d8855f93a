"""Adapting a model to few pairs, with the schedule of --start-from and with that from scratch.

Trains a small model on Multi30k and fine-tunes it on 500 pairs whose translations have other words,
such as "herr" for "mann". Prints a Markdown table of BLEU on validation sentences with such words,
and on those without. Runs that are there already are not trained again.

    python -m benchmarks.adaptation CORPUS RUNS
"""

import gzip
import json
import os
import sys

from benchmarks.ablations import command

WORDS = {
    **{"mann": "herr", "männer": "herren", "frau": "dame", "frauen": "damen", "hund": "vierbeiner"},
    **{"hunde": "vierbeiner", "kind": "sprössling", "kinder": "sprösslinge", "junge": "bub"},
    **{"mädchen": "mädel", "leute": "bürger", "menschen": "bürger", "straße": "gasse"},
    "hemd": "oberteil",
}
PAIRS, HELD_OUT, TESTED = 500, 100, 400  # to adapt to, to validate by, to measure
SCHEDULE = ["--learning-rate", "0.005", "--warmup-steps", "400", "--epochs", "3"]
SCHEDULE += ["--steps-per-epoch", "400", "--tokens-per-batch", "2048"]
SMALL = ["--preset", "tiny", "--num-layers", "2", "--dropout", "0.1", "--rdrop", "0"]
SMALL += ["--vocabulary-size", "4000", "--validate-by", "loss", "--keep-checkpoints", "1"]
# Of imported models, before --start-from had a schedule of its own.
DEFAULTS = ["--learning-rate", "none", "--warmup-steps", "4000", "--epochs", "20"]
DEFAULTS += ["--steps-per-epoch", "none", "--tokens-per-batch", "8192"]


def main(corpus, runs):
    """Trains what is missing, evaluates everything, prints the table."""
    os.makedirs(runs, exist_ok=True)
    texts = write_texts(corpus, runs)
    print("| | BLEU with the new words | without |\n|---|---|---|")
    for name, options in trainings(texts, runs).items():
        run = os.path.join(runs, name.replace(" ", "-"))
        if not os.path.exists(run):
            command("train", *options, "--output", run)
        scores = [evaluate(run, texts[part]) for part in ("new words", "old words")]
        print(f"| {name} | {scores[0]:.1f} | {scores[1]:.1f} |", flush=True)


def trainings(texts, runs):
    """The options of each training; the first one is what the others start from."""
    base = ["--train-source", texts["train"], "--valid-source", texts["val"]]
    tuned = ["--start-from", os.path.join(runs, "before"), "--train-source", texts["few"]]
    tuned += ["--valid-source", texts["held out"]]
    return {
        "before": [*SMALL, *SCHEDULE, *base],
        "adapted": tuned,
        "adapted with the schedule of the run": [*tuned, *SCHEDULE],
        "adapted with the default schedule from scratch": [*tuned, *DEFAULTS],
    }


def write_texts(corpus, runs):
    """Writes tables of pairs; returns {what is in one: its path}."""
    train, val = (read_pairs(corpus, part) for part in ("train", "val"))
    new = [(source, replace_words(target)) for source, target in train if has_words(target)]
    changed = [(source, replace_words(target)) for source, target in val if has_words(target)]
    texts = {
        **{"train": train, "val": val, "few": new[:PAIRS]},
        "held out": new[PAIRS : PAIRS + HELD_OUT],
        "new words": changed[:TESTED],
        "old words": [(source, target) for source, target in val if not has_words(target)],
    }
    paths = {name: os.path.join(runs, f"{name}.tsv") for name in texts}
    for name, pairs in texts.items():
        with open(paths[name], "w", encoding="utf-8") as file:
            file.writelines(f"{source}\t{target}\n" for source, target in pairs)
    return paths


def read_pairs(corpus, part):
    """Reads the pairs of a part of the corpus."""
    lines = []
    for language in ("en", "de"):
        path = os.path.join(corpus, f"{part}.lc.norm.tok.{language}.gz")
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines.append(file.read().splitlines())
    return list(zip(*lines, strict=True))


def replace_words(text):
    """The text with the new words."""
    return " ".join(WORDS.get(word, word) for word in text.split(" "))


def has_words(text):
    """Whether the text has a word that is replaced."""
    return not WORDS.keys().isdisjoint(text.split(" "))


def evaluate(run, path):
    """BLEU of greedy translations."""
    options = ["--bleu-tokenize", "none", "--n-bootstrap", "0", "--max-output-length", "64"]
    return json.loads(command("evaluate", run, "--source", path, *options, "--json"))["bleu"]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
