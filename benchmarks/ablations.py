"""What each ingredient of the recipe is worth on Multi30k: `make ablations`.

Trains short runs that share one budget, differing in one ingredient each, and prints a Markdown
table of their BLEU on the validation set. Runs that are there already are not trained again, and
those cut off go on; nothing else should run beside it. `RECIPE="--epochs 8"` gives them half of the
full budget instead of an eighth.

    python -m benchmarks.ablations CORPUS RUNS [option of keras-transformer train ...]
"""

import json
import os
import subprocess
import sys

COMMAND = os.path.join(os.path.dirname(sys.executable), "keras-transformer")
# An eighth of the full budget, warm-up and EMA shortened: a quarter of an hour each on two cores.
BUDGET = ["--epochs", "2", "--steps-per-epoch", "300", "--warmup-steps", "400", "--ema", "0.99"]
BEAM = ["--beam-size", "5", "--beam-patience", "inf"]
VARIANTS = {
    "the recipe": [],
    "no EMA of the weights": ["--ema", "0"],
    "no label smoothing": ["--label-smoothing", "0"],
    "no weight decay": ["--weight-decay", "0"],
    # Half as large each: as many embeddings.
    "separate vocabularies": ["--share-embeddings", "target", "--vocabulary-size", "3000"],
    "pre-norm": ["--norm", "pre"],
    "sinusoidal positions": ["--positions", "sinusoidal"],
    "relative positions": ["--positions", "relative"],
    # About as many weights: what the embeddings do not need goes into the depth.
    "9,900 tokens, 4 layers": ["--vocabulary-size", "9900", "--num-layers", "4"],
    "4,000 tokens, 6 layers": ["--vocabulary-size", "4000", "--num-layers", "6"],
    "2,000 tokens, 7 layers": ["--vocabulary-size", "2000", "--num-layers", "7"],
    "dropout 0.2": ["--dropout", "0.2"],
    "dropout 0.4": ["--dropout", "0.4"],
    **{f"R-Drop, alpha {alpha}": ["--rdrop", alpha] for alpha in ("0", "0.5", "3", "5")},
}


def main(corpus, runs, *options):
    """Trains what is missing, evaluates everything, prints the table."""
    os.makedirs(runs, exist_ok=True)
    rows = []
    for name, changes in VARIANTS.items():
        run = os.path.join(runs, name.replace(" ", "-"))
        train(corpus, run, [*options, *changes])
        rows.append((f"{name}, beam 5", evaluate(corpus, run, *BEAM)))
        if not changes:
            rows.append((f"{name}, greedy", evaluate(corpus, run)))
    print("| | BLEU on val | difference |\n|---|---|---|")
    reference = rows[0][1]
    for name, bleu in rows:
        print(f"| {name} | {bleu:.1f} | {bleu - reference:+.1f} |")


def train(corpus, run, options):
    """Trains into `run`, or goes on where it was cut off."""
    resume = ["--resume"] if os.path.exists(run) else []
    command("train", *training(corpus, run, options), *resume)


def training(corpus, run, options):
    """The options of `keras-transformer train`."""
    files = []
    for part, option in (("train", "train"), ("val", "valid")):
        for language, side in (("en", "source"), ("de", "target")):
            files += [f"--{option}-{side}", f"{corpus}/{part}.lc.norm.tok.{language}.gz"]
    recipe = ["--preset", "tiny", "--bleu-tokenize", "none", *BUDGET, *options]
    return [*files, *recipe, "--output", run]  # options may name other files


def evaluate(corpus, run, *options):
    """BLEU of a run on the validation set."""
    files = ["--source", f"{corpus}/val.lc.norm.tok.en.gz"]
    files += ["--target", f"{corpus}/val.lc.norm.tok.de.gz"]
    flags = ["--bleu-tokenize", "none", "--n-bootstrap", "0", "--max-output-length", "64", "--json"]
    return json.loads(command("evaluate", run, *files, *flags, *options))["bleu"]


def command(*arguments):
    """Runs `keras-transformer`; its progress goes to stderr, what it returns is its stdout."""
    done = subprocess.run([COMMAND, *arguments], stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(done.returncode)  # the command has said why
    return done.stdout


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
