"""Small vocabularies and native models of Marian."""

import functools
import io
import json

import numpy as np
import sentencepiece
import yaml

from tests.support.paths import FIXTURES

FOLDER = FIXTURES / "marian"
SIDES = ("source", "target")
ROWS = (FOLDER / "sentences.tsv").read_text(encoding="utf-8").splitlines()
SENTENCES = dict(zip(SIDES, zip(*(row.split("\t") for row in ROWS), strict=True), strict=True))
TAGS = (">>deu<<", ">>fra<<")
# Pieces of the SentencePiece models that the vocabularies lack, and characters of their own.
DROPPED, ADDED = ("▁in", "en", "u"), ("é", "漢", "▁xyz")


@functools.cache
def train_spm(side, size=90, kind="unigram", rule="identity", **options):
    """A SentencePiece model with Marian's ids, learned from a few sentences."""
    options |= dict(vocab_size=size, model_type=kind, normalization_rule_name=rule)
    options |= dict(character_coverage=1.0, hard_vocab_limit=False, minloglevel=2, num_threads=1)
    lines, model = iter(SENTENCES[side]), io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, **options)
    return model.getvalue()


def read_pieces(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(id) for id in range(processor.vocab_size())]


def make_vocabulary(*models, pad=True):
    """Those of the models, joined, by Marian's ids; Hugging Face's vocabularies have a <pad>."""
    special = ("<unk>", "<s>", "</s>")
    pieces = dict.fromkeys(x for model in models for x in read_pieces(model) if x not in special)
    ordinary = [piece for piece in pieces if piece not in DROPPED] + [*ADDED, *TAGS]
    ordinary.sort(key=lambda piece: (sum(piece.encode()) % 7, piece))  # not the order of the models
    return ["</s>", "<unk>", *ordinary, *(["<pad>"] if pad else [])]


# What Marian writes into special:model.yml, and beside it.
OPTIONS = yaml.safe_load((FOLDER / "native" / "model.yml").read_text())
DECODER = yaml.safe_load((FOLDER / "native" / "decoder.yml").read_text())


def _shapes(sizes, separate, tied):
    d, f, shapes = OPTIONS["dim-emb"], OPTIONS["transformer-dim-ffn"], {}
    parts = [f"encoder_l{layer}_self_" for layer in (1, 2)]
    for base in [*parts, "decoder_l1_self_", "decoder_l1_context_"]:
        for letter in "qkvo":
            shapes |= {f"{base}W{letter}": (d, d), f"{base}b{letter}": (1, d)}
        shapes |= {f"{base}Wo_ln_scale": (1, d), f"{base}Wo_ln_bias": (1, d)}
    for base in ("encoder_l1_ffn_", "encoder_l2_ffn_", "decoder_l1_ffn_"):
        shapes |= {f"{base}W1": (d, f), f"{base}b1": (1, f), f"{base}W2": (f, d)}
        shapes |= {f"{base}b2": (1, d), f"{base}ffn_ln_scale": (1, d), f"{base}ffn_ln_bias": (1, d)}
    names = ["encoder_Wemb", "decoder_Wemb"] if separate else ["Wemb"]
    shapes |= {name: (size, d) for name, size in zip(names, sizes, strict=False)}
    if not tied:
        shapes["decoder_ff_logit_out_W"] = (d, sizes[1])
    return shapes | {"decoder_ff_logit_out_b": (1, sizes[1])}


def _draw(random, name, shape):
    """So that a wrong tensor changes the logits, by queries and keys that are large, too."""
    values = random.normal(size=shape)
    if "ln_scale" in name:
        return (1 + 0.3 * values) * random.choice([-1, 1], shape)  # else tokens repeat
    if 1 in shape:
        return 0.3 * values
    return (2 if name.endswith(("Wq", "Wk")) else 1) * shape[-1] ** -0.5 * values


def write_native(folder, separate=False, tied=True, decoder=None, tensors=None, vocabularies="yml"):
    """Writes the folder of a native model, which it returns.

    Each side has its own vocabulary and matrix, or the output shares the target's: `separate`,
    `tied`. Vocabularies: "yml"; "lists", of the Tatoeba Challenge; "spm", Marian's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = [train_spm(side) for side in SIDES]
    groups = [[models[0]], [models[1]]] if separate else [models, models]
    make = read_pieces if vocabularies == "spm" else functools.partial(make_vocabulary, pad=False)
    listed, names = [make(*group) for group in groups], []
    for side, model, pieces in zip(SIDES, models, listed, strict=True):
        names.append(f"opus.{side}.{'vocab.yml' if vocabularies == 'yml' else vocabularies}")
        if vocabularies == "spm":
            (folder / names[-1]).write_bytes(model)
            continue
        (folder / f"{side}.spm").write_bytes(model)
        if vocabularies == "yml":
            pieces = [f"{json.dumps(x, ensure_ascii=False)}: {id}" for id, x in enumerate(pieces)]
        (folder / names[-1]).write_text("\n".join(pieces) + "\n", encoding="utf-8")
    random = np.random.default_rng(1)
    shapes = _shapes([len(pieces) for pieces in listed], separate, tied)
    arrays = {x: _draw(random, x, shape).astype("float32") for x, shape in shapes.items()}
    content = np.frombuffer(yaml.safe_dump(OPTIONS).encode() + b"\0", "int8")
    arrays |= {"special:model.yml": content} | (tensors or {})
    np.savez(folder / "model.npz", **arrays)
    decoder = DECODER | {"vocabs": names} | (decoder or {})
    (folder / "decoder.yml").write_text(yaml.safe_dump(decoder))
    (folder / "LICENSE").write_text("Attribution 4.0 International\n")
    return folder
