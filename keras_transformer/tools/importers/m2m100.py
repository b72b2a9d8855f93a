"""Reads the folder of an M2M100 or NLLB model of Hugging Face: one model of many languages.

Each side begins with the token of its language. Both kinds number the pieces of one SentencePiece
model, and the tokens of the languages follow.
"""

import os
import re
from typing import Any

from keras_transformer.presets.options import LANGUAGE_ORDERS
from keras_transformer.tokenizers.vocabularies import parse_sentencepiece
from keras_transformer.tools.importers.hugging_face import (
    CONFIG,
    TOKENIZER,
    count_padding,
    read_folder,
)
from keras_transformer.tools.importers.source_model import SourceModel
from keras_transformer.tools.importers.vocabularies import Vocabulary, read_model, read_vocabulary
from keras_transformer.utils import read_bytes, read_json

PIECES, NUMBERED = "sentencepiece.bpe.model", "vocab.json"
SPECIAL_TOKENS, FAST = "special_tokens_map.json", "tokenizer.json"
MAX_FAST_BYTES = 128 << 20
FIRST = ["<s>", "<pad>", "</s>", "<unk>"]  # of both vocabularies
_, PAD, END, UNK = range(len(FIRST))  # END also begins the decoder's input
MASK = "<mask>"  # of NLLB, unused
FIRST_POSITION = PAD + 1  # fairseq's
M2M100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
)
# Languages that the option `language_codes` of a tokenizer stands for.
CODES = {"m2m100": M2M100.split(), "wmt21": "en ha is ja cs ru zh de".split()}
# The tokens of languages, by the class of the tokenizer.
NLLB = "NllbTokenizer"
TOKENS = {
    "M2M100Tokenizer": re.compile("__[A-Za-z_]+__"),
    NLLB: re.compile("[a-z]{3}_[A-Z][a-z]{3}"),
}
ALLOWED: dict[str, tuple[Any, ...]] = {
    "scale_embedding": (True,),
    "is_encoder_decoder": (True,),
    "pad_token_id": (PAD,),
    "eos_token_id": (END,),
    "decoder_start_token_id": (END,),
}


def read_m2m100(folder: str) -> SourceModel:
    """Reads a folder with config.json, weights and the files of the tokenizer."""
    path = os.path.join(folder, TOKENIZER)
    tokenizer = read_json(path)
    kind = str(tokenizer.get("tokenizer_class")).removesuffix("Fast")
    if kind not in TOKENS:
        raise ValueError(
            f"{path}: tokenizer_class must be one of {', '.join(TOKENS)}, received {kind!r:.40}: "
            "such models are not supported."
        )
    vocabulary, languages = _read_vocabulary(folder, kind, tokenizer)
    is_last = kind == NLLB and tokenizer.get("legacy_behaviour")
    return read_folder(
        folder,
        "NLLB" if kind == NLLB else "M2M100",
        ALLOWED,
        (vocabulary, vocabulary),
        {"language_tags": languages, "language_order": LANGUAGE_ORDERS[2 if is_last else 1]},
        norm="pre",
        frequencies="tensor2tensor",
        first_position=FIRST_POSITION,
    )


def _read_vocabulary(folder, kind, tokenizer):
    """Returns the vocabulary, which both sides share, and the tokens of the languages."""
    path = os.path.join(folder, PIECES)
    if not os.path.exists(path):
        raise ValueError(
            f"{folder} has no {PIECES}, which transformers does not always save: copy it from the "
            "model that was fine-tuned, such as facebook/nllb-200-distilled-600M."
        )
    model = read_model(path)
    if kind == NLLB:
        pieces = [piece.piece for piece in parse_sentencepiece(model).pieces]
        pieces = FIRST + pieces[len(FIRST) - 1 :]  # after its <unk>, <s> and </s>
    else:
        pieces = read_vocabulary(path := os.path.join(folder, NUMBERED))
    if pieces[: len(FIRST)] != FIRST:
        raise ValueError(
            f"{path} must begin with {', '.join(FIRST)}, received {', '.join(pieces[:4])}: such "
            "models are not supported."
        )
    added = _list_added(folder, kind, tokenizer, len(pieces))
    languages = tuple(filter(TOKENS[kind].fullmatch, added))
    if not languages:
        raise ValueError(
            f"{folder} names no languages: copy {SPECIAL_TOKENS} from the model that was "
            "fine-tuned."
        )
    pieces += added
    config = os.path.join(folder, CONFIG)
    size = read_json(config).get("vocab_size")
    padding = tokenizer.get("num_madeup_words", count_padding(size, pieces))
    if size != len(pieces) + padding:
        raise ValueError(
            f"{config}: vocab_size must be {len(pieces):,} pieces and languages and {padding} "
            f"num_madeup_words, received {size!r:.40}: the files are of different models."
        )
    sides = PAD, UNK, END, END
    vocabulary = Vocabulary(
        pieces, *sides, frozenset(), model, padding=padding, languages=tuple(added)
    )
    return vocabulary, languages


def _list_added(folder, kind, tokenizer, first):
    """Returns the tokens after the pieces, whose ids count from `first`."""
    listed, fast = (os.path.join(folder, name) for name in (SPECIAL_TOKENS, FAST))
    tokens = tokenizer.get("added_tokens_decoder", {})
    numbered = {int(id): token["content"] for id, token in tokens.items()}
    if max(numbered, default=0) < first and os.path.exists(fast):
        tokens = read_json(fast, read_bytes(fast, MAX_FAST_BYTES))["added_tokens"]
        numbered = {token["id"]: token["content"] for token in tokens}
    added = {id: token for id, token in numbered.items() if id >= first}
    if not added:
        return _list_unnumbered(
            read_json(listed) if os.path.exists(listed) else {}, kind, tokenizer
        )
    if sorted(added) != [*range(first, first + len(added))]:
        raise ValueError(
            f"{folder}: added tokens must have the ids from {first:,} on, received "
            f"{str(sorted(added)):.60}: the files are of different models."
        )
    return [added[id] for id in sorted(added)]


def _list_unnumbered(special, kind, tokenizer):
    """Returns the added tokens where their order says their ids."""
    tokens = special.get("additional_special_tokens") or tokenizer.get("extra_special_tokens") or []
    tokens = [token if isinstance(token, str) else token["content"] for token in tokens]
    languages = [*filter(TOKENS[kind].fullmatch, tokens)]
    if kind == NLLB:
        return [*languages, MASK]
    codes = CODES[tokenizer.get("language_codes") or "m2m100"]
    return languages or [f"__{code}__" for code in codes]
