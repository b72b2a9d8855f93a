"""Exports: `saved_model.pb`, the weights and the card."""

import os

from keras_transformer.serving.acceptance.graph import read_meta_graphs
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


def calls_saver(part):
    """A function from which a request or the loader reaches what writes files."""

    def change(meta_graph):
        added = function(meta_graph, part).node_def.add(name="added", op="StatefulPartitionedCall")
        added.attr["f"].func.name = function(meta_graph, "traced_save").signature.name

    return graph(change)


def restores_another(meta_graph):
    restore = function(meta_graph, "traced_restore")
    named = restore.node_def.add(name="named", op="Const")
    named.attr["value"].tensor.string_val.append(b"../../elsewhere")
    next(n for n in restore.node_def if n.op == "RestoreV2").input[0] = "named:output:0"


def names_its_file(meta_graph):
    next(n for n in meta_graph.graph_def.node if n.name == "saver_filename").op = "Const"


def starts_by_saving(meta_graph):
    nodes = {n.name: n for n in meta_graph.graph_def.node}
    nodes["NoOp"].input.append("^StatefulPartitionedCall_1")


def answers_by_saving(meta_graph):
    outputs = meta_graph.signature_def["serving_default"].outputs
    outputs["text"].name = "StatefulPartitionedCall_1:0"


def registered(meta_graph):
    meta_graph.object_graph_def.nodes[0].user_object.identifier = "_tf_keras_model"


def asset(meta_graph):
    meta_graph.asset_file_def.add(filename="../../../etc/passwd")


def endless(meta_graph):
    for one in meta_graph.graph_def.library.function:
        for inner in one.node_def:
            if inner.op in ("Less", "LessEqual"):
                inner.op = "NotEqual"


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
    body = b"\x0a\x00" * (12 << 20)
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
CHECKED = "is neither an op of this package's exports nor among allow_ops"
DAMAGED = "is corrupted: it is not what was written"
OUTSIDE = "is outside of the saver"
ASKED = "--source {}/../pairs.tsv"

EXPORTS = {
    "WriteFile": Trial("a signature that writes a file", node("WriteFile"), OTHER),
    "ReadFile": Trial("an initializer that reads a file", node("ReadFile", "initializer"), OTHER),
    "PyFunc": Trial("a signature that calls Python", node("PyFunc"), "calls Python"),
    "PrintV2": Trial("a signature that prints into a file", node("PrintV2"), OTHER),
    "library": Trial("an op of a library of its own", node("Evil>Op"), OTHER),
    "Xla": Trial("a call that is compiled", node("XlaLaunch"), "is an XLA op"),
    "SaveV2": Trial("a signature that saves a checkpoint", node("SaveV2"), OUTSIDE),
    "RestoreV2": Trial(
        "an initializer that reads a checkpoint", node("RestoreV2", "initializer"), OUTSIDE
    ),
    "Merge": Trial(
        "a signature that merges, and so removes, checkpoints", node("MergeV2Checkpoints"), OUTSIDE
    ),
    "calls": Trial(
        "a signature that calls the saver", calls_saver("signature_wrapper"), "calls the saver"
    ),
    "initializes": Trial(
        "an initializer that calls the saver", calls_saver("initializer"), "calls the saver"
    ),
    "starts": Trial(
        "an initializer after which the saver runs", graph(starts_by_saving), "reaches the saver"
    ),
    "answers": Trial(
        "a signature that answers what the saver does",
        graph(answers_by_saving),
        "reaches the saver",
    ),
    "restores": Trial(
        "a saver that reads another checkpoint",
        graph(restores_another),
        "names the file that it reads itself",
    ),
    "filename": Trial(
        "a saver that names its file", graph(names_its_file), "it names files itself"
    ),
    "path": Trial(
        "a constant that is a path",
        node("Const", value=b"/etc/passwd"),
        "holds the absolute path '/etc/passwd'",
    ),
    "loop": Trial("loops without a bound", graph(endless), "is a loop without a bound"),
    "asset": Trial("an asset outside", graph(asset), "lies outside the directory assets"),
    "object": Trial(
        "an object of a class that is looked up", graph(registered), "is a '_tf_keras_model'"
    ),
    "tag": Trial("another tag", graph(other_tag), "Expected one MetaGraph with the tag 'serve'"),
    "bomb": Trial("a graph of 12 million empty nodes, in 24 MB", many_nodes, "cannot be parsed"),
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
        "a signature that writes a file, for check", node("WriteFile"), CHECKED, "check {}", 1
    ),
    "turned": Trial("256 bytes turned in saved_model.pb", turn_bytes, DAMAGED),
    "turned, checked": Trial(
        "256 bytes turned in saved_model.pb, for check", turn_bytes, DAMAGED, "check {}", 1
    ),
    "cut": Trial("a graph that is cut off", cut("saved_model.pb"), "cannot be parsed"),
    "junk": Trial("a graph that is none", write("saved_model.pb", b"junk\xff"), "got the tags []"),
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
    "outside": Trial("a model.json that lists a file outside", lists_outside, "must say the size"),
    "max_length": Trial(
        "a card that says max_length 10¹², for check",
        fields(architecture={"max_length": 10**12}, vocabulary={"source": {"ids": 277}}),
        "max_length",
        "check {}",
        1,
    ),
    "warm-up": Trial(
        "warm-up requests that are none, for check",
        write("assets.extra/tf_serving_warmup_requests", b"junk"),
        "is corrupted",
        "check {}",
        1,
    ),
}
