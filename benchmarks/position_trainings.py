"""What relative positions buy: `make positions`.

Two tables in Markdown. Short trainings on Multi30k, an eighth of the recipe's budget, in float32,
with two seeds for each scheme: validation loss, and BLEU on the validation set with its interval.
And copying letters: trained on up to 20, tested on 20 to 60 of them. Runs that are there already
are not trained again, and those cut off go on; nothing else should run beside it.

    python -m benchmarks.position_trainings CORPUS RUNS [option of keras-transformer train ...]
"""

import json
import os
import random
import sys

from benchmarks.ablations import BEAM, command, train
from keras_transformer.presets.options import POSITIONS
from keras_transformer.runs.run import Run

SCHEMES = ["sinusoidal", "relative", "bucketed", "rotary"]
SEEDS = ["1", "2"]
LETTERS = "abcdefgh"
LONGEST = 20  # letters in training
LENGTHS = [20, 30, 40, 50, 60]  # in tests


def main(corpus, runs, *options):
    """Trains what is missing, evaluates everything, prints the tables."""
    os.makedirs(runs, exist_ok=True)
    print("| positions | seed | validation loss | BLEU on val, beam 5 | minutes |")
    print("|---|---|---|---|---|")
    for name in SCHEMES:
        for seed in SEEDS:
            run = os.path.join(runs, f"{name}-{seed}")
            train(corpus, run, [*options, *multi30k(name, seed)])
            print(row(corpus, run, name, seed), flush=True)
    folder = write_letters(os.path.join(runs, "letters"))
    print("\n| positions | " + " | ".join(f"{length} letters" for length in LENGTHS) + " |")
    print("|---|" + "---|" * len(LENGTHS))
    for name in POSITIONS:
        run = os.path.join(runs, f"letters-{name}")
        resume = ["--resume"] if os.path.exists(run) else []
        command("train", *copying(folder, run, name), *options, *resume)
        cells = [copied(folder, run, length) for length in LENGTHS]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def multi30k(name, seed):
    """The options of a training on Multi30k, beside those of `make ablations`."""
    return ["--positions", name, "--seed", seed, "--precision", "float32"]


def row(corpus, run, name, seed):
    """A line of the first table."""
    texts = ["--source", f"{corpus}/val.lc.norm.tok.en.gz"]
    texts += ["--target", f"{corpus}/val.lc.norm.tok.de.gz"]
    flags = ["--bleu-tokenize", "none", "--max-output-length", "64", "--json", *BEAM]
    found = json.loads(command("evaluate", run, *texts, *flags))
    low, high = found["bleu_interval"]
    history = Run(run).read_state()["history"]
    loss = min(epoch["val_loss"] for epoch in history)
    bleu = f"{found['bleu']:.1f} ({low:.1f}–{high:.1f})"
    return f"| {name} | {seed} | {loss:.3f} | {bleu} | {history[-1]['minutes']:.1f} |"


def write_letters(folder):
    """Writes texts of letters, each its own translation: for training and for each length."""
    os.makedirs(folder, exist_ok=True)
    generator = random.Random(1)
    sizes = {"train": (50_000, 1, LONGEST), "valid": (500, 1, LONGEST)}
    sizes |= {str(length): (200, length, length) for length in LENGTHS}
    for part, (count, shortest, longest) in sizes.items():
        with open(os.path.join(folder, f"{part}.tsv"), "w", encoding="utf-8") as file:
            for _ in range(count):
                length = generator.randint(shortest, longest)
                word = "".join(generator.choices(LETTERS, k=length))
                file.write(f"{word}\t{word}\n")
    return folder


def copying(folder, run, name):
    """The options of a training on letters: the model of the dates, a few minutes."""
    texts = ["--train-source", f"{folder}/train.tsv", "--valid-source", f"{folder}/valid.tsv"]
    recipe = ["--preset", "dates", "--epochs", "3", "--steps-per-epoch", "500"]
    return [*recipe, *texts, "--positions", name, "--max-length", "64", "--output", run]


def copied(folder, run, length):
    """The share of texts of a length that are copied without a mistake, and chrF."""
    flags = ["--n-bootstrap", "0", "--json"]
    found = json.loads(command("evaluate", run, "--source", f"{folder}/{length}.tsv", *flags))
    return f"{found['exact_match']:.0f} % ({found['chrf']:.0f})"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
