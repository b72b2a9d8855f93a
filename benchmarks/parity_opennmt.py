"""Computes again what OpenNMT-tf answers: `make parity-opennmt`, with PARITY=--write to keep it."""

import sys

from benchmarks.parity import compare, rounded
from tests.support.parity import load
from tests.support.paths import FIXTURES

SEARCHES = {
    "greedy": dict(beam_width=1, length_penalty=0),
    "beam 4": dict(beam_width=4, length_penalty=0),
    "beam 6": dict(beam_width=6, length_penalty=0.6),
}


def open_model(folder, **params):
    import opennmt as onmt
    import yaml

    config = yaml.safe_load((folder / "data.yml").read_text())
    data = onmt.config.try_prefix_paths(str(folder), config["data"])
    model = onmt.config.load_model_from_file(str(folder / "model_description.py"))
    model.initialize(data, params=config["params"] | params)
    model.create_variables()
    onmt.utils.checkpoint.Checkpoint(model, model_dir=str(folder)).restore(weights_only=True)
    model.labels_inputter.tokenizer = onmt.tokenizers.SpaceTokenizer(in_graph=False)
    name = config["data"]["target_tokenization"]["params"]["model"]
    return model, onmt.tokenizers.SentencePieceTokenizer(str(folder / name))


def answer(folder, kept):
    """What OpenNMT-tf computes: ids, logits, searches, and texts of odd pieces."""
    import opennmt as onmt
    import tensorflow as tf

    lines, searches = kept["lines"], {}
    for name, params in SEARCHES.items():
        model, tokenizer = open_model(folder, **params)
        features = model.features_inputter.make_features(tf.constant(lines), training=False)
        _, found = model(features)
        rows = zip(found["tokens"].numpy()[:, 0], found["length"].numpy()[:, 0], strict=True)
        rows = [[token.decode() for token in row[:length]] for row, length in rows]
        texts = [tokenizer.detokenize(row) if row else "" for row in rows]
        log_probs = rounded(found["log_probs"][:, 0], 5)
        searches[name] = {"tokens": rows, "log_probs": log_probs, "texts": texts}
    ids, lengths = features["ids"].numpy(), features["length"].numpy()
    target = tf.constant(kept["target"])
    labels = {"ids": target, "length": tf.fill([len(lines)], target.shape[1])}
    outputs, _ = model(features, labels)
    return {
        "made with": {"OpenNMT-tf": onmt.__version__, "tensorflow": tf.__version__},
        "lines": lines,
        "searches": searches,
        "odd": {piece: tokenizer.detokenize(["▁a", piece]) for piece in kept["odd"]},
        "ids": [row[:n].tolist() for row, n in zip(ids, lengths, strict=True)],
        "target": kept["target"],
        "logits": rounded(outputs["logits"][: len(kept["logits"])], 6),
    }


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # beside model_description.py
    for file in sorted((FIXTURES / "opennmt").glob("*/answers.json")):
        compare(file, answer(file.parent, load(file)), "--write" in sys.argv[1:])
