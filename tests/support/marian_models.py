"""Small random Marian models in the files of Hugging Face and of OPUS-MT, for tests.

Every tensor is drawn, so that a wrong one changes the logits: gammas are not 1, no bias is 0, and
queries and keys are so large that attention is far from uniform.
"""

import functools
import io
import json

import numpy as np
import sentencepiece

from tests.support.paths import FIXTURES

FOLDER = FIXTURES / "marian"
SIDES = ("source", "target")
SENTENCES = {
    "source": """A man in an orange hat is staring at something.
A Boston Terrier is running on lush green grass in front of a white fence.
A girl in karate uniform breaking a stick with a front kick.
Five people wearing winter jackets and helmets stand in the snow.
People are fixing the roof of a house.
A man in light colored clothing photographs a group of men wearing dark suits.
Two young people sit on a bench and talk about the weather.
The children play in the garden, and their mother is reading a book.
He said that it was too late; we could not find the way home.
Three dogs run along the beach while the sun goes down.""".split("\n"),
    "target": """Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.
Ein Boston Terrier läuft über saftig-grünes Gras vor einem weißen Zaun.
Ein Mädchen in einem Karateanzug bricht ein Brett mit einem Tritt.
Fünf Leute in Winterjacken und mit Helmen stehen im Schnee.
Leute reparieren das Dach eines Hauses.
Ein hell gekleideter Mann fotografiert eine Gruppe von Männern in dunklen Anzügen.
Zwei junge Leute sitzen auf einer Bank und sprechen über das Wetter.
Die Kinder spielen im Garten, und ihre Mutter liest ein Buch.
Er sagte, dass es zu spät sei; wir konnten den Weg nach Hause nicht finden.
Drei Hunde rennen den Strand entlang, während die Sonne untergeht.""".split("\n"),
}
TAGS = (">>deu<<", ">>fra<<")
# Pieces of the SentencePiece models that the vocabularies lack, and characters of their own.
DROPPED, ADDED = ("▁in", "en", "u"), ("é", "漢", "▁xyz")


@functools.cache
def train_spm(side, size=90, kind="unigram", rule="identity", **options):
    """A SentencePiece model with Marian's ids, learned from a few sentences."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES[side]),
        model_writer=model,
        vocab_size=size,
        model_type=kind,
        normalization_rule_name=rule,
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return model.getvalue()


def read_pieces(model):
    """The pieces of a SentencePiece model."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(id) for id in range(processor.vocab_size())]


def make_vocabulary(*models, style="opus", tags=TAGS, pad=True):
    """The pieces of Marian's vocabulary, by their ids.

    Args:
        models: SentencePiece models whose pieces it joins.
        style: "opus": </s>, <unk> first and <pad> last; "tc-big": all of them late, and an <s>.
        tags: Language tags.
        pad: Whether there is a <pad>, as in Hugging Face's files.
    """
    special = ("<unk>", "<s>", "</s>")
    pieces = dict.fromkeys(x for model in models for x in read_pieces(model) if x not in special)
    ordinary = [piece for piece in pieces if piece not in DROPPED] + [*ADDED, *tags]
    ordinary.sort(key=lambda piece: (sum(piece.encode()) % 7, piece))  # not the order of the models
    ends = ["<pad>"] if pad else []
    if style == "opus":
        return ["</s>", "<unk>", *ordinary, *ends]
    half = len(ordinary) // 2
    return [*ordinary[:half], "</s>", "<s>", *ordinary[half:], "<unk>", *ends]


def draw(random, name, shape):
    """Draws one tensor, by its name."""
    values = random.normal(size=shape)
    if "norm.weight" in name or "ln_scale" in name:
        values = (1 + 0.3 * values) * random.choice([-1, 1], shape)  # else tokens repeat
    elif any(x in name for x in ("shared", "embed_tokens", "lm_head", "Wemb", "ff_logit_out_W")):
        values *= shape[-1] ** -0.5
    elif any(x in name for x in ("q_proj.weight", "k_proj.weight", "_Wq", "_Wk")):
        values *= 2 * shape[-1] ** -0.5
    elif len(shape) == 2 and 1 not in shape:
        values *= shape[-1] ** -0.5
    else:
        values *= 0.3
    return values.astype("float32")


# --- native ---


def native_options(**changes):
    """What Marian writes into special:model.yml."""
    options = {
        "type": "transformer",
        "dim-emb": 16,
        "enc-depth": 2,
        "dec-depth": 1,
        "transformer-heads": 2,
        "transformer-dim-ffn": 24,
        "transformer-decoder-dim-ffn": 0,
        "transformer-ffn-activation": "swish",
        "transformer-ffn-depth": 2,
        "transformer-decoder-ffn-depth": 0,
        "transformer-decoder-autoreg": "self-attention",
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "",
        "transformer-no-projection": False,
        "transformer-train-position-embeddings": False,
        "transformer-tied-layers": [],
        "transformer-guided-alignment-layer": "last",
        "transformer-aan-depth": 2,
        "tied-embeddings-all": True,
        "tied-embeddings": False,
        "input-types": [],
        "ulr": False,
        "skip": False,
        "layer-normalization": False,
    }
    return options | changes


def native_tensors(options, sizes, seed=1):
    """The tensors of a native model: {name: array}.

    Args:
        options: As `native_options` returns them.
        sizes: Ids of source and target.
    """
    random = np.random.default_rng(seed)
    d, f = options["dim-emb"], options["transformer-dim-ffn"]
    shapes = {}
    for stack, depth, parts in (
        ("encoder", options["enc-depth"], ["self"]),
        ("decoder", options["dec-depth"], ["self", "context"]),
    ):
        for layer in range(1, depth + 1):
            for part in parts:
                base = f"{stack}_l{layer}_{part}_"
                for letter in "qkvo":
                    shapes |= {f"{base}W{letter}": (d, d), f"{base}b{letter}": (1, d)}
                shapes |= {f"{base}Wo_ln_scale": (1, d), f"{base}Wo_ln_bias": (1, d)}
            base = f"{stack}_l{layer}_ffn_"
            shapes |= {f"{base}W1": (d, f), f"{base}b1": (1, f), f"{base}W2": (f, d)}
            shapes |= {f"{base}b2": (1, d), f"{base}ffn_ln_scale": (1, d)}
            shapes |= {f"{base}ffn_ln_bias": (1, d)}
    if options["tied-embeddings-all"]:
        shapes["Wemb"] = (sizes[0], d)
    else:
        shapes |= {"encoder_Wemb": (sizes[0], d), "decoder_Wemb": (sizes[1], d)}
        if not options["tied-embeddings"]:
            shapes["decoder_ff_logit_out_W"] = (d, sizes[1])
    shapes["decoder_ff_logit_out_b"] = (1, sizes[1])
    return {name: draw(random, name, shape) for name, shape in shapes.items()}


def write_native(
    folder, separate=False, seed=1, decoder=None, tensors=None, vocabularies="yml", **changes
):
    """Writes the folder of a native model, which it returns.

    Args:
        vocabularies: "yml"; "lists", as models of the Tatoeba Challenge have; "spm", Marian's own.
    """
    import yaml

    folder.mkdir(parents=True, exist_ok=True)
    models = [train_spm(side) for side in SIDES]
    options = native_options(**changes)
    if separate:
        options["tied-embeddings-all"] = False
        options.setdefault("tied-embeddings", True)
    groups = [[models[0]], [models[1]]] if separate else [models, models]
    make = read_pieces if vocabularies == "spm" else functools.partial(make_vocabulary, pad=False)
    listed, names = [make(*group) for group in groups], []
    for side, model, pieces in zip(SIDES, models, listed, strict=True):
        names.append(f"opus.{side}.{'vocab.yml' if vocabularies == 'yml' else vocabularies}")
        (folder / f"{side}.spm").write_bytes(model)
        if vocabularies == "spm":
            (folder / f"{side}.spm").rename(folder / names[-1])
            continue
        lines = pieces
        if vocabularies == "yml":
            lines = [f"{json.dumps(x, ensure_ascii=False)}: {id}" for id, x in enumerate(pieces)]
        (folder / names[-1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    arrays = dict(native_tensors(options, [len(x) for x in listed], seed))
    arrays |= tensors or {}
    content = np.frombuffer(yaml.safe_dump(options).encode() + b"\0", "int8")
    np.savez(folder / "model.npz", **{"special:model.yml": content}, **arrays)
    settings = {
        "models": ["model.npz"],
        "vocabs": names,
        "beam-size": 6,
        "normalize": 1,
        "word-penalty": 0,
        "relative-paths": True,
    }
    (folder / "decoder.yml").write_text(yaml.safe_dump(settings | (decoder or {})))
    (folder / "LICENSE").write_text("Attribution 4.0 International\n")
    return folder
