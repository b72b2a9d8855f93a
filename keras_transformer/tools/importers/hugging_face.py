"""Reads the folder of a Marian model of Hugging Face."""

import dataclasses
import os
import re
from typing import Any

from keras_transformer.tools.importers.source_model import (
    SourceModel,
    check_options,
    list_ignored,
    make_config,
    make_search,
    read_activation,
    read_licence,
    read_option,
    read_size,
)
from keras_transformer.tools.importers.tensors import read_start, read_tensors
from keras_transformer.tools.importers.vocabularies import (
    Vocabulary,
    find_piece,
    read_model,
    read_vocabulary,
)
from keras_transformer.utils import Path, read_json

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, ADDED = "tokenizer_config.json", "added_tokens.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# Options of config.json that the model depends on, and what they may be.
ALLOWED: dict[str, tuple[Any, ...]] = {
    "scale_embedding": (True,),
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "add_final_layer_norm": (False,),
    "static_position_embeddings": (True,),
    "is_encoder_decoder": (True,),
}
# Options of a search that change translations, and values without an effect: others are noted.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("do_sample", "forced_bos_token_id", "begin_suppress_tokens"), ()),
    **dict.fromkeys(("exponential_decay_length_penalty", "max_time"), ()),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length"), (0,)),
    **dict.fromkeys(("min_new_tokens", "diversity_penalty"), (0,)),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), (1,)),
    **dict.fromkeys(("num_beam_groups", "guidance_scale", "num_return_sequences"), (1,)),
    "early_stopping": (True,),
}
# Options that generation_config.json may have without a note: they are read, or without an effect.
IDS = ("pad_token_id", "decoder_start_token_id", "eos_token_id")
KNOWN = {
    *("num_beams", "length_penalty", "max_length", "max_new_tokens", *IDS),
    *("bad_words_ids", "suppress_tokens", "bos_token_id", "forced_eos_token_id", "use_cache"),
    *("renormalize_logits", "transformers_version", "_from_model_config"),
}
# What a folder may have instead of a model, and what to do.
SPLIT = (
    "has its weights in several files: load it with transformers, and call save_pretrained(FOLDER, "
    'max_shard_size="100GB").'
)
FOREIGN = (
    "has weights of {0} only: load it with transformers 4, MarianMTModel.from_pretrained(FOLDER, "
    "from_{1}=True), and call save_pretrained(FOLDER)."
)
INSTEAD = {
    "adapter_config.json": "is an adapter of PEFT: load it with its model, call merge_and_unload() "
    "and save_pretrained(FOLDER), and add the files of the tokenizer.",
    "model.safetensors.index.json": SPLIT,
    "pytorch_model.bin.index.json": SPLIT,
    "tf_model.h5": FOREIGN.format("TensorFlow", "tf"),
    "flax_model.msgpack": FOREIGN.format("Flax", "flax"),
    "snapshots": "is a folder of the Hub's cache: give the folder in its snapshots/.",
}
# Prefixes of names that torch.nn.DataParallel, torch.compile and FSDP add.
WRAPPERS = re.compile(r"((module|_orig_mod|_fsdp_wrapped_module)\.)*")
ATTENTION = {"self": "self_attn", "cross": "encoder_attn"}
SUBLAYERS = {
    **{name: f"{name[0]}_proj" for name in ("query", "key", "value")},
    **{"output": "out_proj", "inner": "fc1", "outer": "fc2"},
}
KINDS = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}


def read_hugging_face(folder: Path) -> SourceModel:
    """Reads a folder with config.json, weights and vocabularies."""
    folder = os.fspath(folder)
    path = os.path.join(folder, CONFIG)
    options = read_json(path)
    if (kind := options.get("model_type")) != "marian":
        raise ValueError(
            f"{path}: the model is of the type {kind!r:.40}; only Marian models are imported, such "
            "as Helsinki-NLP/opus-mt-en-de."
        )
    check_options(path, {"scale_embedding": False} | options, ALLOWED)
    weights = _find_weights(folder)
    tensors = _read_tensors(weights, options)
    generation, notes = _read_generation(folder, options)
    source, target = _read_vocabularies(folder, options, generation)
    if source.padding or target.padding:
        notes.append("rows of the embeddings without a piece are dropped.")
    return SourceModel(
        path=folder,
        kind="Marian (Hugging Face)",
        weights=weights,
        licence=read_licence(folder),
        config=_read_config(path, options),
        tensors=tensors,
        name_tensor=name_tensor,
        transposed=True,
        embeddings=_name_embeddings(options),
        bias="final_logits_bias",
        tables=tuple(f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")),
        source=source,
        target=target,
        search=_read_search(generation, options),
        notes=notes,
    )


def name_tensor(stack: str, layer: int, part: str, sublayer: str, weight: str) -> str:
    """Returns the name of a tensor; see `SourceModel`."""
    base = f"model.{stack}.layers.{layer}."
    if sublayer == "norm":
        base += f"{ATTENTION[part]}_layer_norm" if part in ATTENTION else "final_layer_norm"
    elif part in ATTENTION:
        base += f"{ATTENTION[part]}.{SUBLAYERS[sublayer]}"
    else:
        base += SUBLAYERS[sublayer]
    return f"{base}.{KINDS[weight]}"


def _find_weights(folder):
    for name in WEIGHTS:
        if os.path.exists(path := os.path.join(folder, name)):
            return path
    check_instead(folder)
    raise ValueError(f"{folder} has no weights: {' or '.join(WEIGHTS)} is missing.")


def check_instead(folder: Path) -> None:
    """Raises if a folder without a model has something that can be made into one."""
    for name, sentence in INSTEAD.items():
        if os.path.exists(os.path.join(folder, name)):
            raise ValueError(f"{folder} {sentence}")


def _read_tensors(path, options):
    """Reads the tensors, without the prefixes of wrappers and what transformers does not read."""
    found = read_tensors(path)
    tensors = {name[WRAPPERS.match(name).end() :]: found[name] for name in found}
    if len(tensors) < len(found):
        raise ValueError(f"{path} has some tensors twice, with and without a prefix: convert it.")
    sides = {f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")}
    if options.get("tie_word_embeddings") is False and sides <= tensors.keys():
        tensors.pop("model.shared.weight", None)
    return tensors


def _read_config(path, options):
    separate = options.get("share_encoder_decoder_embeddings") is False
    tied = options.get("tie_word_embeddings", True)
    return make_config(
        path,
        read_size(path, options, "encoder_layers"),
        read_size(path, options, "decoder_layers"),
        d_model=read_size(path, options, "d_model"),
        num_heads=read_size(path, options, "encoder_attention_heads", "decoder_attention_heads"),
        d_ff=read_size(path, options, "encoder_ffn_dim", "decoder_ffn_dim"),
        dropout=options.get("dropout", 0.1),
        activation=read_activation(path, options, "activation_function"),
        share_embeddings="none" if not tied else "target" if separate else "all",
        max_length=read_size(path, options, "max_position_embeddings"),
        epsilon=1e-5,
        output_bias=bool(tied),
    )


def _name_embeddings(options):
    """The names that each embedding may have: of tensors that are tied, files hold some only."""
    shared = ["model.shared.weight"]
    sides = {side: [f"model.{side}.embed_tokens.weight"] for side in ("encoder", "decoder")}
    source, target = sides["encoder"] + shared, sides["decoder"] + shared
    head = ["lm_head.weight"]
    tied = head if options.get("tie_word_embeddings", True) else []
    if options.get("share_encoder_decoder_embeddings") is not False:
        source, target = source + sides["decoder"] + tied, target + sides["encoder"]
    return {"source": source, "target": target + tied, "output": head + target}


def _read_generation(folder, options):
    """The options of the search, and notes on those that are ignored."""
    path = os.path.join(folder, GENERATION)
    generation = options
    if os.path.exists(path):
        read_start(path)
        generation = read_json(path)
    # config.json has other options too.
    others = [] if generation is options else sorted(generation.keys() - KNOWN)
    notes = list_ignored(generation, dict.fromkeys(others, ()) | NEUTRAL)
    if any(len(words) != 1 for words in _suppressed(generation)):
        notes.append("bad_words_ids of several tokens are ignored.")
    return generation, notes


def _suppressed(generation):
    """Lists of ids that are never generated."""
    words, ids = (
        value if isinstance(value := generation.get(name), list) else []
        for name in ("bad_words_ids", "suppress_tokens")
    )
    words = [word for word in words if isinstance(word, list)] + [[id] for id in ids]
    return [word for word in words if all(type(id) is int for id in word)]


def _read_vocabularies(folder, options, generation):
    """The vocabularies of source and target, which often are one."""
    names = "vocab.json", "target_vocab.json"
    paths = [os.path.join(folder, name) for name in names]
    separate = os.path.exists(paths[1])
    models = [read_model(os.path.join(folder, f"{side}.spm")) for side in ("source", "target")]
    pieces = read_vocabulary(paths[0])
    unk, pad, end = (find_piece(paths[0], pieces, x) for x in ("<unk>", "<pad>", "</s>"))
    added = _read_added(folder, pieces)
    pieces, size = [*pieces, *added], options.get("vocab_size")
    padding = _count_padding(size, pieces)
    source = Vocabulary(pieces, pad, unk, pad, end, frozenset(), models[0], added, padding)
    if separate:
        pieces, added = read_vocabulary(paths[1]), ()
        unk = find_piece(paths[1], pieces, "<unk>")
        padding = _count_padding(options.get("decoder_vocab_size") or size, pieces)
    config = os.path.join(folder, CONFIG)
    pad, start, end = (_read_id(config, (options, generation), x, len(pieces)) for x in IDS)
    bad = frozenset(word[0] for word in _suppressed(generation) if len(word) == 1)
    target = Vocabulary(pieces, pad, unk, start, end, bad, models[1], added, padding)
    if not separate and (source.pad, source.end) != (pad, end):
        raise ValueError(
            f"{config} has pad_token_id {pad} and eos_token_id {end}, but {paths[0]} has the ids "
            f"{source.pad} and {source.end}: the files are of different models."
        )
    if not separate:
        source = dataclasses.replace(source, start=start)
    return source, target


def _read_added(folder, pieces):
    """Tokens that were added to a vocabulary, in the order of their ids, which come last."""
    paths = [os.path.join(folder, name) for name in (TOKENIZER, ADDED)]
    listed, found = (read_json(path) if os.path.exists(path) else {} for path in paths)
    try:
        tokens = read_option(listed, "added_tokens_decoder", {}).items()
        found = {token["content"]: int(id) for id, token in tokens} | found
        added = sorted((found[token], token) for token in found.keys() - set(pieces))
    except (AttributeError, KeyError, TypeError, ValueError):
        added = [(None, "what cannot be read")]
    if [id for id, _ in added] != [*range(len(pieces), len(pieces) + len(added))]:
        raise ValueError(
            f"{folder}: {ADDED} and {TOKENIZER} must number added tokens from {len(pieces):,}, the "
            f"size of the vocabulary, received {added!r:.60}: the files are of different models."
        )
    return tuple(token for _, token in added)


def _count_padding(size, pieces):
    """The number of rows that fill up a matrix, such as to a multiple of 8."""
    return max(0, size - len(pieces)) if type(size) is int else 0


def _read_id(path, sources, name, size):
    """An id of config.json or generation_config.json; if both have it, they must agree."""
    values = [options[name] for options in sources if options.get(name) is not None]
    values = [x[0] if isinstance(x, list) and len(x) == 1 else x for x in values]
    if not values or any(type(x) is not int or x != values[0] or not 0 <= x < size for x in values):
        raise ValueError(
            f"{path}: {name} must be one id below {size:,}, the pieces of the vocabulary, received "
            f"{' and '.join(map(repr, values)) or 'none':.60}."
        )
    return values[0]


def _read_search(generation, options):
    longest = generation.get("max_new_tokens")
    if longest is None:
        longest = generation.get("max_length") or options.get("max_length")
        longest = longest - 1 if type(longest) is int else longest  # without the decoder's first
    return make_search(
        "the model's configuration",
        read_option(generation, "length_penalty", 1.0),
        beam_size=read_option(generation, "num_beams", 1),
        length_norm="length",
        max_output_length=longest,
    )
