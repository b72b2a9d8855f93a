"""The examples in docstrings, and what those of them find that begin with a user's files."""

import ast
import contextlib
import dataclasses
import gzip
import pathlib
import shutil

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.train import train
from tests.support.made_once import made_once
from tests.support.paths import FIXTURES, ROOT

PACKAGE = ROOT / "keras_transformer"
DATES = [("samedi 9 mai 1998", "1998-05-09"), ("9 May 1998", "1998-05-09")]
DATES += [("14 juillet 1789", "1789-07-14"), ("3 June 2001", "2001-06-03")]


def docstrings_with_examples():
    """{"layers.attention.MultiHeadAttention": (its module, its docstring)} and so on, of all."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for name, docstring in docstrings_of(ast.parse(path.read_text(encoding="utf-8")), module):
            if ">>>" in docstring:
                found[name.removeprefix("keras_transformer.")] = module, docstring
    return found


def docstrings_of(node, name):
    yield name, ast.get_docstring(node) or ""
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from docstrings_of(child, f"{name}.{child.name}")


def user_files(tmp_path_factory):
    """A folder of a user's files and the small run `runs/dates`: leave it as it is."""

    def make(folder):
        with contextlib.chdir(folder):
            write_files()
            make_run()

    return made_once(tmp_path_factory, "user-files", make)


def write_files():
    """Texts, with as many words as a vocabulary of 8,000 ids needs, and a table of the dates."""
    random = np.random.default_rng(0)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = ["".join(random.choice(letters, size)) for size in random.integers(3, 12, 9000)]
    text = ["two dogs", *(" ".join(words[start : start + 9]) for start in range(0, 9000, 3))]
    for side, lines in (("en", text), ("de", ["zwei Hunde", *text[1:]])):
        content = "".join(f"{line}\n" for line in lines).encode()
        pathlib.Path(f"a.{side}").write_bytes(content)
        pathlib.Path(f"part-1.{side}.gz").write_bytes(gzip.compress(content))
    shutil.copytree(FIXTURES / "marian" / "tied", "opus-mt-en-de")
    vocabulary = pathlib.Path("opus-mt-en-de/vocab.json")
    # The model has one target language.
    vocabulary.write_text(vocabulary.read_text().replace(">>", "_").replace("<<", "_"))
    pathlib.Path("dates.tsv").write_text("".join(f"{x}\t{y}\n" for x, y in DATES * 4))
    known = {0: "[PAD]", 1: "[UNK]", 2: "[CLS]", 3: "[SEP]"}  # and others of BERT's
    known |= {1996: "the", 4937: "cat", 7771: "slept", 1012: "."}
    pieces = [known.get(number, f"[unused{number}]") for number in range(8000)]
    pathlib.Path("vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    with open("glove.6B.300d.txt", "w", encoding="utf-8") as file:
        for word in ("the", *words):
            file.write(f"{word} {' '.join(map(str, random.integers(1, 9, 300)))}\n")


def make_run():
    """A real training of seconds, of what examples call `translator`."""
    preset, sizes = kt.get_preset("dates"), dict(num_layers=1, d_model=32, num_heads=2, d_ff=64)
    changes = dict(model=dataclasses.replace(preset.model, dropout=0.0, **sizes))
    changes |= dict(train_source="dates.tsv", valid_source="dates.tsv", learning_rate=1e-2, ema=0.0)
    changes |= dict(epochs=2, steps_per_epoch=100, tokens_per_batch=512, warmup_steps=20)
    train(dataclasses.replace(preset, **changes), "runs/dates")


def make_names():
    """What examples may name without having said what it is."""
    translator = kt.load("runs/dates")
    model, tokenizer = translator.model, translator.source_tokenizer
    model.compile(keras.optimizers.Adam(1e-4), kt.SmoothedCrossEntropy(), jit_compile=False)
    names = {name: getattr(kt, name) for name in kt.__all__}
    names |= dict(np=np, tf=tf, keras=keras, kt=kt, keras_transformer=kt, dataclasses=dataclasses)
    names |= dict(model=model, tokenizer=tokenizer, translator=translator, pairs=DATES)
    names["text"] = "samedi 9 mai 1998"
    names["dataset"] = kt.make_dataset(DATES, tokenizer, tokenizer, tokens_per_batch=512)
    names["source"] = tokenizer(["samedi 9 mai 1998"], end=True).to_tensor()
    names["target"] = tf.constant([[kt.START, *tokenizer("1998-05-09").numpy()]])
    with open("a.en", encoding="utf-8") as file:
        names["lines"] = ["the quick brown fox", *file.read().splitlines()]
    return names
