"""Reads the folders of models of Hugging Face: what all have in common, and Marian."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer.presets.options import Imported
from keras_transformer.tools.importers.source_model import (
    SourceModel,
    check_options,
    find_files,
    list_ignored,
    make_config,
    read_activation,
    read_licence,
)
from keras_transformer.tools.importers.tensors import read_tensors
from keras_transformer.tools.importers.vocabularies import (
    Vocabulary,
    find_piece,
    read_model,
    read_vocabulary,
)
from keras_transformer.utils import read_bytes, read_json

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, ADDED, FAST = "tokenizer_config.json", "added_tokens.json", "tokenizer.json"
MAX_FAST_BYTES = 128 << 20
WEIGHTS, INDEX = ("model.safetensors", "pytorch_model.bin"), ".index.json"
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
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "diversity_penalty"), (0,)),
    **dict.fromkeys(("encoder_repetition_penalty", "num_beam_groups"), (1,)),
    **dict.fromkeys(("guidance_scale", "num_return_sequences"), (1,)),
}
# Options that generation_config.json may have without a note: they are read, or without an effect.
IDS = ("pad_token_id", "decoder_start_token_id", "eos_token_id")
KNOWN = {
    *("num_beams", "length_penalty", "early_stopping", "max_length", "max_new_tokens", *IDS),
    *("min_length", "min_new_tokens", "no_repeat_ngram_size", "repetition_penalty"),
    *("bad_words_ids", "suppress_tokens", "bos_token_id", "forced_eos_token_id", "use_cache"),
    *("renormalize_logits", "transformers_version", "_from_model_config"),
}
ATTENTION = {"self": "self_attn", "cross": "encoder_attn"}
SUBLAYERS = {
    **{name: f"{name[0]}_proj" for name in ("query", "key", "value")},
    **{"output": "out_proj", "inner": "fc1", "outer": "fc2"},
}
KINDS = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
# Of matrices that are tied, files may hold any.
SHARED, HEAD = "model.shared.weight", "lm_head.weight"
ENCODER, DECODER = (f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
EMBEDDINGS = {
    "source": [ENCODER, SHARED, DECODER, HEAD],
    "target": [DECODER, SHARED, HEAD, ENCODER],
    "output": [HEAD, DECODER, SHARED, ENCODER],
}


def read_marian_folder(folder: str) -> SourceModel:
    """Reads a folder with config.json, weights and vocabularies of a Marian model."""
    return read_folder(folder, "Marian", ALLOWED, _read_vocabularies)


def read_folder(
    folder: str,
    kind: str,
    allowed: Mapping[str, tuple[Any, ...]],
    read_vocabularies: Callable[[str, dict[str, Any], dict[str, Any]], Sequence[Vocabulary]],
    **architecture: Any,
) -> SourceModel:
    """Reads what the models of all kinds have in common.

    `allowed` are options of config.json and what they may be, and `architecture` of `ModelConfig`.
    `read_vocabularies` is a function from the folder, config.json and generation_config.json to the
    vocabularies of both sides.
    """
    path = os.path.join(folder, CONFIG)
    options = generation = read_json(path)
    check_options(path, {"scale_embedding": False} | options, allowed)
    # The other heads would have the same shapes.
    heads = options.get("encoder_attention_heads")
    check_options(path, options, {"decoder_attention_heads": (heads,)})
    if os.path.exists(place := os.path.join(folder, GENERATION)):
        generation = read_json(place)
        check_options(place, generation, allowed)
    source, target = read_vocabularies(folder, options, generation)
    bad = frozenset(word[0] for word in _list_suppressed(generation) if len(word) == 1)
    target = dataclasses.replace(target, suppressed=bad)
    weights, shards, tensors = _read_weights(folder)
    return SourceModel(
        weights=weights,
        shards=shards,
        imported=_read_search(folder, kind, options, generation),
        config=make_config(
            path,
            num_layers=options.get("encoder_layers"),
            num_decoder_layers=options.get("decoder_layers"),
            d_model=options.get("d_model"),
            num_heads=heads,
            d_ff=options.get("encoder_ffn_dim"),
            dropout=options.get("dropout", 0.1),
            activation=read_activation(path, options, "activation_function"),
            max_length=options.get("max_position_embeddings"),
            epsilon=1e-5,
            **architecture,
        ),
        tensors=tensors,
        name_tensor=name_tensor,
        transposed=True,
        embeddings=EMBEDDINGS,
        bias="final_logits_bias",
        source=source,
        target=target,
        notes=_list_notes(options, generation),
    )


def name_tensor(stack: str, layer: int, part: str, sublayer: str, weight: str) -> str:
    """Returns the name of a tensor; see `SourceModel`."""
    base = f"model.{stack}.layers.{layer}."
    if part == "final":
        base = f"model.{stack}.layer_norm"
    elif sublayer == "norm":
        base += f"{ATTENTION[part]}_layer_norm" if part in ATTENTION else "final_layer_norm"
    elif part in ATTENTION:
        base += f"{ATTENTION[part]}.{SUBLAYERS[sublayer]}"
    else:
        base += SUBLAYERS[sublayer]
    return f"{base}.{KINDS[weight]}"


def _read_weights(folder):
    """Returns the path of the weights, those of the files that it names, and the tensors."""
    paths = [os.path.join(folder, name + end) for name in WEIGHTS for end in ("", INDEX)]
    path = next(filter(os.path.exists, paths), None)
    if path is None:
        raise ValueError(
            f"{folder} has neither {' nor '.join(WEIGHTS)}: load the model with transformers, and "
            "call save_pretrained(FOLDER)."
        )
    shards, tensors = [], {}
    if path.endswith(INDEX):
        places = read_json(path)["weight_map"]
        shards = find_files(path, sorted({*places.values()}))
    for shard in shards or [path]:
        tensors |= read_tensors(shard)
    if shards and (lost := sorted(tensors.keys() ^ places.keys())):
        raise ValueError(f"{path} and its files differ in {lost[0]}: copy all of them again.")
    for stack in ("encoder", "decoder"):
        for name in ("weight", "weights"):  # sines, which are computed
            tensors.pop(f"model.{stack}.embed_positions.{name}", None)
    if {ENCODER, DECODER, HEAD} <= tensors.keys():
        tensors.pop(SHARED, None)
    return path, shards, tensors


def _read_search(folder, kind, options, generation):
    """What the run says of its origin, with the search of the model's configuration."""
    longest = generation.get("max_new_tokens")
    if longest is None:
        longest = generation.get("max_length") or options.get("max_length")
        longest = longest and longest - 1  # without the decoder's first
    shortest = (generation.get("min_length") or 1) - 1, generation.get("min_new_tokens") or 0
    penalty = generation.get("length_penalty")
    return Imported(
        kind=f"{kind} (Hugging Face)",
        licence=read_licence(folder),
        beam_size=generation.get("num_beams") or 1,
        length_penalty=1.0 if penalty is None else penalty,
        # Unless told to stop early, transformers waits for more hypotheses than the beam size.
        beam_patience=1.0 if generation.get("early_stopping") is True else 2.0,
        max_output_length=longest,
        min_length=max(shortest),
        no_repeat_ngram_size=generation.get("no_repeat_ngram_size") or 0,
        repetition_penalty=generation.get("repetition_penalty") or 1.0,
    )


def _list_notes(options, generation):
    """Notes on the options of the search that are ignored; config.json has other options too."""
    others = [] if generation is options else sorted(generation.keys() - KNOWN)
    notes = list_ignored(generation, dict.fromkeys(others, ()) | NEUTRAL)
    if any(len(words) != 1 for words in _list_suppressed(generation)):
        notes.append("bad_words_ids of several tokens are ignored.")
    return notes


def _list_suppressed(generation):
    """Lists of ids that are never generated."""
    words, ids = (generation.get(name) or [] for name in ("bad_words_ids", "suppress_tokens"))
    return [*words, *([id] for id in ids)]


def _read_vocabularies(folder, options, generation):
    """The vocabularies of source and target, which often are one."""
    paths = [os.path.join(folder, name) for name in ("vocab.json", "target_vocab.json")]
    models = [read_model(os.path.join(folder, f"{side}.spm")) for side in ("source", "target")]
    pieces = read_vocabulary(paths[0])
    unk, pad, end = (find_piece(paths[0], pieces, x) for x in ("<unk>", "<pad>", "</s>"))
    added = read_added(folder, pieces)
    pieces, size = [*pieces, *added], options.get("vocab_size")
    padding = count_padding(size, pieces)
    source = Vocabulary(pieces, pad, unk, pad, end, frozenset(), models[0], added, padding)
    is_joint = not os.path.exists(paths[1])
    if not is_joint:
        pieces, added = read_vocabulary(paths[1]), ()
        unk = find_piece(paths[1], pieces, "<unk>")
        padding = count_padding(options.get("decoder_vocab_size") or size, pieces)
    config = os.path.join(folder, CONFIG)
    pad, start, end = (_read_id(config, options | generation, x, len(pieces)) for x in IDS)
    target = Vocabulary(pieces, pad, unk, start, end, frozenset(), models[1], added, padding)
    if not is_joint:
        return source, target
    if (source.pad, source.end) != (pad, end):
        raise ValueError(
            f"{config} has pad_token_id {pad} and eos_token_id {end}, but {paths[0]} has the ids "
            f"{source.pad} and {source.end}: the files are of different models."
        )
    return dataclasses.replace(source, start=start), target


def read_added(folder: str, pieces: list[str]) -> tuple[str, ...]:
    """Reads tokens that were added to a vocabulary, in the order of their ids, which come last."""
    paths = [os.path.join(folder, name) for name in (TOKENIZER, ADDED)]
    listed, found = (read_json(path) if os.path.exists(path) else {} for path in paths)
    tokens = listed.get("added_tokens_decoder") or {}
    if not tokens and os.path.exists(fast := os.path.join(folder, FAST)):
        fast_tokens = read_json(fast, read_bytes(fast, MAX_FAST_BYTES))["added_tokens"]
        tokens = {token["id"]: token for token in fast_tokens}
    found = {token["content"]: int(id) for id, token in tokens.items()} | found
    added = {found[token]: token for token in found.keys() - set(pieces)}
    if sorted(added) != [*range(len(pieces), len(pieces) + len(added))]:
        raise ValueError(
            f"{folder}: {ADDED} and {TOKENIZER} must number added tokens from {len(pieces):,}, the "
            f"size of the vocabulary, received {added!r:.60}: the files are of different models."
        )
    return tuple(added[id] for id in sorted(added))


def count_padding(size: int | None, pieces: list[str]) -> int:
    """The number of rows that fill up a matrix, such as to a multiple of 8."""
    return max(0, (size or 0) - len(pieces))


def _read_id(path, options, name, size):
    """An id of generation_config.json or config.json."""
    if type(id := options.get(name)) is not int or not 0 <= id < size:
        raise ValueError(
            f"{path}: {name} must be one id below {size:,}, the pieces of the vocabulary, received "
            f"{id!r:.40}."
        )
    return id
