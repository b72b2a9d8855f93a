"""Translates stdin with an exported model: needs TensorFlow and tensorflow-text, nothing of ours.

    python export/translate.py export/models/dates/1 < text

A model that translates between several languages takes their codes, such as en de, as well.

The smallest program that shows that a SavedModel stands on its own. Prints source, translation and
log-probability, a tab between them.
"""

import itertools
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402
import tensorflow_text  # noqa: E402, F401, registers the tokenizers' ops

LANGUAGES = "source_language", "target_language"  # inputs of a model of several
ROWS = 256  # of a request


def main():
    directory, *codes = sys.argv[1:] or [""]
    if not os.path.exists(os.path.join(directory, "saved_model.pb")):
        sys.exit("usage: translate.py VERSION_DIR < text (a directory that holds saved_model.pb)")
    model = tf.saved_model.load(directory)
    translate = model.signatures["serving_default"]
    names = [name for name in LANGUAGES if name in translate.structured_input_signature[1]]
    if len(codes) != len(names):
        sys.exit(f"{directory} needs {' and '.join(names) or 'no language'} after it")
    # Some lines at a time, since all of a request are in memory at once.
    while some := list(itertools.islice(sys.stdin.buffer, ROWS)):
        # Bytes, as the model takes them: not every line has to be UTF-8.
        lines = [line.removesuffix(b"\n").removesuffix(b"\r") for line in some]
        rows = {name: tf.fill([len(lines)], code) for name, code in zip(names, codes, strict=True)}
        answer = translate(text=tf.constant(lines), **rows)
        texts, log_probs = answer["text"].numpy(), answer["log_prob"].numpy()
        for line, text, log_prob in zip(lines, texts, log_probs, strict=True):
            columns = line, b" ".join(text.splitlines()), b"%.4f" % log_prob
            sys.stdout.buffer.write(b"\t".join(columns) + b"\n")
    if "keras_transformer" in sys.modules:
        sys.exit("keras_transformer was imported: this shows nothing")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
