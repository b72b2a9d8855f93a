"""Whether word vectors help where there are few pairs: `make word-vectors`.

Makes vectors of 300 numbers from the 29,000 English sentences of Multi30k (how often words are seen
together, as positive pointwise mutual information, and the largest singular vectors of that: PPMI
and SVD), trains on the first 2,000 pairs with and without them, with two seeds, and prints a
Markdown table of loss and BLEU on the validation set. Runs that are there already are not trained
again, and those cut off go on; nothing else should run beside it.

    python -m benchmarks.word_vectors CORPUS RUNS [option of keras-transformer train ...]
"""

import collections
import gzip
import os
import shutil
import sys

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from benchmarks.ablations import train
from keras_transformer.runs.run import Run

PAIRS, WIDTH, WINDOW = 2000, 300, 5
# Separate vocabularies, so that the source's vectors can be frozen; 900 steps, 60 passes.
RECIPE = "--share-embeddings target --vocabulary-size 3000 --tokens-per-batch 2048".split()
RECIPE += "--epochs 12 --steps-per-epoch 75 --warmup-steps 200".split()
SEEDS = ("1", "2")


def main(corpus, runs, *options):
    """Trains what is missing and prints the table."""
    os.makedirs(runs, exist_ok=True)
    vectors, few = os.path.join(runs, "vectors.txt"), os.path.join(runs, "text")
    if not os.path.exists(vectors):
        write_vectors(corpus, vectors)
    copy_beginning(corpus, few)
    given = ["--source-vectors", vectors]
    variants = {"without vectors": [], "with": given}
    print("| | val loss | val BLEU, greedy |\n|---|---|---|")
    for name, changes in variants.items():
        for seed in SEEDS:
            run = os.path.join(runs, f"{name.replace(' ', '-')}-{seed}")
            train(few, run, [*RECIPE, "--seed", seed, *options, *changes])
            print(f"| {name}, seed {seed} | {told(Run(run).describe())} |", flush=True)


def told(card):
    """Scores of a run's best model."""
    scores = card["metrics"]
    return f"{scores['val_loss']:.3f} | {scores['val_bleu']:.1f}"


def copy_beginning(corpus, folder):
    """A corpus of the first pairs, and the whole validation set."""
    os.makedirs(folder, exist_ok=True)
    for language in ("en", "de"):
        name = f"train.lc.norm.tok.{language}.gz"
        with gzip.open(os.path.join(corpus, name), "rb") as file:
            lines = file.readlines()[:PAIRS]
        with gzip.open(os.path.join(folder, name), "wb") as file:
            file.writelines(lines)
        shutil.copy(os.path.join(corpus, f"val.lc.norm.tok.{language}.gz"), folder)


def write_vectors(corpus, path):
    """Vectors of all words that are seen twice, as GloVe's files have them."""
    with gzip.open(os.path.join(corpus, "train.lc.norm.tok.en.gz"), "rt", encoding="utf-8") as file:
        sentences = [line.split() for line in file]
    counts = collections.Counter(word for sentence in sentences for word in sentence)
    words = {word: i for i, (word, count) in enumerate(counts.most_common()) if count > 1}
    together = collections.Counter()
    for sentence in sentences:
        ids = [words[word] for word in sentence if word in words]
        for i, id in enumerate(ids):
            together.update((id, other) for other in ids[i + 1 : i + 1 + WINDOW])
    rows, columns = np.array(list(together)).T
    seen = scipy.sparse.coo_matrix((list(together.values()), (rows, columns)), (len(words),) * 2)
    seen = (seen + seen.T).tocoo()
    of_word = np.asarray(seen.sum(axis=1)).ravel()
    context = of_word**0.75  # frequent contexts count for less (Levy et al., 2015)
    expected = of_word[seen.row] * context[seen.col] / context.sum()
    values = np.maximum(np.log(seen.data / expected), 0)
    ppmi = scipy.sparse.csr_matrix((values, (seen.row, seen.col)), seen.shape)
    begin = np.random.default_rng(1).normal(size=len(words))
    left, strength, _ = scipy.sparse.linalg.svds(ppmi, k=WIDTH, v0=begin)
    with open(path, "w", encoding="utf-8") as file:
        for word, row in zip(words, left * np.sqrt(strength), strict=True):
            file.write(f"{word} {' '.join(f'{x:.5f}' for x in row)}\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
