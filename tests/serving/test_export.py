"""The real translator in a server's hands: exported, moved, and run without Python TensorFlow.

See c_api.py for what is run. The run directory that a translator came from is gone by then.
"""

import dataclasses
import math
import shutil

import pytest
import tensorflow as tf

import keras_transformer
from keras_transformer.presets import ExportConfig
from keras_transformer.serving.saved_model import export, load_saved_model
from keras_transformer.serving.structure import check_structure
from tests.support.paths import FIXTURES
from tests.support.sample_text import BYTES, TEXTS
from tests.support.serving import run_through_c_api
from tests.support.toy_translator import SOURCES, random_translator, trained_translator

HOSTILE = TEXTS + BYTES
BATCHES = {"sources": SOURCES, "hostile": HOSTILE, "many": SOURCES * 8, "none": []}
MAKERS = {
    "trained": trained_translator,  # post-norm, sinusoidal, all embeddings shared
    "learned": lambda: random_translator(seed=4, norm="pre", positions="learned", num_layers=2),
    "bfloat16": lambda: random_translator(
        seed=3, share_embeddings="target", dtype="mixed_bfloat16"
    ),
    "float16": lambda: random_translator(seed=2, norm="pre", dtype="mixed_float16"),
}


class Exported:
    """A translator's export, and what was answered before and after."""

    def __init__(self, name, folder):
        translator = MAKERS[name]()
        self.precise = not name.endswith("16")
        self.memory = {key: serve(translator, texts) for key, texts in BATCHES.items()}
        write_run(translator, folder / "run")
        loaded = keras_transformer.load(folder / "run")
        config = ExportConfig(signatures=())
        if name == "bfloat16":
            config = dataclasses.replace(config, computation="bfloat16")
        path = keras_transformer.export(loaded, folder / "written" / "toy", config=config)
        assert path == str(folder / "written" / "toy" / "1")
        self.version_dir = shutil.move(path, folder / "7")
        shutil.rmtree(folder / "written")
        shutil.rmtree(folder / "run")
        batches = BATCHES | {("alone", row): [row] for row in SOURCES + HOSTILE}
        replies = run_through_c_api(self.version_dir, list(batches.values()))
        self.server = dict(zip(batches, replies, strict=True))

    def check_alike(self, found, expected):
        """Compares answers; in half precision, where two tokens can tie, a few may differ."""
        rows = zip(found["text"], expected["text"], strict=True)
        alike = [i for i, (one, other) in enumerate(rows) if one == other]
        assert len(alike) >= len(expected["text"]) * (1 if self.precise else 0.75)
        differences = [found["log_prob"][i] - expected["log_prob"][i] for i in alike]
        # Half precision's 2e-2 for each of twelve tokens.
        assert max(map(abs, differences), default=0) <= (1e-4 if self.precise else 12 * 2e-2)


def serve(translator, texts):
    """What the translator answers in memory."""
    outputs = translator.serve(tf.constant(texts, tf.string, shape=[len(texts)]))
    texts = [text.decode() for text in outputs["text"].numpy()]
    return {"text": texts, "log_prob": outputs["log_prob"].numpy().tolist()}


def write_run(translator, path):
    """Writes what of a run directory is needed to translate."""
    path.mkdir()
    translator.model.save(path / "model.keras")
    translator.source_tokenizer.save(path / "source.spm")
    translator.target_tokenizer.save(path / "target.spm")


@pytest.fixture(
    scope="module",
    params=["trained", "learned", "bfloat16", pytest.param("float16", marks=pytest.mark.slow)],
)
def exported(request, tmp_path_factory):
    return Exported(request.param, tmp_path_factory.mktemp("export"))


@pytest.mark.parametrize("key", ["sources", "hostile", "many"])
def test_server_answers_as_the_translator_does(exported, key):
    exported.check_alike(exported.server[key], exported.memory[key])
    assert len(set(exported.server[key]["text"])) > 3  # not one answer to all


@pytest.mark.parametrize("key", ["sources", "hostile"])
def test_rows_do_not_depend_on_their_batch(exported, key):
    answers = [exported.server["alone", row] for row in BATCHES[key]]
    assert all(len(answer["text"]) == len(answer["log_prob"]) == 1 for answer in answers)
    alone = {name: [answer[name][0] for answer in answers] for name in ("text", "log_prob")}
    exported.check_alike(exported.server[key], alone)


def test_server_takes_any_content(exported):
    assert exported.server["none"] == {"text": [], "log_prob": []}
    reply = exported.server["hostile"]
    assert len(reply["text"]) == len(reply["log_prob"]) == len(HOSTILE)
    assert all(isinstance(text, str) for text in reply["text"])  # bytes, were it not UTF-8
    assert all(math.isfinite(log_prob) and log_prob <= 0 for log_prob in reply["log_prob"])
    assert (reply["text"][0], reply["log_prob"][0]) == ("", 0.0)  # of ""


def test_export_holds_no_gradients(exported):
    """Nobody trains it; those of our products would be more functions than all others."""
    written_with_them = FIXTURES / "format-1" / "export" / "1"
    for version_dir, there in ((exported.version_dir, False), (written_with_them, True)):
        content = (version_dir / "saved_model.pb").read_bytes()
        assert (b"internal_grad_fn" in content) == there


def test_nothing_in_the_export_ties_it_to_this_machine(exported):
    assert check_structure(exported.version_dir) == []
    content = (exported.version_dir / "saved_model.pb").read_bytes()
    assert str(exported.version_dir.parent).encode() not in content


def test_python_reads_it_too(exported):
    translate = load_saved_model(exported.version_dir)
    tf.random.set_seed(5)  # empties the cache of kernels, but not the model
    texts, log_probs = translate(SOURCES)
    exported.check_alike({"text": texts, "log_prob": log_probs}, exported.memory["sources"])


@pytest.fixture(scope="module")
def compiled_twin():
    """The trained translator, of which one function is to be compiled by XLA."""
    model = random_translator(seed=4).model
    model.encode = tf.function(model.encode, jit_compile=True)
    trained = trained_translator()
    tokenizers = trained.source_tokenizer, trained.target_tokenizer
    return keras_transformer.Translator(model, *tokenizers)


def test_twin_compiled_by_xla_is_refused(compiled_twin, tmp_path):
    assert serve(compiled_twin, SOURCES) == serve(compiled_twin, SOURCES)  # here it works
    with pytest.raises(ValueError, match="compiled by XLA"):
        export(compiled_twin, tmp_path)
    assert list(tmp_path.iterdir()) == []
