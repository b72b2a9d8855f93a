"""Fine-tuning on Multi30k: `make fine-tuning`.

Trains on half of the pairs and goes on from there on the other half, against as many steps on all
of them, and prints a Markdown table of BLEU on the validation set and minutes. Runs that are there
already are not trained again, and those cut off go on; nothing else should run beside it.

    python -m benchmarks.fine_tuning CORPUS RUNS [option of keras-transformer train ...]
"""

import gzip
import os
import shutil
import sys

from benchmarks.ablations import BEAM, evaluate, train
from keras_transformer.runs.run import Run

BUDGET = 300  # steps of each of the two; an eighth of the recipe's together


def main(corpus, runs, *options):
    """Trains what is missing, evaluates everything, prints the table."""
    halves = split(corpus, runs)
    print("| | BLEU on val | minutes |\n|---|---|---|")
    for name, (text, changes) in trainings(corpus, halves, runs).items():
        run = os.path.join(runs, name.replace(" ", "-"))
        train(text, run, [*options, *changes])
        bleu, minutes = evaluate(corpus, run, *BEAM), Run(run).read_history()[-1]["minutes"]
        print(f"| {name}, beam 5 | {bleu:.1f} | {minutes:.1f} |", flush=True)


def trainings(corpus, halves, runs):
    """Where the text of each training lies, and its options."""
    epoch = ["--steps-per-epoch", str(BUDGET), "--epochs"]
    start = ["--start-from", os.path.join(runs, "one-half")]
    return {
        "one half": (halves[0], [*epoch, "1"]),
        "then the other": (halves[1], [*epoch, "1", *start]),
        "then the other, encoder frozen": (halves[1], [*epoch, "1", *start, "--freeze", "encoder"]),
        "all at once": (corpus, [*epoch, "2"]),
    }


def split(corpus, runs):
    """Writes a corpus of every other pair, and one of those between them."""
    folders = [os.path.join(runs, f"text-{half}") for half in (1, 2)]
    for half, folder in enumerate(folders):
        os.makedirs(folder, exist_ok=True)
        for language in ("en", "de"):
            name = f"train.lc.norm.tok.{language}.gz"
            with gzip.open(os.path.join(corpus, name), "rb") as file:
                lines = file.readlines()[half::2]
            with gzip.open(os.path.join(folder, name), "wb") as file:
                file.writelines(lines)
            shutil.copy(os.path.join(corpus, f"val.lc.norm.tok.{language}.gz"), folder)
    return folders


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
