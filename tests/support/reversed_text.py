"""A task that is learned in seconds: made-up words to themselves, in reverse order."""

import random

import keras_transformer as kt

MODEL = kt.ModelConfig(num_layers=1, d_model=16, num_heads=2, d_ff=32, max_length=32)


def write_corpus(folder, rows, seed):
    """Sentences of made-up words and, as their translation, the words in reverse order."""
    words = ["ba", "ce", "di", "fo", "gu", "kala", "melo", "nitu"]
    chooser = random.Random(seed)
    sources = [chooser.choices(words, k=chooser.randint(2, 6)) for _ in range(rows)]
    paths = folder / f"{rows}.source", folder / f"{rows}.target"
    if not paths[1].exists():  # else other processes of the session may be reading it
        paths[0].write_text("".join(" ".join(line) + "\n" for line in sources))
        paths[1].write_text("".join(" ".join(line[::-1]) + "\n" for line in sources))
    return [str(path) for path in paths]


def config_of(folder, rows=300, valid_rows=40, **changes):
    """The training that most tests begin with: seconds for an epoch, on one device."""
    texts = write_corpus(folder, rows, 1)
    if valid_rows:
        texts += write_corpus(folder, valid_rows, 2)
    usual = dict(vocabulary_size=300, model=MODEL, epochs=2, tokens_per_batch=256)
    usual |= dict(learning_rate=3e-3, warmup_steps=20, strategy="one", jit_compile=False)
    return kt.TrainConfig(*texts, **usual | changes)
