"""Exports: `saved_model.pb`, the weights and the card."""

import os

from keras_transformer.serving.structure import read_meta_graphs
from tests.support.sealing import reseal
from tests.support.trials.trial import Trial

DATA = "variables/variables.data-00000-of-00001"


def varint(value):
    digits = []
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def write_graph(export, content, sealed=True):
    """Writes `saved_model.pb` around a MetaGraphDef."""
    (export / "saved_model.pb").write_bytes(b"\x08\x01\x12" + varint(len(content)) + content)
    if sealed:
        reseal(export)


def graph(change):
    """Changes the MetaGraphDef."""

    def break_it(export):
        (meta_graph,) = read_meta_graphs(export)
        change(meta_graph)
        write_graph(export, meta_graph.SerializeToString())

    return break_it


def function(meta_graph, part):
    """The first function whose name holds a part."""
    return next(f for f in meta_graph.graph_def.library.function if part in f.signature.name)


def node(op, part="signature_wrapper", value=None, **attributes):
    """Adds a node to a function."""

    def change(meta_graph):
        added = function(meta_graph, part).node_def.add(name="added", op=op)
        for name, one in attributes.items():
            added.attr[name].func.name = one
        if value is not None:
            added.attr["value"].tensor.string_val.append(value)

    return graph(change)


def asset(meta_graph):
    meta_graph.asset_file_def.add(filename="../../../etc/passwd")


def write(name, content, sealed=True):
    def break_it(export):
        (export / name).write_bytes(content)
        if sealed:
            reseal(export)

    return break_it


def cut(name, sealed=True):
    def break_it(export):
        os.truncate(export / name, (export / name).stat().st_size // 2)
        if sealed:
            reseal(export)

    return break_it


def turn_bytes(export):
    path = export / "saved_model.pb"
    content = bytearray(path.read_bytes())
    for place in range(256):
        content[500_000 + place] ^= 0xFF
    path.write_bytes(content)


def swapped_weights(export):
    content = (export / DATA).read_bytes()
    half = len(content) // 2
    (export / DATA).write_bytes(content[half:] + content[:half])


def many_nodes(export):
    body = b"\x0a\x00" * (3 << 20)
    write_graph(export, b"\x12" + varint(len(body)) + body)


def fields(**values):
    return lambda export: reseal(export, lambda card: card.update(values))


def lists_outside(export):
    from keras_transformer.utils import write_sealed

    described = {"../run/x": {"bytes": 1, "sha256": "0"}}
    write_sealed(export / "model.json", {"files": described})


def other_tag(meta_graph):
    meta_graph.meta_info_def.tags[:] = ["train"]


OTHER = "which exports of this package do not contain: if you know who made it"
DAMAGED = "is corrupted: it is not what was written"
ASKED = "--source {}/../pairs.tsv"

EXPORTS = {
    "WriteFile": Trial("a signature that writes a file", node("WriteFile"), OTHER),
    "ReadFile": Trial("an initializer that reads a file", node("ReadFile", "initializer"), OTHER),
    "PyFunc": Trial("a signature that calls Python", node("PyFunc"), OTHER),
    "PrintV2": Trial("a signature that prints into a file", node("PrintV2"), OTHER),
    "library": Trial("an op of a library of its own", node("Evil>Op"), OTHER),
    "Xla": Trial("a call that is compiled", node("XlaLaunch"), OTHER),
    "path": Trial(
        "a constant that is a path",
        node("Const", value=b"/etc/passwd"),
        "holds the absolute path '/etc/passwd'",
    ),
    "asset": Trial("an asset outside", graph(asset), "lies outside the directory assets"),
    "tag": Trial("another tag", graph(other_tag), "Expected one MetaGraph with the tag 'serve'"),
    "bomb": Trial("a graph of 3 million empty nodes, in 6 MB", many_nodes, "3,145,728 nodes, at"),
    "other format": Trial(
        "the same graph in a second format", write("saved_model.cpb", b"x"), "saved_model.cpb"
    ),
    "scored": Trial(
        "a signature that writes a file, for score", node("WriteFile"), OTHER, f"score {{}} {ASKED}"
    ),
    "evaluated": Trial(
        "a signature that writes a file, for evaluate",
        node("WriteFile"),
        OTHER,
        f"evaluate {{}} {ASKED}",
    ),
    "checked": Trial(
        "a signature that writes a file, for check", node("WriteFile"), OTHER, "check {}", 1
    ),
    "turned": Trial("256 bytes turned in saved_model.pb", turn_bytes, DAMAGED),
    "turned, checked": Trial(
        "256 bytes turned in saved_model.pb, for check", turn_bytes, DAMAGED, "check {}", 1
    ),
    "cut": Trial("a graph that is cut off", cut("saved_model.pb"), "cannot be parsed"),
    "junk": Trial("a graph that is none", write("saved_model.pb", b"junk\xff"), "cannot be parsed"),
    "weights": Trial("weights that are cut off", cut(DATA, sealed=False), DAMAGED),
    "weights again": Trial(
        "weights that are cut off, with checksums made right", cut(DATA), "cannot be"
    ),
    "swapped": Trial("weights whose halves are swapped", swapped_weights, DAMAGED),
    "index": Trial(
        "an index of weights that is cut off", cut("variables/variables.index"), "cannot be"
    ),
    "more": Trial(
        "a file among the weights that is not listed",
        write("variables/evil", b"x", sealed=False),
        "is not among the files that",
    ),
    "missing": Trial(
        "a file that is listed but missing",
        lambda export: os.remove(export / "fingerprint.pb"),
        "is missing: model.json lists it",
    ),
    "no card": Trial(
        "a deleted model.json, for check",
        lambda export: os.remove(export / "model.json"),
        "model.json is missing, which has the checksums",
        "check {}",
        1,
    ),
    "card": Trial("a model.json that is none", write("model.json", b"{", False), "is not JSON"),
    "card changed": Trial(
        "a model.json that was changed",
        lambda export: (export / "model.json").write_text(
            (export / "model.json").read_text().replace('"created"', '"creates"')
        ),
        "its checksum does not match",
    ),
    "card types": Trial(
        "a model.json of wrong types", fields(signatures=[1]), "must be of the type"
    ),
    "recipe": Trial(
        "a recipe of wrong types",
        fields(recipe={"bleu_tokenize": ["x"]}),
        "must be of the type",
        f"evaluate {{}} {ASKED}",
    ),
    "outside": Trial(
        "a model.json that lists a file outside", lists_outside, "lists a file outside"
    ),
    "warm-up": Trial(
        "warm-up requests that are none, for check",
        write("assets.extra/tf_serving_warmup_requests", bytes(100)),
        "is corrupted",
        "check {}",
        1,
    ),
}
