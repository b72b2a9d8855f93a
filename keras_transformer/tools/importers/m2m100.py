"""Reads the folder of an M2M100 or NLLB model of Hugging Face: one model of many languages.

Each side begins with the token of its language. Both kinds number the pieces of one SentencePiece
model, and the tokens of the languages follow.
"""

import dataclasses
import functools
import os
import re
from typing import Any

from keras_transformer.presets.options import SOURCE_TEXT, TEXT_SOURCE
from keras_transformer.tokenizers.vocabularies import parse_sentencepiece
from keras_transformer.tools.importers.hugging_face import (
    TOKENIZER,
    count_padding,
    read_added,
    read_folder,
)
from keras_transformer.tools.importers.source_model import SourceModel
from keras_transformer.tools.importers.vocabularies import Vocabulary, read_model, read_vocabulary
from keras_transformer.utils import read_json

PIECES, NUMBERED = "sentencepiece.bpe.model", "vocab.json"
SPECIAL_TOKENS = "special_tokens_map.json"
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
    model = read_folder(
        folder,
        kind.removesuffix("Tokenizer").replace("Nllb", "NLLB"),
        ALLOWED,
        functools.partial(_read_vocabularies, kind, tokenizer),
        norm="pre",
        frequencies="tensor2tensor",
        first_position=FIRST_POSITION,
    )
    languages = tuple(filter(TOKENS[kind].fullmatch, model.source.languages))
    if not languages:
        raise ValueError(
            f"{folder} names no languages: copy {SPECIAL_TOKENS} from the model that was "
            "fine-tuned."
        )
    is_last, longest = tokenizer.get("legacy_behaviour"), model.imported.max_output_length
    model.imported = dataclasses.replace(
        model.imported,
        language_tags=languages,
        language_order=TEXT_SOURCE if kind == NLLB and is_last else SOURCE_TEXT,
        # Without the token of a language.
        max_output_length=longest and longest - 1,
        min_length=max(0, model.imported.min_length - 1),
    )
    return model


def _read_vocabularies(kind, tokenizer, folder, options, _):
    """Returns the vocabulary of both sides, which is one."""
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
    added = read_added(folder, pieces) or _list_languages(kind, tokenizer, folder)
    for token in added:
        if token != MASK and not TOKENS[kind].fullmatch(token):
            raise ValueError(
                f"{folder} has the added token {token!r:.40}, which is not that of a language: "
                "such models are not supported."
            )
    pieces, size = [*pieces, *added], options.get("vocab_size")
    padding = tokenizer.get("num_madeup_words", count_padding(size, pieces))
    if size != len(pieces) + padding:
        raise ValueError(
            f"{folder}: vocab_size must be {len(pieces):,} pieces and languages and {padding} "
            f"num_madeup_words, received {size!r:.40}: the files are of different models."
        )
    ids = PAD, UNK, END, END
    how = {"padding": padding, "languages": tuple(added)}
    return [Vocabulary(pieces, *ids, frozenset(), model, **how)] * 2


def _list_languages(kind, tokenizer, folder):
    """Returns the tokens after the pieces where their order says their ids."""
    if kind != NLLB:
        return [f"__{code}__" for code in CODES[tokenizer.get("language_codes") or "m2m100"]]
    path = os.path.join(folder, SPECIAL_TOKENS)
    special = read_json(path) if os.path.exists(path) else {}
    tokens = special.get("additional_special_tokens", ())
    tokens = [token if isinstance(token, str) else token["content"] for token in tokens]
    return [*filter(TOKENS[kind].fullmatch, tokens), MASK]
