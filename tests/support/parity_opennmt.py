"""Random OpenNMT-tf models, and what OpenNMT-tf computes with them.

    make parity-opennmt                  # compares tests/fixtures/opennmt with their answers
    make parity-opennmt PARITY=--write   # makes both again

Every tensor is drawn, see `marian_models`.
"""

import json
import pathlib
import shutil
import sys

import numpy as np

from tests.support.marian_models import (
    DROPPED,
    SENTENCES,
    SIDES,
    TAGS,
    draw,
    read_pieces,
    train_spm,
)

DESCRIPTION = """import opennmt as onmt
import tensorflow as tf


class Small(onmt.models.Transformer):
    def __init__(self):
        super().__init__(
            onmt.inputters.WordEmbedder(embedding_size=12),
            onmt.inputters.WordEmbedder(12),
            num_layers={layers},
            num_units=12,
            num_heads=4,
            ffn_inner_dim=20,
            {options}
        )


model = Small
"""
SHARING = "share_embeddings=onmt.models.EmbeddingsSharingLevel."
# Name: options of the model, seed, bias of END, whether sources end with END, and the search.
FIXTURES = {
    "all": dict(options=f"{SHARING}ALL", layers=(2, 1), seed=2, end_bias=6.0, joint=True),
    "target": dict(
        options=f"{SHARING}TARGET, pre_norm=False, ffn_activation=tf.nn.silu",
        seed=4,
        end_bias=2.5,
        sharpness=2.0,
        source_end=True,
    ),
    "input": dict(options=f"{SHARING}SOURCE_TARGET_INPUT", seed=1, end_bias=6.0, joint=True),
    "none": dict(
        options="ffn_activation=tf.nn.relu, dropout=0.2", seed=1, end_bias=6.0, optimizer=True
    ),
}
SEARCHES = {
    "greedy": dict(beam_width=1),
    "beam 4": dict(beam_width=4),
    "beam 6": dict(beam_width=6, length_penalty=0.6),
}
LONGEST = 30  # tokens of a translation
OWN = dict(**SEARCHES["beam 6"], maximum_decoding_length=LONGEST)  # of data.yml
SHARPNESS = 4.0  # of the probabilities; if they are flat, END below a beam's best may win
FEW = 2  # lines whose logits are kept
LINES = [*SENTENCES["source"][:5], "The sun, too late!", "A 漢 dog", "漢字é", ">>fra<< Two dogs."]


def make_folder(folder, options, layers=1, joint=False, source_end=False, **_):
    """Writes what a run directory of OpenNMT-tf holds besides its checkpoints."""
    import yaml

    folder.mkdir(parents=True)
    models = [train_spm(side) for side in SIDES]
    if joint:
        models = [models[0]] * 2
    data = {}
    for side, model in zip(SIDES, models, strict=True):
        name = "joint" if joint else side
        (folder / f"{name}.model").write_bytes(model)
        pieces = [x for x in read_pieces(model)[3:] if x not in DROPPED] + [*TAGS, "xyz"]
        pieces.sort(key=lambda piece: (sum(piece.encode()) % 7, piece))  # not those of the model
        lines = ["<blank>", "<s>", "</s>", *pieces]
        (folder / f"{name}.vocab").write_text("\n".join(lines) + "\n", encoding="utf-8")
        tokenizer = {"type": "SentencePieceTokenizer", "params": {"model": f"{name}.model"}}
        data |= {f"{side}_vocabulary": f"{name}.vocab", f"{side}_tokenization": tokenizer}
    if source_end:
        data["source_sequence_controls"] = {"end": True}
    config = {"model_dir": ".", "data": data, "params": OWN}
    (folder / "data.yml").write_text(yaml.safe_dump(config))
    (folder / "model_description.py").write_text(DESCRIPTION.format(options=options, layers=layers))


def open_model(folder, params=None, restore=True):
    """The model of a folder, with tokens as its output."""
    import opennmt as onmt
    import yaml

    config = yaml.safe_load((folder / "data.yml").read_text())
    data = onmt.config.try_prefix_paths(str(folder), config["data"])
    model = onmt.config.load_model_from_file(str(folder / "model_description.py"))
    model.initialize(data, params=config["params"] | (params or {}))
    model.create_variables()
    if restore:
        checkpoint = onmt.utils.checkpoint.Checkpoint(model, model_dir=str(folder))
        checkpoint.restore(weights_only=True)
    model.labels_inputter.tokenizer = onmt.tokenizers.SpaceTokenizer(in_graph=False)
    return model


def write_checkpoint(folder, seed, end_bias, sharpness=SHARPNESS, optimizer=False, **_):
    """Draws all weights and saves them, with an optimizer as in a training, or without."""
    import opennmt as onmt
    import tensorflow as tf

    model, parts = open_model(folder, restore=False), {}
    if optimizer:
        parts["optimizer"] = onmt.optimizers.make_optimizer("SGD", 0.1, momentum=0.9)
        model.create_variables(parts["optimizer"])
    random = np.random.default_rng(seed)
    names = onmt.utils.misc.get_variables_name_mapping(model, "model")
    for name, variable in sorted(names.items()):
        values = _draw(random, name, tuple(variable.shape))
        if "embedding" in name or "output_layer/kernel" in name:
            values *= sharpness
        if "output_layer/bias" in name:
            values[:3] = -9.0, -9.0, end_bias  # <blank> and <s> are never produced
        variable.assign(values)
    checkpoint = tf.train.Checkpoint(model=model, **parts)
    tf.train.CheckpointManager(checkpoint, str(folder), 1).save(checkpoint_number=7)


def _draw(random, name, shape):
    """Draws a tensor, which `draw` knows by another name."""
    if "output_layer/kernel" in name:
        return draw(random, "shared", shape[::-1]).T
    if "embedding" in name:
        name = "shared"
    elif "gamma" in name:
        name = "norm.weight"
    elif "queries/kernel" in name or "keys/kernel" in name:
        name = "q_proj.weight"
    return draw(random, name, shape)


def compute_answers(folder):
    """What OpenNMT-tf computes."""
    import opennmt as onmt
    import tensorflow as tf

    answers = {"lines": LINES, "searches": {}}
    for name, params in SEARCHES.items():
        model = open_model(folder, OWN | {"length_penalty": 0} | params)
        features = model.features_inputter.make_features(tf.constant(LINES), training=False)
        _, found = model(features)
        lengths = found["length"].numpy()[:, 0]
        rows = [
            [token.decode() for token in row[:length]]
            for row, length in zip(found["tokens"].numpy()[:, 0], lengths, strict=True)
        ]
        answers["searches"][name] = {
            "tokens": rows,
            "log_probs": np.round(found["log_probs"].numpy()[:, 0].astype(float), 5).tolist(),
            "texts": [_detokenize(folder, row) for row in rows],
        }
    answers["odd"] = {x: _detokenize(folder, ["▁a", x]) for x in ("<unk>", TAGS[0], "xyz")}
    lengths = features["length"].numpy()
    ids = features["ids"].numpy()
    answers["ids"] = [row[:n].tolist() for row, n in zip(ids, lengths, strict=True)]
    size = model.labels_inputter.vocabulary_size
    target = np.random.default_rng(2).integers(2, size, (len(LINES), 6))
    target[:, 0] = 1
    answers["target"] = target.tolist()
    labels = {"ids": tf.constant(target), "length": tf.fill([len(LINES)], 6)}
    outputs, _ = model(features, labels)
    logits = outputs["logits"].numpy()[:FEW]
    answers["logits"] = np.round(logits.astype(float), 6).tolist()
    versions = {"OpenNMT-tf": onmt.__version__, "tensorflow": tf.__version__}
    return {"made with": versions} | answers


def _detokenize(folder, tokens):
    import opennmt as onmt
    import yaml

    data = yaml.safe_load((folder / "data.yml").read_text())["data"]
    model = str(folder / data["target_tokenization"]["params"]["model"])
    return onmt.tokenizers.SentencePieceTokenizer(model).detokenize(tokens) if tokens else ""


def main(folder, write):
    for name, how in FIXTURES.items():
        place = pathlib.Path(folder) / name
        if write:
            shutil.rmtree(place, ignore_errors=True)
            make_folder(place, **how)
            write_checkpoint(place, **how)
        answers, file = compute_answers(place), place / "answers.json"
        if write:
            file.write_text(json.dumps(answers, ensure_ascii=False), encoding="utf-8")
            continue
        stored = json.loads(file.read_text(encoding="utf-8"))
        differ = np.abs(np.array(stored["logits"]) - answers["logits"]).max()
        found = [{k: x["tokens"] for k, x in y["searches"].items()} for y in (stored, answers)]
        same = stored["ids"] == answers["ids"] and found[0] == found[1]
        print(f"{name}: logits differ by at most {differ:.1e}; ids and searches equal: {same}")
        if differ > 1e-5 or not same:
            sys.exit(f"{file} is not what is computed now.")


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # beside model_description.py
    main(sys.argv[1], "--write" in sys.argv)
