"""Reads a native Marian model: the folder of an OPUS-MT zip, with an `.npz`."""

import os
from typing import Any

from keras_transformer.tools.importers.source_model import (
    NamedFiles,
    SourceModel,
    check_options,
    list_files,
    list_ignored,
    make_config,
    make_search,
    parse_yaml,
    read_activation,
    read_licence,
    read_option,
    read_size,
)
from keras_transformer.tools.importers.tensors import StoredTensor, read_tensors
from keras_transformer.tools.importers.vocabularies import (
    Vocabulary,
    find_piece,
    list_pieces,
    read_model,
    read_vocabulary,
)
from keras_transformer.utils import Path, read_bytes

OPTIONS, DECODER = "special:model.yml", "decoder.yml"
MAX_BYTES = 1 << 20  # of a file of options
MAX_LENGTH = 512  # tokens; Marian has no limit, its servers use about this one
# Every option of the architecture and what it may be; another one that begins with transformer- is
# refused. None: any value has no effect on translations.
ALLOWED: dict[str, tuple[Any, ...] | None] = {
    "type": ("transformer",),
    "input-types": ([], ["sequence", "sequence"], ["sequence"]),
    "output-omit-bias": (False,),
    "right-left": (False,),
    "ulr": (False,),
    "lemma-dim-emb": (0,),
    "factors-dim-emb": (0,),
    "transformer-heads": None,
    "transformer-dim-ffn": None,
    "transformer-decoder-dim-ffn": None,
    "transformer-ffn-activation": None,
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-preprocess": ("",),
    "transformer-postprocess": ("dan",),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("",),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-train-positions": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-attention-mask": ("",),
    "transformer-pool": (False,),
    "transformer-tied-layers": ([],),
    "transformer-rnn-projection": (False,),
    "transformer-depth-scaling": None,  # of initial weights
    "transformer-guided-alignment-layer": None,
    "transformer-dropout": None,
    "transformer-dropout-attention": None,
    "transformer-dropout-ffn": None,
    # Of other values of transformer-decoder-autoreg.
    "transformer-aan-activation": None,
    "transformer-aan-depth": None,
    "transformer-aan-nogate": None,
    "transformer-dim-aan": None,
}
# Options of decoder.yml that change translations and are ignored.
IGNORED = dict.fromkeys(("output-sampling", "output-approx-knn", "force-decode"), ())
STACKS = {"source": "encoder", "target": "decoder"}
PARTS = {"self": "self", "cross": "context", "feed_forward": "ffn"}
LETTERS = {"query": "q", "key": "k", "value": "v", "output": "o", "inner": "1", "outer": "2"}


def read_marian(folder: Path) -> SourceModel:
    """Reads a folder with an `.npz`, vocabularies and, mostly, `decoder.yml`.

    The vocabularies of OPUS-MT number the pieces of `source.spm` and `target.spm`: one `vocab.yml`
    or, in the Tatoeba Challenge, lists, `.src.vocab` and `.trg.vocab`. Marian's own are
    SentencePiece models, which number their pieces themselves.
    """
    folder = os.fspath(folder)
    decoder = _read_decoder(folder)
    files = NamedFiles(os.path.join(folder, DECODER), folder)
    weights = _find_weights(folder, decoder, files)
    tensors = read_tensors(weights)
    options = _read_options(weights, tensors)
    paths = _find_vocabularies(folder, decoder, files)
    source, target = _read_vocabularies(folder, paths, decoder)
    embeddings = {side: [f"{stack}_Wemb", "Wemb"] for side, stack in STACKS.items()}
    embeddings["output"] = ["decoder_ff_logit_out_Wt", *embeddings["target"]]
    untransposed = "decoder_ff_logit_out_W"
    return SourceModel(
        path=folder,
        kind="Marian (OPUS-MT)",
        weights=weights,
        licence=read_licence(folder),
        config=_read_config(weights, options, tensors),
        tensors=tensors,
        name_tensor=name_tensor,
        transposed=False,
        embeddings=embeddings,
        bias="decoder_ff_logit_out_b",
        output_kernel=untransposed if untransposed in tensors else "",
        source=source,
        target=target,
        search=make_search(
            DECODER,
            read_option(decoder, "normalize", 0),
            beam_size=read_option(decoder, "beam-size", 6),
            length_norm="length",
        ),
        notes=_notes(folder, decoder),
    )


def name_tensor(stack: str, layer: int, part: str, sublayer: str, weight: str) -> str:
    """Returns the name of a tensor; see `SourceModel`."""
    base = f"{stack}_l{layer + 1}_{PARTS[part]}_"
    if sublayer == "norm":
        name = "ffn_ln_" if part == "feed_forward" else "Wo_ln_"
        return base + name + {"gamma": "scale", "beta": "bias"}[weight]
    return base + {"kernel": "W", "bias": "b"}[weight] + LETTERS[sublayer]


def _read_decoder(folder):
    path = os.path.join(folder, DECODER)
    if not os.path.exists(path):
        return {}
    options = parse_yaml(path, read_bytes(path, MAX_BYTES))
    check_options(path, options, {"word-penalty": (0, 0.0)})
    for name in ("models", "vocabs"):
        value = options.get(name) or []
        if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
            raise ValueError(f"{path}: {name} must be a list of files.")
    return options


def _find_weights(folder, decoder, files):
    """The path of the only .npz; decoder.yml may name one of several."""
    named = decoder.get("models") or []
    if len(named) > 1:
        raise ValueError(
            f"{folder}: {DECODER} names {len(named)} models: ensembles are not supported."
        )
    found = [x for x in list_files(folder) if x.endswith(".npz")]
    if not named and len(found) > 1:
        raise ValueError(
            f"{folder} has several models, {', '.join(found)}, as a folder in which Marian trains: "
            f"copy one of them into a new folder, with its decoder.yml as {DECODER} and the files "
            "that this names, source.spm and target.spm."
        )
    return files.find((named or found)[0])


def _read_options(path: Path, tensors: dict[str, StoredTensor]) -> dict[str, Any]:
    """The options inside an .npz."""
    if OPTIONS not in tensors:
        raise ValueError(f"{path} has no {OPTIONS}: it is not a model of Marian.")
    stored = tensors.pop(OPTIONS)
    if sum(stored.shape) > MAX_BYTES:
        raise ValueError(f"{path}: {OPTIONS} is too large.")
    options = parse_yaml(path, stored.read().tobytes().rstrip(b"\0"))
    unknown = [x for x in options if str(x).startswith("transformer-") and x not in ALLOWED]
    check_options(path, options, {x: (False, "", [], 0) for x in unknown})
    check_options(path, options, {k: v for k, v in ALLOWED.items() if v is not None})
    if "type" not in options:
        raise ValueError(f"{path}: its options do not name a type.")
    return options


def _read_config(path, options, tensors):
    d_ff = read_size(path, options, "transformer-dim-ffn")
    check_options(path, options, {"transformer-decoder-dim-ffn": (0, d_ff)})
    all_tied = options.get("tied-embeddings-all")
    tied = all_tied or options.get("tied-embeddings")
    return make_config(
        path,
        read_size(path, options, "enc-depth"),
        read_size(path, options, "dec-depth"),
        d_model=read_size(path, options, "dim-emb"),
        num_heads=read_size(path, options, "transformer-heads"),
        d_ff=d_ff,
        dropout=options.get("transformer-dropout", 0.1),
        activation=read_activation(path, options, "transformer-ffn-activation"),
        share_embeddings="all" if all_tied else "target" if tied else "none",
        max_length=MAX_LENGTH,
        frequencies="tensor2tensor",
        output_bias=bool(tied),
    )


def _find_vocabularies(folder, decoder, files):
    """Paths of the vocabularies of source and target."""
    names = decoder.get("vocabs") or []
    if not names:
        names = [x for x in list_files(folder) if x.endswith((".vocab.yml", ".src.vocab"))]
        names += [x for x in list_files(folder) if x.endswith(".trg.vocab")]
        names *= 3 - len(names) if len(names) == 1 else 1
    if len(names) != 2 or any(name.endswith(".fsv") for name in names):
        raise ValueError(
            f"{folder} must have a vocabulary for source and target, .yml, .vocab or .spm, which "
            f"{DECODER} names, received {', '.join(names) or 'none'}: such models are not "
            "supported."
        )
    return [files.find(name) for name in names]


def _read_vocabularies(folder, paths, decoder):
    sides = []
    for side, path in zip(("source", "target"), paths, strict=True):
        plain = path.endswith(".spm")
        model = path if plain else os.path.join(folder, f"{side}.spm")
        if not os.path.exists(model):
            raise ValueError(
                f"{model} is missing: models with subword-nmt codes, from before SentencePiece, "
                "are not supported."
            )
        content = read_model(model)
        pieces = list_pieces(content) if plain else read_vocabulary(path)
        unk, end = (find_piece(path, pieces, x) for x in ("<unk>", "</s>"))
        suppressed = frozenset() if decoder.get("allow-unk") else frozenset([unk])
        sides.append(Vocabulary(pieces, None, unk, None, end, suppressed, content, plain=plain))
    return sides


def _notes(folder, decoder):
    notes = list_ignored(decoder, IGNORED)
    if not decoder:
        notes.append(f"without {DECODER}, the search is Marian's: beam 6, no length penalty.")
    notes += [
        f"translations have up to {MAX_LENGTH} tokens; Marian stops at a multiple of the source's "
        "length (max-length-factor)."
    ]
    if decoder.get("shortlist") or any("lex" in name for name in list_files(folder)):
        notes.append("the shortlist is ignored: all pieces compete.")
    if any(name.startswith("preprocess") for name in list_files(folder)):
        notes.append("the punctuation of sources is not normalized as preprocess.sh does.")
    return notes
