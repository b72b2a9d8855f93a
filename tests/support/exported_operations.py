"""Which ops exports are made of: `python -m tests.support.exported_operations` writes the list.

All signatures, with every choice that an export or an architecture has, each at least once; and the
exports of earlier versions. What is opened unasked may hold no others (`serving/structure.py`).
"""

import pathlib
import re
import tempfile
import textwrap

import keras_transformer as kt
from keras_transformer.presets.options import RELATIVE
from keras_transformer.serving import structure
from keras_transformer.serving.saved_model import _save
from keras_transformer.serving.served_translator import functions_of
from keras_transformer.serving.structure import operations, read_meta_graphs
from tests.support.paths import FIXTURES
from tests.support.toy_translator import random_translator


def with_lora():
    translator = random_translator()
    translator.model.decoder.layers[0].self_attention.query_dense.enable_lora(2)
    return translator


def quantized():
    translator = random_translator(share_embeddings="none")
    translator.model.quantize("int8", filters=r"dense|query|key|value|attention_output")
    return translator


def ensemble():
    one = random_translator()
    return kt.Translator([one.model, random_translator().model], *[one.source_tokenizer] * 2)


def with_languages():
    with tempfile.TemporaryDirectory() as folder:
        return kt.load(kt.import_model(FIXTURES / "m2m100" / "nllb", f"{folder}/run"))


def with_words():
    """WordPiece: uncased on one side, cased on the other."""
    texts = ["The quick brown fox"] * 5
    return random_translator(*(kt.WordPieceTokenizer.train(texts, 36, x) for x in (True, False)))


HAN = "".join(map(chr, range(0x4E00, 0x5400)))
# glu halves what it is given, and threshold takes more than that.
ACTIVATIONS = """celu elu exponential gelu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh
leaky_relu linear log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax
softplus softsign sparse_plus sparse_sigmoid sparsemax squareplus swish tanh tanh_shrink""".split()
CHOICES = [  # (what is exported, or its architecture; options of the export)
    (quantized, dict(signatures=("beam",))),
    ({}, {}),
    (dict(share_embeddings="all", norm="pre", activation="gelu"), dict(precision="int8")),
    (dict(share_embeddings="target", positions="learned"), dict(precision="bfloat16")),
    (dict(share_embeddings="all"), dict(computation="bfloat16", precision="bfloat16")),
    (dict(norm="pre", activation="silu"), dict(computation="bfloat16", max_output_length=5)),
    (dict(num_layers=2, dropout=0.1), dict(beam_size=1, length_penalty=0.0)),
    (dict(activation="tanh"), dict(precision="int8", computation="bfloat16")),
    # So many characters that a beam looks for the best ones in parts.
    (lambda: random_translator(kt.SubwordTokenizer.train([HAN], model_type="char")), {}),
    (with_lora, dict(signatures=("beam",))),
    (with_words, {}),
    (with_languages, {}),
    (ensemble, dict(min_length=1, no_repeat_ngram_size=2, repetition_penalty=1.5)),
    (dict(d_ff=1 << 18), dict(signatures=("beam",))),  # products in parts
    (dict(d_ff=1 << 18), dict(signatures=("beam",), computation="bfloat16")),
    *((dict(positions=name), dict(signatures=("beam",))) for name in (*RELATIVE, "none")),
    *((dict(activation=name), dict(signatures=())) for name in ACTIVATIONS),
]
LIST = re.compile(r'(?<=OURS = frozenset\(\n    """\n).*?(?=    """)', re.DOTALL)


def operations_of(version_dir):
    return operations(*read_meta_graphs(version_dir))


def exported_operations(choices=CHOICES):
    found = set().union(*map(operations_of, FIXTURES.glob("format-*/export/1")))
    for make, options in choices:
        translator = make() if callable(make) else random_translator(**make)
        module, functions = functions_of(translator, kt.ExportConfig(**options))
        with tempfile.TemporaryDirectory() as directory:
            _save(module, functions, directory)
            found |= operations_of(directory)
        print(make, options, len(found), flush=True)
    return found


if __name__ == "__main__":
    names = " ".join(sorted(exported_operations() - structure.SAVER))
    lines = textwrap.indent(textwrap.fill(names, 96), "    ")
    path = pathlib.Path(structure.__file__)
    path.write_text(LIST.sub(f"{lines}\n", path.read_text(encoding="utf-8")), encoding="utf-8")
