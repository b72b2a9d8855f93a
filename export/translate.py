"""Translates stdin with an exported model: needs TensorFlow and tensorflow-text, nothing of ours.

    python export/translate.py export/models/dates/1 < text

The smallest program that shows that a SavedModel stands on its own. Prints source, translation and
log-probability, a tab between them.
"""

import itertools
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402
import tensorflow_text  # noqa: E402, F401, registers the tokenizers' ops

ROWS = 256  # of a request


def main():
    if len(sys.argv) != 2 or not os.path.exists(os.path.join(sys.argv[1], "saved_model.pb")):
        sys.exit("usage: translate.py VERSION_DIR < text (a directory that holds saved_model.pb)")
    model = tf.saved_model.load(sys.argv[1])
    # Some lines at a time, since all of a request are in memory at once.
    while some := list(itertools.islice(sys.stdin.buffer, ROWS)):
        # Bytes, as the model takes them: not every line has to be UTF-8.
        lines = [line.removesuffix(b"\n").removesuffix(b"\r") for line in some]
        answer = model.signatures["serving_default"](tf.constant(lines))
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
