"""The signature `explore`, asked the way a server is, against one token after the other by hand."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.presets import ExportConfig
from keras_transformer.serving.acceptance.graph import OURS, SAVER
from keras_transformer.serving.acceptance.server_process import ServerProcess
from keras_transformer.serving.acceptance.structure import check_structure
from keras_transformer.serving.saved_model import export
from keras_transformer.serving.served_translator import MAX_RANKED, functions_of
from keras_transformer.serving.signatures import SIGNATURES
from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.translation.results import LEAST_LOG_PROB
from tests.support.command_line import run
from tests.support.exported_operations import operations_of
from tests.support.toy_translator import MAX_LENGTH, random_translator, toy_pairs

LAYERS, HEADS = 2, 2
CONFIG = ExportConfig(signatures=("explore",))
# Texts, what their translations begin with, and how many tokens are told of each step.
ROWS = [
    ("abc", [], 3),
    ("", [9, 8], 4),
    ("hgfedcb", [11, 7, END, 5], 1),
    ("a", [6], 7),
    ("cafe", [265, 270, 4, 5, 6], 2),
]
MAPS = {"encoder": ("S", "S"), "decoder": ("T", "T"), "cross": ("T", "S")}
TABLES = ("target_tokens", "target_ids", "target_log_prob")
BEST = ("best_tokens", "best_ids", "best_log_prob")


@pytest.fixture(scope="module")
def translator():
    return random_translator(num_layers=LAYERS, share_embeddings="none", seed=3)


@pytest.fixture(scope="module")
def version(translator, tmp_path_factory):
    return export(translator, tmp_path_factory.mktemp("explore"), config=CONFIG, pairs=toy_pairs(2))


@pytest.fixture(scope="module")
def server(version):
    with ServerProcess(version) as process:
        yield process


def ask(server, rows):
    texts, prefixes, ks = map(list, zip(*rows, strict=True))
    width = max(map(len, prefixes))
    prefixes = [prefix + [PAD] * (width - len(prefix)) for prefix in prefixes]
    reply = server.predict({"text": texts, "prefix": prefixes, "k": ks}, "explore")
    return {name: np.array(values, object) for name, values in reply.items()}


def pieces(tokenizer, ids):
    return [piece.decode() for piece in tokenizer.pieces(tf.constant(ids, tf.int32)).numpy()]


def by_hand(translator, text, prefix, k):
    """Greedy search without a cache, and softmax and ranking by NumPy: tables of one row."""
    model, source = translator.model, translator.read_source([text])[0]
    target, best = [], []
    taken = []
    while len(target) < MAX_LENGTH and END not in target:
        logits = model((source, np.array([[START, *target]])))[0, -1].numpy().astype(np.float64)
        log_probs = logits - np.log(np.sum(np.exp(logits)))
        order = np.argsort(-log_probs, kind="stable")[:k]
        place = len(target)
        target.append(prefix[place] if place < len(prefix) else int(order[0]))
        taken.append(log_probs[target[-1]])
        best.append([order.tolist(), log_probs[order]])
    _, scores = model((source, np.array([[START, *target[:-1]]])), return_attention_scores=True)
    ids = np.array([one for one, _ in best])
    written = translator.target_tokenizer
    return {
        "text": translator._detokenize(tf.constant([target])).numpy()[0].decode(),
        "log_prob": np.sum(taken),
        "source_tokens": pieces(translator.source_tokenizer, source[0]),
        "target_tokens": pieces(written, target),
        "target_ids": target,
        "target_log_prob": taken,
        "best_tokens": np.reshape(pieces(written, ids.ravel()), ids.shape),
        "best_ids": ids,
        "best_log_prob": np.array([values for _, values in best]),
        **{kind: np.stack([layer[0] for layer in scores[kind]]) for kind in MAPS},
    }


def cut(reply, row, lengths, k):
    """One row of a reply without its padding, which has to say nothing."""
    lengths = lengths | {"K": k}
    axes = {"source_tokens": "S", **dict.fromkeys(TABLES, "T"), **dict.fromkeys(BEST, "TK")}
    axes |= {kind: ("", "", *sides) for kind, sides in MAPS.items()}
    nothing = {name: PAD for name in ("target_ids", "best_ids")} | {
        name: "" for name in ("source_tokens", "target_tokens", "best_tokens")
    }
    nothing["best_log_prob"] = LEAST_LOG_PROB
    answer = {name: reply[name][row] for name in ("text", "log_prob")}
    for name, letters in axes.items():
        table = np.array(reply[name][row])
        inner = tuple(slice(lengths.get(letter)) for letter in letters)
        outside = np.ones(table.shape, bool)
        outside[inner] = False
        assert (table[outside] == nothing.get(name, 0.0)).all(), (name, row)
        answer[name] = table[inner]
    return answer


def check_row(found, expected):
    for name, value in expected.items():
        if name in ("text", "source_tokens", "target_tokens", "target_ids"):
            assert list(found[name]) == list(value), name
        elif name in ("best_tokens", "best_ids"):
            assert found[name].tolist() == value.tolist(), name
        else:
            actual = np.array(found[name], np.float64)
            wanted = np.array(value, np.float64)
            np.testing.assert_allclose(actual, wanted, atol=1e-4, err_msg=name)


def lengths_of(expected):
    return {"S": len(expected["source_tokens"]), "T": len(expected["target_ids"])}


def test_it_is_what_the_model_computes(translator, server):
    reply = ask(server, ROWS)
    assert reply.keys() == SIGNATURES["explore"].outputs.keys()
    shapes = {kind: reply[kind].shape[1:3] for kind in MAPS}
    assert set(shapes.values()) == {(LAYERS, HEADS)}
    lengths = set()
    for row, (text, prefix, k) in enumerate(ROWS):
        if not text:
            answer = cut(reply, row, {"S": 0, "T": 0}, 0)
            assert answer["text"] == "" and answer["log_prob"] == 0.0
            continue
        expected = by_hand(translator, text, prefix, k)
        lengths.add(len(expected["target_ids"]))
        check_row(cut(reply, row, lengths_of(expected), k), expected)
        for kind in MAPS:  # rows are queries, and each is a distribution
            assert np.allclose(expected[kind].sum(-1), 1, atol=1e-5)
    assert len(lengths) > 1, "all rows are of one length: nothing is padded"


def test_the_prefix_is_honoured_and_ends_where_it_says(translator, server):
    ids = ask(server, ROWS)["target_ids"]
    for row, (text, prefix, _) in enumerate(ROWS):
        given = prefix[: prefix.index(END) + 1] if END in prefix else prefix
        if text:
            assert ids[row].tolist()[: len(given)] == given
    assert ids[2].tolist()[3:] == [PAD] * (ids.shape[1] - 3)


def test_going_on_from_what_was_found_changes_nothing(server):
    """With as many of its own tokens as there are, or any number of them, the answer stays."""
    free = ask(server, [("cafe", [], 5)])
    found = [int(i) for i in free["target_ids"][0]]
    for number in (1, 4, len(found)):
        again = ask(server, [("cafe", found[:number], 5)])
        for name in (*TABLES, "best_ids", "text"):
            if name != "target_log_prob":
                assert again[name].tolist() == free[name].tolist(), name
        for name in ("log_prob", "target_log_prob", "cross"):
            np.testing.assert_allclose(
                again[name].astype(float), free[name].astype(float), atol=1e-4
            )


def test_rows_do_not_depend_on_each_other(server):
    together = ask(server, ROWS)
    for row, (text, prefix, k) in enumerate(ROWS):
        alone = ask(server, [(text, prefix, k)])
        if not text:
            continue
        lengths = {"S": alone["source_tokens"].shape[1], "T": alone["target_ids"].shape[1]}
        check_row(cut(together, row, lengths, k), cut(alone, 0, lengths, k))


def test_any_number_is_taken(translator, server):
    size = translator.model.target_vocabulary_size
    rows = [
        ("abc", [-7, 10**9, PAD, 5], -(2**31)),
        ("abc", [6] * 40, 2**31 - 1),
        ("abc", [PAD, PAD, 5], 0),
        ("\x00", [START, UNK, END], size),
    ]
    reply = ask(server, rows)
    assert "error" not in reply
    ids = reply["target_ids"].tolist()
    assert ids[0][:3] == [UNK, UNK, 5] and ids[1] == [6] * MAX_LENGTH and ids[2][0] == 5
    assert ids[3][:4] == [START, UNK, END, PAD]
    assert reply["best_ids"].shape[2] == min(size, MAX_RANKED) == 100
    told = (reply["best_log_prob"] > LEAST_LOG_PROB).sum(-1)[:, 0]
    assert told.tolist() == [1, 100, 1, 100]
    for name in ("log_prob", "target_log_prob", "best_log_prob", *MAPS):
        assert np.isfinite(reply[name].astype(float)).all()


def test_there_is_one_of_each_for_each_text(server):
    inputs = {"text": ["a", "b"], "prefix": [[]], "k": [1, 1]}
    assert "There must be one prefix for each text" in server.predict(inputs, "explore")["error"]
    inputs = {"text": ["a"], "prefix": [[]], "k": [1, 1]}
    assert "There must be one k for each text" in server.predict(inputs, "explore")["error"]


def test_no_rows(translator):
    _, functions = functions_of(translator, CONFIG)
    specs = SIGNATURES["explore"].inputs.values()
    outputs = functions["explore"](*(tf.zeros([0] * len(shape), dtype) for shape, dtype in specs))
    assert all(value.shape[0] == 0 for value in outputs.values())


def test_a_stock_server_can_run_it(version):
    assert check_structure(version) == []
    assert operations_of(version) <= OURS | SAVER
    result = run("check", version)
    assert result.returncode == 0, result.stdout.decode() + result.stderr.decode()


def test_the_card_says_what_it_answers(version):
    with open(os.path.join(version, "model.json"), encoding="utf-8") as file:
        signature = json.load(file)["signatures"]["explore"]
    assert signature["example"]["inputs"]["prefix"] == [[PAD]] and not signature["batchable"]
    with open(os.path.join(version, "MODEL.md"), encoding="utf-8") as file:
        page = file.read()
    shape = list(np.shape(signature["example"]["outputs"]["cross"]))
    assert shape[1:3] == [LAYERS, HEADS]
    assert f"`cross` in this example has the shape {shape}" in page
    assert max(map(len, page.splitlines())) < 3000
