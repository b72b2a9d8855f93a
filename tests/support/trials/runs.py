"""Runs: `model.keras`, `source.spm`, `config.yaml` and what lies beside them."""

from tests.support.trials.broken_runs import (
    ALIASES,
    BOMB,
    another,
    archive,
    argument,
    array_elsewhere,
    as_directory,
    as_pipe,
    card,
    config,
    content,
    cut_weights,
    flip,
    halve,
    lambda_layer,
    linked,
    other_model,
    outside,
    payload,
    pointing_out,
    swapped,
    text,
    vocabulary,
    weights,
    with_part,
    zip_bomb,
)
from tests.support.trials.trial import Trial

NAMES = "which no model of this package uses"
SENTENCE = "is corrupted"

RUNS = {
    "lambda": Trial("a Lambda with byte code", config(lambda m: lambda_layer(payload())), NAMES),
    "lambda inside": Trial(
        "a Lambda as the activation", with_part(**lambda_layer(payload())), NAMES
    ),
    "named lambda": Trial(
        "a Lambda that names a function",
        config(lambda m: lambda_layer({"module": "os", "class_name": "function", "config": "x"})),
        NAMES,
    ),
    "os.system": Trial(
        "os.system as a class",
        with_part(module="os", class_name="system", config={"command": "touch executed"}),
        NAMES,
    ),
    "Popen": Trial(
        "subprocess.Popen as a class",
        with_part(module="subprocess", class_name="Popen", config={"args": ["touch", "executed"]}),
        NAMES,
    ),
    "function": Trial(
        "a function of a module",
        with_part(module="os", class_name="function", config="system", registered_name="system"),
        NAMES,
    ),
    "registered": Trial(
        "a class that nobody has registered",
        config(lambda m: m | {"registered_name": "stranger>Transformer"}),
        NAMES,
    ),
    "activation": Trial(
        "an activation that is none", argument(activation="os.system"), "unknown activation"
    ),
    "policy": Trial(
        "a type that is none",
        argument(dtype={"module": "os", "class_name": "DTypePolicy", "config": {}}),
        NAMES,
    ),
    "compiled": Trial(
        "a Lambda in what it was compiled with",
        config(lambda m: m | {"compile_config": {"loss": payload()}}),
        NAMES,
    ),
    "build": Trial(
        "a tampered build_config",
        config(lambda m: m | {"build_config": {"input_shape": [10**18]}}),
        "beyond all bounds",
    ),
    "lookup": Trial(
        "StringLookup of a system file",
        with_part(
            module="keras.layers",
            class_name="StringLookup",
            config={"vocabulary": "/etc/passwd"},
        ),
        NAMES,
    ),
    "Sequential": Trial("another Keras model", config(other_model), NAMES),
    "no object": Trial("a list as configuration", config(lambda m: [m]), "no JSON object"),
    "d_model": Trial("d_model 10⁹", argument(d_model=10**9), "expected an integer from 1"),
    "num_layers": Trial("num_layers 10⁶", argument(num_layers=10**6), "expected an integer"),
    "max_length": Trial("max_length 10¹²", argument(max_length=10**12), "expected an integer"),
    "max_length in an export": Trial(
        "max_length 10¹², exported",
        argument(max_length=10**12),
        "expected an integer",
        "export {} models",
    ),
    "type": Trial("a word as a size", argument(d_ff="many"), "d_ff"),
    "share": Trial("an argument out of its range", argument(dropout=7.0), SENTENCE),
    "unknown": Trial("an argument that is unknown", argument(extra=1), SENTENCE),
    "zip bomb": Trial(
        "a config.json of 1 GiB in 1 MB", zip_bomb, "is compressed, which Keras does not do"
    ),
    "nested": Trial(
        "a config.json of 200,000 brackets",
        archive(lambda m: m.update({"config.json": BOMB})),
        "JSON",
    ),
    "long": Trial(
        "a config.json of 2 MB", archive(lambda m: m.update({"config.json": BOMB * 10})), "at most"
    ),
    "member": Trial(
        "a member ../evil", archive(lambda m: m.update({"../evil": b"x"})), "holds '../evil'"
    ),
    "absolute member": Trial(
        "a member /tmp/evil", archive(lambda m: m.update({"/tmp/evil": b"x"})), "holds '/tmp/evil'"
    ),
    "assets": Trial(
        "assets", archive(lambda m: m.update({"assets/x": b"x"})), "'assets/x', 'config.json'"
    ),
    "pickle": Trial(
        "NumPy's weights, with a pickle, instead of HDF5",
        archive(lambda m: m.update({"model.weights.npz": m.pop("model.weights.h5")})),
        "'model.weights.npz'",
    ),
    "halved": Trial("a halved model.keras", halve("model.keras"), SENTENCE),
    "empty": Trial("an empty model.keras", content("model.keras", b""), SENTENCE),
    "directory": Trial("a directory model.keras", as_directory, "is not a run directory"),
    "cut": Trial("an HDF5 file cut off in a sound archive", archive(cut_weights), SENTENCE),
    "external link": Trial(
        "an HDF5 link to another file",
        weights(linked),
        SENTENCE,
    ),
    "elsewhere": Trial(
        "an array whose bytes lie in /etc/passwd",
        weights(array_elsewhere),
        SENTENCE,
    ),
    "swapped": Trial("an array of another shape", weights(swapped), SENTENCE),
    "flipped": Trial("a bit flipped in model.keras", flip, "the checksum in model.json"),
    "no checksum": Trial("a halved vocabulary", halve("source.spm", False), "the checksum in"),
    "spm": Trial(
        "a vocabulary that is cut off", halve("source.spm"), "the bytes of a SentencePiece model"
    ),
    "spm size": Trial(
        "a vocabulary of 40 MB", content("source.spm", bytes(40 << 20)), "has more than"
    ),
    "spm table": Trial(
        "a normalization table with an invalid offset",
        vocabulary(pointing_out),
        "an invalid offset",
    ),
    "spm score": Trial(
        "a piece whose score is no number",
        vocabulary(lambda model: setattr(model.pieces[270], "score", float("nan"))),
        "has the score nan",
    ),
    "spm other": Trial("the vocabulary of another model", another, "the model was built for"),
    "card": Trial("a model.json that is none", card("{"), "is not JSON"),
    "card list": Trial("a list as model.json", card("[1]"), "no JSON object"),
    "card names": Trial("a model.json that lists a file outside", outside, "must say the size"),
    "yaml tag": Trial(
        "a config.yaml that calls os.system",
        content("config.yaml", "format: !!python/object/apply:os.system ['touch executed']\n"),
        "is not valid YAML: could not determine a constructor",
    ),
    "yaml aliases": Trial("a config.yaml of aliases", content("config.yaml", ALIASES), "aliases"),
    "yaml size": Trial("a config.yaml of 9 MB", content("config.yaml", bytes(9 << 20)), "than"),
    "yaml types": Trial(
        "a config.yaml of wrong types",
        text("config.yaml", lambda all: all.replace("epochs: 2", "epochs: [2]")),
        "epochs must be a whole number, received [2]",
    ),
    "yaml nested": Trial("a config.yaml of brackets", content("config.yaml", BOMB[:9000]), "YAML"),
    "pipe": Trial("a pipe as config.yaml", as_pipe, "config.yaml"),
    "data": Trial("a data.json that is a list", content("data.json", "[]"), "no JSON object"),
    "examples": Trial(
        "an examples.json of wrong types",
        content("examples.json", '{"valid": [["a", 1]]}'),
        "must contain pairs of strings",
        "export {} models",
    ),
    "start": Trial(
        "a training that starts from a Lambda",
        config(lambda m: lambda_layer(payload())),
        NAMES,
        "train --start-from {} --output new --train-source {}/../pairs.tsv "
        "--valid-source {}/../pairs.tsv",
    ),
    "configuration": Trial(
        "a configuration with a tag, for a training",
        content("config.yaml", "epochs: !!python/name:os.system\n"),
        "is not valid YAML",
        "train --config {}/config.yaml --output new",
    ),
    "history": Trial(
        "a history.csv of words",
        content("history.csv", "a,b\nc,d\n"),
        "lacks the columns",
        "plot {}",
    ),
    "scores": Trial(
        "a Lambda that scores",
        config(lambda m: lambda_layer(payload())),
        NAMES,
        "score {} --source {}/../pairs.tsv",
    ),
    "evaluated": Trial(
        "a Lambda that is evaluated",
        config(lambda m: lambda_layer(payload())),
        NAMES,
        "evaluate {} --source {}/../pairs.tsv",
    ),
}
