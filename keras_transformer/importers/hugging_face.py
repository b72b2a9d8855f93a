"""Reads the folder of a Marian model of Hugging Face."""

import os
from typing import Any

from keras_transformer.importers.source_model import (
    SourceModel,
    check_options,
    read_activation,
    read_licence,
    read_size,
)
from keras_transformer.importers.tensors import read_start, read_tensors
from keras_transformer.importers.vocabularies import (
    Vocabulary,
    find_piece,
    read_model,
    read_vocabulary,
)
from keras_transformer.inspection.files import read_json
from keras_transformer.presets import ModelConfig, SearchConfig
from keras_transformer.utils import Path

CONFIG, GENERATION = "config.json", "generation_config.json"
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
# Options of the search that change translations, and their values without an effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "do_sample": (False,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "repetition_penalty": (1.0, 1),
    "min_length": (0,),
    "min_new_tokens": (None, 0),
    "forced_bos_token_id": (None,),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "num_beam_groups": (None, 1),
    "diversity_penalty": (None, 0.0),
}
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
    tensors = read_tensors(weights)
    generation, notes = _read_generation(folder, options)
    source, target = _read_vocabularies(folder, options, generation)
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
    raise ValueError(
        f"{folder} has no weights: {' or '.join(WEIGHTS)} is missing; weights in several files are "
        "not supported."
    )


def _read_config(path, options):
    depth = "encoder_layers", "decoder_layers"
    layers, decoder_layers = (read_size(path, options, name) for name in depth)
    separate = options.get("share_encoder_decoder_embeddings") is False
    tied = options.get("tie_word_embeddings", True)
    try:
        return ModelConfig(
            num_layers=layers,
            num_decoder_layers=None if decoder_layers == layers else decoder_layers,
            d_model=read_size(path, options, "d_model"),
            num_heads=read_size(
                path, options, "encoder_attention_heads", "decoder_attention_heads"
            ),
            d_ff=read_size(path, options, "encoder_ffn_dim", "decoder_ffn_dim"),
            dropout=options.get("dropout", 0.1),
            activation=read_activation(path, options, "activation_function"),
            share_embeddings="none" if not tied else "target" if separate else "all",
            max_length=read_size(path, options, "max_position_embeddings"),
            epsilon=1e-5,
            output_bias=bool(tied),
            suppress_ids=True,
        )
    except ValueError as error:
        raise ValueError(str(error) if path in str(error) else f"{path}: {error}") from None


def _name_embeddings(options):
    """The names that each embedding may have: of tensors that are tied, files hold some only."""
    shared = ["model.shared.weight"]
    sides = {side: [f"model.{side}.embed_tokens.weight"] for side in ("encoder", "decoder")}
    source, target = sides["encoder"] + shared, sides["decoder"] + shared
    if options.get("share_encoder_decoder_embeddings") is not False:
        source, target = source + sides["decoder"], target + sides["encoder"]
    return {"source": source, "target": target, "output": ["lm_head.weight", *target]}


def _read_generation(folder, options):
    """The options of the search, and notes on those that are ignored."""
    path = os.path.join(folder, GENERATION)
    generation = options
    if os.path.exists(path):
        read_start(path)
        generation = read_json(path)
    notes = []
    for name, values in NEUTRAL.items():
        if name in generation and generation[name] not in values:
            notes.append(f"{name} {generation[name]!r:.40} of the configuration is ignored.")
    if any(len(words) != 1 for words in _bad_words(generation)):
        notes.append("bad_words_ids of several tokens are ignored.")
    return generation, notes


def _bad_words(generation):
    words = generation.get("bad_words_ids") or []
    valid = isinstance(words, list) and all(isinstance(word, list) for word in words)
    return words if valid else []


def _read_vocabularies(folder, options, generation):
    """The vocabularies of source and target, which often are one."""
    names = "vocab.json", "target_vocab.json"
    paths = [os.path.join(folder, name) for name in names]
    separate = os.path.exists(paths[1])
    models = [read_model(os.path.join(folder, f"{side}.spm")) for side in ("source", "target")]
    pieces = read_vocabulary(paths[0])
    unk, pad, end = (find_piece(paths[0], pieces, x) for x in ("<unk>", "<pad>", "</s>"))
    source = Vocabulary(pieces, pad, unk, pad, end, frozenset(), models[0])
    if separate:
        pieces = read_vocabulary(paths[1])
        unk = find_piece(paths[1], pieces, "<unk>")
    config = os.path.join(folder, CONFIG)
    ids = "pad_token_id", "decoder_start_token_id", "eos_token_id"
    pad, start, end = (_read_id(config, options, name, len(pieces)) for name in ids)
    bad = frozenset(word[0] for word in _bad_words(generation) if len(word) == 1)
    target = Vocabulary(pieces, pad, unk, start, end, bad, models[1])
    if not separate and (source.pad, source.end) != (pad, end):
        raise ValueError(
            f"{config} has pad_token_id {pad} and eos_token_id {end}, but {paths[0]} has the ids "
            f"{source.pad} and {source.end}: the files are of different models."
        )
    if not separate:
        source = Vocabulary(pieces, pad, unk, start, end, frozenset(), models[0])
    return source, target


def _read_id(path, options, name, size):
    value = options.get(name)
    if type(value) is not int or not 0 <= value < size:
        raise ValueError(
            f"{path}: {name} must be an id below {size:,}, the pieces of the vocabulary, received "
            f"{value!r:.40}."
        )
    return value


def _read_search(generation, options):
    longest = generation.get("max_length") or options.get("max_length")
    if type(longest) is int:
        longest -= 1  # it counts the first input of the decoder
    try:
        return SearchConfig(
            beam_size=generation.get("num_beams", 1) or 1,
            length_penalty=float(generation.get("length_penalty", 1.0)),
            length_norm="length",
            max_output_length=longest,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"The search of the model's configuration is invalid: {error}") from None
