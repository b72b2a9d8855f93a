"""Recipes for Multi30k at the whole budget of the preset `tiny`, trained by the command line.

    python -m benchmarks.recipes MULTI30K RUNS [NAME ...] [-- option of keras-transformer train ...]

MULTI30K holds the folders `tok` and `raw`. Trains the recipes of recipes.json, or those whose
names begin with one of the given ones, evaluates the best checkpoint of each, and prints a table.
Runs that are there already are not trained again, and those cut off are resumed. On a GPU each
takes minutes, on two cores hours.

recipes.json is a list of `{"name", "options", "seeds"}`, `options` being those of `train` beside
the preset. With `"text": "raw"`, the text is cased and not tokenized; with `"samples"`, the corpus
is prepared with so many segmentations of each pair (BPE-dropout).
"""

import csv
import json
import os
import re
import sys

from benchmarks.ablations import command

RECIPES = os.path.join(os.path.dirname(__file__), "recipes.json")
ENDINGS, BLEU_TOKENIZE = {"tok": ".lc.norm.tok", "raw": ""}, {"tok": "none", "raw": "13a"}
SEARCH = "--beam-size 5 --length-penalty 1.4 --beam-patience inf --max-output-length 64".split()
BPE_DROPOUT = "0.05"
VOCABULARY_SIZE = "6000"  # of the corpus with it


def main(multi30k, runs, names, options):
    """Trains and evaluates what is chosen; prints the table."""
    os.makedirs(runs, exist_ok=True)
    rows = []
    for recipe in read_recipes(names):
        text = recipe.get("text", "tok")
        for seed in recipe["seeds"]:
            words = training(recipe, seed, os.path.join(multi30k, text), runs)
            run = words[words.index("--output") + 1]
            command(*words, *options, *["--resume"] * os.path.exists(run))
            scores = (evaluate(run, multi30k, text, part) for part in ("val", "test_2016_flickr"))
            found = [f"{score:.1f}" for score in (best_greedy(run), *scores)]
            rows.append(f"| {recipe['name']} | {seed} | {' | '.join(found)} |")
    print("| recipe | seed | validation, greedy | validation, beam 5 | test, beam 5 |")
    print("|---|---|---|---|---|", *rows, sep="\n")


def read_recipes(names=()):
    """Returns the recipes whose names begin with one of `names`; all without any."""
    with open(RECIPES) as file:
        recipes = json.load(file)
    for name in names:
        if not any(recipe["name"].startswith(name) for recipe in recipes):
            sys.exit(f"No recipe of {RECIPES} has a name that begins with {name!r}.")
    return [recipe for recipe in recipes if recipe["name"].startswith(tuple(names) or "")]


def training(recipe, seed, folder, runs):
    """Returns the words of `train` for one seed; prepares a corpus with sampled segmentations."""
    text, name = recipe.get("text", "tok"), slug(recipe)
    files = {}
    for part, option in (("train", "train"), ("val", "valid")):
        for language, side in (("en", "source"), ("de", "target")):
            path = os.path.join(folder, f"{part}{ENDINGS[text]}.{language}.gz")
            files[f"--{option}-{side}"] = path
    data = [word for pair in files.items() for word in pair]
    if "samples" in recipe:
        corpus = os.path.join(runs, f"{name}-{recipe['samples']}-samples")
        if not os.path.exists(corpus):
            how = ["--subword-sampling", BPE_DROPOUT, "--samples", str(recipe["samples"])]
            how += ["--vocabulary-size", VOCABULARY_SIZE]
            command("prepare", *data, *how, "--output", corpus)
        data = ["--corpus", corpus]
    output = os.path.join(runs, f"{name}-{seed}")
    how = ["--preset", "tiny", "--bleu-tokenize", BLEU_TOKENIZE[text], "--seed", str(seed)]
    return ["train", *how, *recipe["options"], *data, "--output", output]


def slug(recipe):
    """Returns the name of a recipe for its directories."""
    return re.sub(r"\W+", "-", recipe["name"]).strip("-")


def best_greedy(run):
    """Returns the best BLEU of greedy search on the validation set during the training."""
    with open(os.path.join(run, "history.csv")) as file:
        return max(float(row["val_bleu"]) for row in csv.DictReader(file))


def evaluate(run, multi30k, text, part):
    """Returns BLEU of beam search on a part of Multi30k."""
    names = [f"{part}{ENDINGS[text]}.{language}.gz" for language in ("en", "de")]
    source, target = (os.path.join(multi30k, text, name) for name in names)
    flags = ["--bleu-tokenize", BLEU_TOKENIZE[text], "--n-bootstrap", "0", "--json"]
    report = command("evaluate", run, "--source", source, "--target", target, *flags, *SEARCH)
    return json.loads(report)["bleu"]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    words = sys.argv[3:]
    place = words.index("--") if "--" in words else len(words)
    main(*sys.argv[1:3], words[:place], words[place + 1 :])
