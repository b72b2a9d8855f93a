"""Reads a run directory of OpenNMT-tf 2: checkpoints, `model_description.py`, configuration.

`model_description.py` is Python, which is never executed. Of a model of OpenNMT-tf's catalog it has
the name. Of others, the number of heads is asked for: the shapes of tensors do not tell it.
"""

import functools
import math
import os
import re
from typing import Any

from keras_transformer.presets.options import Imported
from keras_transformer.tokenizers.vocabularies import MAX_BYTES
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
from keras_transformer.tools.importers.vocabularies import (
    Vocabulary,
    parse_yaml,
    read_model,
    read_vocabulary,
)
from keras_transformer.utils import describe_corruption, read_bytes

DESCRIPTION = "model_description.py"
MAX_LENGTH = 512  # tokens; OpenNMT-tf has no limit for sources
SPECIAL = ["<blank>", "<s>", "</s>"]  # the first lines of a vocabulary
ROOT, SUFFIX = "model/", "/.ATTRIBUTES/VARIABLE_VALUE"  # of the name of each tensor
# The numbers of heads of the Transformers in OpenNMT-tf's catalog. Their activation is ReLU.
CATALOG = {
    "Transformer": 8,
    "TransformerBase": 8,
    "TransformerBaseSharedEmbeddings": 8,
    "TransformerBig": 16,
    "TransformerBigSharedEmbeddings": 16,
    "TransformerTiny": 2,
}
CATALOG_NAME = re.compile(
    r"(?m)^model *=[^#\n]*get_model_from_catalog\(\s*[\"'](\w+)[\"']\s*\)\s*$"
)
# Options of the search that change translations, and their values without an effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "coverage_penalty": (0,),
    "sampling_topk": (1,),
    "replace_unknown_target": (),
    "decoding_noise": (),
}
PARTS = {"self": "self_attention", "cross": "attention/0", "feed_forward": "ffn"}
SUBLAYERS = {
    **{"query": "linear_queries", "key": "linear_keys", "value": "linear_values"},
    **{"output": "linear_output", "inner": "inner", "outer": "outer"},
}
SOURCE, TARGET = (f"examples_inputter/{x}_inputter/embedding" for x in ("features", "labels"))
OUTPUT, BIAS = "decoder/output_layer/kernel", "decoder/output_layer/bias"


def read_opennmt_tf(
    folder: str, num_heads: int | None = None, activation: str | None = None
) -> SourceModel:
    """Reads a run directory with its configuration."""
    path, options = _find_configuration(folder)
    data, params = options["data"], options.get("params") or {}
    source, target = _read_vocabularies(path, data)
    num_heads, activation = read_description(folder, num_heads, activation)
    weights, tensors = _read_checkpoint(folder)
    imported = _read_search(folder, options, params)
    longest = max(MAX_LENGTH, imported.max_output_length or 0)
    norm = "input" if "encoder/layer_norm/gamma" in tensors else "output"
    depths = [
        len({x.split("/")[2] for x in tensors if x.startswith(f"{stack}/layers/")})
        for stack in ("encoder", "decoder")
    ]
    return SourceModel(
        weights=weights,
        imported=imported,
        config=make_config(
            folder,
            num_layers=depths[0],
            num_decoder_layers=depths[1],
            d_model=tensors[SOURCE].shape[1],
            num_heads=num_heads,
            d_ff=tensors["encoder/layers/0/ffn/layer/inner/kernel"].shape[1],
            norm="pre" if norm == "input" else "post",
            activation=read_activation(folder, {"activation": activation}, "activation"),
            max_length=longest,
            epsilon=1e-3,
            frequencies="tensor2tensor",
            first_position=1,
        ),
        tensors=tensors,
        name_tensor=functools.partial(name_tensor, f"{norm}_layer_norm"),
        transposed=False,
        embeddings={
            "source": [SOURCE],
            "target": [TARGET, SOURCE],
            "output": [OUTPUT, TARGET, SOURCE],
        },
        bias=BIAS,
        source=source,
        target=target,
        source_end=_read_source_end(path, data),
        notes=list_ignored(params, NEUTRAL),
    )


def name_tensor(norm: str, stack: str, layer: int, part: str, sublayer: str, weight: str) -> str:
    """Returns the name of a tensor; see `SourceModel`. `norm` is the name of normalizations."""
    if part == "final":
        return f"{stack}/layer_norm/{weight}"
    name = norm if sublayer == "norm" else f"layer/{SUBLAYERS[sublayer]}"
    return f"{stack}/layers/{layer}/{PARTS[part]}/{name}/{weight}"


def _find_configuration(folder):
    """Returns path and options of the only YAML file with data."""
    paths = [os.path.join(folder, x) for x in list_files(folder) if x.endswith((".yml", ".yaml"))]
    parsed = {path: parse_yaml(path) for path in paths}
    found = [item for item in parsed.items() if "data" in item[1]]
    if len(found) != 1:
        raise ValueError(
            f"{folder} must have one YAML configuration with the section data, found {len(found)}: "
            "copy it there, with the files that it names."
        )
    return found[0]


def _read_vocabularies(path, data):
    """Reads the vocabularies of source and target."""
    sides = "source", "target"
    names = [data.get(f"{side}_vocabulary") for side in sides]
    for side in sides:
        tokenizer = data.get(f"{side}_tokenization") or {}
        if isinstance(tokenizer, str):
            tokenizer = parse_yaml(*find_files(path, [tokenizer]))
        if (kind := tokenizer.get("type")) != "SentencePieceTokenizer":
            raise ValueError(
                f"{path}: {side}_tokenization must be of the type SentencePieceTokenizer, received "
                f"{kind!r:.40}: models with other tokenizers are not supported."
            )
        names.append(tokenizer["params"]["model"])
    files = find_files(path, names)
    return [_read_vocabulary(*pair) for pair in zip(files[:2], files[2:], strict=True)]


def _read_vocabulary(path, model):
    pieces = read_vocabulary(path)
    if pieces[:3] != SPECIAL:
        raise ValueError(
            f"{path} must begin with the lines {', '.join(SPECIAL)}, received "
            f"{', '.join(pieces[:3])!r:.60}: it is not a vocabulary of OpenNMT-tf 2."
        )
    unk = len(pieces)  # which the file does not have
    return Vocabulary([*pieces, "<unk>"], 0, unk, 1, 2, frozenset(), read_model(model), plain=True)


def _read_source_end(path, data):
    controls = data.get("source_sequence_controls") or {}
    check_options(path, controls, {"start": (False, None), "end": (False, None, True)})
    target = data.get("target_sequence_controls") or {}
    check_options(path, target, {"start": (True,), "end": (True,)})
    return bool(controls.get("end"))


def _read_search(folder, options, params):
    """What the run says of its origin, with the search of the configuration."""
    automatic = options.get("auto_config") is True
    return Imported(
        kind="OpenNMT-tf",
        licence=read_licence(folder),
        beam_size=params.get("beam_width") or (4 if automatic else 1),
        length_penalty=params.get("length_penalty") or 0.0,
        length_norm="gnmt",
        max_output_length=params.get("maximum_decoding_length") or 250,
        min_length=params.get("minimum_decoding_length") or 0,
    )


def read_description(
    folder: str, num_heads: int | None = None, activation: str | None = None
) -> tuple[int, str]:
    """Returns the heads and the activation: given ones, or of the model of the catalog's."""
    path = os.path.join(folder, DESCRIPTION)
    text = read_bytes(path, MAX_BYTES).decode(errors="replace")
    found = CATALOG_NAME.findall(text)
    num_heads = num_heads or (CATALOG.get(found[0]) if len(found) == 1 else None)
    if num_heads is None:
        raise ValueError(
            f"{path} does not name one of {', '.join(CATALOG)} of OpenNMT-tf's catalog: give "
            "--num-heads (of opennmt.models.Transformer, 8 by default), and --activation if it is "
            "not relu."
        )
    if "position_encoder_class" in text:
        raise ValueError(
            f"{path} has the option position_encoder_class: only models with OpenNMT-tf's "
            "sinusoidal positions are supported."
        )
    if "ffn_activation" in text and activation is None:
        raise ValueError(f"{path} has the option ffn_activation: give --activation relu or silu.")
    return num_heads, activation or "relu"


def _read_checkpoint(folder):
    """Returns the path of the averaged checkpoint, or of the latest one, and its tensors.

    Those of the optimizer are left out.
    """
    import tensorflow as tf

    places = os.path.join(folder, "avg"), folder
    prefix = next(filter(None, map(tf.train.latest_checkpoint, places)), None)
    if prefix is None:
        raise ValueError(
            f"{folder} has no checkpoint, such as ckpt-5000.index, that its file checkpoint names: "
            "copy both there."
        )
    path, tensors = f"{prefix}.data-00000-of-00001", {}
    try:
        reader = tf.train.load_checkpoint(prefix)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        keys = [x for x in shapes if x.startswith(ROOT) and x.endswith(SUFFIX)]
        keys = [x for x in keys if ".OPTIMIZER_SLOT" not in x]
        if sum(math.prod(shapes[x]) * dtypes[x].size for x in keys) > os.path.getsize(path):
            raise ValueError("it is truncated")
        for key in keys:
            tensors[key.removeprefix(ROOT).removesuffix(SUFFIX)] = reader.get_tensor(key)
    except Exception as error:  # of TensorFlow's reader, for a corrupted file
        raise ValueError(describe_corruption(prefix, error)) from None
    if OUTPUT in tensors:
        tensors[OUTPUT] = tensors[OUTPUT].T
    return path, tensors
