"""Reads a native Marian model: the folder of an OPUS-MT zip, with an `.npz`."""

import os
import re
from typing import Any

from keras_transformer.presets.options import Imported
from keras_transformer.tokenizers.vocabularies import parse_sentencepiece
from keras_transformer.tools.importers.source_model import (
    SourceModel,
    check_options,
    find_files,
    list_files,
    list_ignored,
    make_config,
    read_activation,
    read_licence,
)
from keras_transformer.tools.importers.tensors import read_tensors
from keras_transformer.tools.importers.vocabularies import (
    Vocabulary,
    find_piece,
    parse_yaml,
    read_model,
    read_vocabulary,
)

OPTIONS, DECODER = "special:model.yml", "decoder.yml"
MAX_LENGTH = 512  # tokens; Marian has no limit, its servers use about this one
# Options of the architecture and what they may be.
ALLOWED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "input-types": ([], ["sequence", "sequence"], ["sequence"]),
    "output-omit-bias": (False,),
    "right-left": (False,),
    "ulr": (False,),
    "lemma-dim-emb": (0,),
    "factors-dim-emb": (0,),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-postprocess": ("dan",),
    "transformer-postprocess-emb": ("d", ""),
}
# Others are off, except these, which are read or have no effect.
OFF: tuple[Any, ...] = False, "", [], 0
FREE = re.compile(
    "transformer-(heads|dim-ffn|decoder-dim-ffn|ffn-activation|depth-scaling|dropout.*|.*aan.*|"
    "guided-alignment-layer)"
)
# Options of decoder.yml that change translations and are ignored.
IGNORED = dict.fromkeys(("output-sampling", "output-approx-knn", "force-decode", "shortlist"), ())
STACKS = {"source": "encoder", "target": "decoder"}
PARTS = {"self": "self", "cross": "context", "feed_forward": "ffn"}
LETTERS = {"query": "q", "key": "k", "value": "v", "output": "o", "inner": "1", "outer": "2"}


def read_marian(folder: str) -> SourceModel:
    """Reads a folder with an `.npz`, vocabularies and, mostly, `decoder.yml`.

    The vocabularies of OPUS-MT number the pieces of `source.spm` and `target.spm`: one `vocab.yml`
    or, in the Tatoeba Challenge, lists, `.src.vocab` and `.trg.vocab`. Marian's own are
    SentencePiece models, which number their pieces themselves.
    """
    path = os.path.join(folder, DECODER)
    decoder = parse_yaml(path) if os.path.exists(path) else {}
    check_options(path, decoder, {"word-penalty": (0, 0.0)})
    weights, *paths = find_files(path, _name_files(folder, decoder))
    tensors = read_tensors(weights)
    options = _read_options(weights, tensors)
    if "decoder_ff_logit_out_W" in tensors:  # which is not tied
        tensors["decoder_ff_logit_out_Wt"] = tensors.pop("decoder_ff_logit_out_W").T
    source, target = _read_vocabularies(folder, paths, decoder)
    embeddings = {side: [f"{stack}_Wemb", "Wemb"] for side, stack in STACKS.items()}
    return SourceModel(
        weights=weights,
        imported=Imported(
            kind="Marian (OPUS-MT)",
            licence=read_licence(folder),
            beam_size=decoder.get("beam-size", 6),
            length_penalty=float(decoder.get("normalize") or 0),
        ),
        config=_read_config(weights, options),
        tensors=tensors,
        name_tensor=name_tensor,
        transposed=False,
        embeddings={**embeddings, "output": ["decoder_ff_logit_out_Wt", *embeddings["target"]]},
        bias="decoder_ff_logit_out_b",
        source=source,
        target=target,
        notes=list_ignored(decoder, IGNORED),
    )


def name_tensor(stack: str, layer: int, part: str, sublayer: str, weight: str) -> str:
    """Returns the name of a tensor; see `SourceModel`."""
    base = f"{stack}_l{layer + 1}_{PARTS[part]}_"
    if sublayer == "norm":
        name = "ffn_ln_" if part == "feed_forward" else "Wo_ln_"
        return base + name + {"gamma": "scale", "beta": "bias"}[weight]
    return base + {"kernel": "W", "bias": "b"}[weight] + LETTERS[sublayer]


def _name_files(folder, decoder):
    """The names of the weights and of the vocabularies of source and target."""
    names = list_files(folder)
    models = decoder.get("models") or [x for x in names if x.endswith(".npz")]
    if len(models) != 1:
        raise ValueError(
            f"{folder} must have one model, received {', '.join(models)}: copy one of them into a "
            f"new folder, with its {DECODER} and the files that this names; ensembles are not "
            "supported."
        )
    vocabularies = decoder.get("vocabs")
    if not vocabularies:
        ends = (".vocab.yml", ".src.vocab"), ".trg.vocab"
        vocabularies = [x for end in ends for x in names if x.endswith(end)]
        vocabularies *= 3 - len(vocabularies) if len(vocabularies) == 1 else 1
    if len(vocabularies) != 2:
        raise ValueError(
            f"{folder} must have a vocabulary for source and target, .yml, .vocab or .spm, which "
            f"{DECODER} names, received {', '.join(vocabularies) or 'none'}: such models are not "
            "supported."
        )
    return [*models, *vocabularies]


def _read_options(path, tensors):
    """The options inside an .npz."""
    if OPTIONS not in tensors:
        raise ValueError(f"{path} has no {OPTIONS}: it is not a model of Marian.")
    options = parse_yaml(path, tensors.pop(OPTIONS).tobytes().rstrip(b"\0"))
    others = [x for x in options if x.startswith("transformer-") and not FREE.fullmatch(x)]
    check_options(path, {"type": None, **options}, dict.fromkeys(others, OFF) | ALLOWED)
    d_ff = options["transformer-dim-ffn"]
    check_options(path, options, {"transformer-decoder-dim-ffn": (0, d_ff)})
    return options


def _read_config(path, options):
    return make_config(
        path,
        num_layers=options.get("enc-depth"),
        num_decoder_layers=options.get("dec-depth"),
        d_model=options.get("dim-emb"),
        num_heads=options.get("transformer-heads"),
        d_ff=options.get("transformer-dim-ffn"),
        dropout=options.get("transformer-dropout", 0.1),
        activation=read_activation(path, options, "transformer-ffn-activation"),
        max_length=MAX_LENGTH,
        frequencies="tensor2tensor",
    )


def _read_vocabularies(folder, paths, decoder):
    sides = []
    for side, path in zip(("source", "target"), paths, strict=True):
        plain = path.endswith(".spm")
        model = path if plain else os.path.join(folder, f"{side}.spm")
        content = read_model(model)
        own = [piece.piece for piece in parse_sentencepiece(content).pieces]
        pieces = own if plain else read_vocabulary(path)
        unk, end = (find_piece(path, pieces, x) for x in ("<unk>", "</s>"))
        suppressed = frozenset() if decoder.get("allow-unk") else frozenset([unk])
        sides.append(Vocabulary(pieces, None, unk, None, end, suppressed, content, plain=plain))
    return sides
