"""Reads a run directory of OpenNMT-tf 2: checkpoints, `model_description.py`, configuration.

`model_description.py` is Python, which is never executed. Of a model of OpenNMT-tf's catalog it has
the name. Of others, the number of heads is asked for: the shapes of tensors do not tell it.
"""

import functools
import math
import os
import re
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
)
from keras_transformer.tools.importers.tensors import StoredTensor, read_start
from keras_transformer.tools.importers.vocabularies import (
    Vocabulary,
    read_lines,
    read_model,
)
from keras_transformer.utils import Path, describe_corruption, read_bytes

DESCRIPTION, AVERAGE = "model_description.py", "avg"
MAX_BYTES = 1 << 20  # of a file of options
MAX_LENGTH = 512  # tokens; OpenNMT-tf has no limit for sources
OUTPUT_LENGTH = 250  # tokens of a translation, if the configuration does not say
SPECIAL = ["<blank>", "<s>", "</s>"]  # the first lines of a vocabulary
VERSION_1 = ("model_description.pkl", "model.ckpt-")  # names in its run directories
CHECKPOINT = re.compile(r"(.+)-(\d+)\.index")
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
DROPOUT = 0.1  # of the catalog's models; for fine-tuning
# Options of the search that change translations, and their values without an effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "coverage_penalty": (0,),
    "sampling_topk": (1,),
    "minimum_decoding_length": (0,),
    "replace_unknown_target": (),
    "decoding_noise": (),
}
PARTS = {"self": "self_attention", "cross": "attention/0", "feed_forward": "ffn"}
SUBLAYERS = {
    **{"query": "linear_queries", "key": "linear_keys", "value": "linear_values"},
    **{"output": "linear_output", "inner": "inner", "outer": "outer"},
}
EMBEDDINGS = {
    "source": ["examples_inputter/features_inputter/embedding"],
    "target": [f"examples_inputter/{x}_inputter/embedding" for x in ("labels", "features")],
}
OUTPUT_KERNEL, OUTPUT_BIAS = "decoder/output_layer/kernel", "decoder/output_layer/bias"


def is_opennmt_tf(folder: Path) -> bool:
    """Returns whether a folder, or one in it, is a run directory of OpenNMT-tf 1 or 2."""
    inner = [x.path for x in os.scandir(folder) if x.is_dir()]
    names = [name for place in (folder, *inner) for name in os.listdir(place)]
    return any(x.startswith((DESCRIPTION, *VERSION_1)) for x in names)


def read_opennmt_tf(
    folder: Path, num_heads: int | None = None, activation: str | None = None
) -> SourceModel:
    """Reads a run directory with its configuration, or the folder that both are in."""
    folder = os.fspath(folder)
    _check_version(folder, os.listdir(folder))
    path, options = _find_configuration(folder)
    run = _find_run(folder, options)
    data, params = options["data"], _section(path, options, "params")
    prefix = _find_checkpoint(run)
    files = NamedFiles(path, run, os.path.dirname(path))
    source, target = (_read_vocabulary(path, files, data, side) for side in ("source", "target"))
    description = os.path.join(run, DESCRIPTION)
    described = read_description(description, num_heads, activation)
    tensors = read_checkpoint(prefix)
    norm = "input" if "encoder/layer_norm/gamma" in tensors else "output"
    search, notes = _read_search(path, options, params)
    longest = max(MAX_LENGTH, search.max_output_length or 0)
    return SourceModel(
        path=folder,
        kind="OpenNMT-tf",
        weights=_data_file(prefix),
        licence=read_licence(folder),
        config=_read_config(description, *described, tensors, longest),
        tensors=tensors,
        name_tensor=functools.partial(name_tensor, f"{norm}_layer_norm"),
        transposed=False,
        embeddings={**EMBEDDINGS, "output": EMBEDDINGS["target"]},
        bias=OUTPUT_BIAS if OUTPUT_BIAS in tensors else "",
        output_kernel=OUTPUT_KERNEL if OUTPUT_KERNEL in tensors else "",
        source=source,
        target=target,
        search=search,
        source_end=_read_source_end(path, data),
        notes=[f"sources are truncated to {longest} tokens.", *notes],
    )


def name_tensor(norm: str, stack: str, layer: int, part: str, sublayer: str, weight: str) -> str:
    """Returns the name of a tensor; see `SourceModel`. `norm` is the name of normalizations."""
    if part == "final":
        return f"{stack}/layer_norm/{weight}"
    name = norm if sublayer == "norm" else f"layer/{SUBLAYERS[sublayer]}"
    return f"{stack}/layers/{layer}/{PARTS[part]}/{name}/{weight}"


# --- the configuration ---


def _find_configuration(folder):
    """Returns path and options of the only YAML file with vocabularies."""
    found = []
    for name in list_files(folder):
        if name.endswith((".yml", ".yaml")):
            path = os.path.join(folder, name)
            options = parse_yaml(path, read_bytes(path, MAX_BYTES))
            data = options.get("data")
            if isinstance(data, dict) and any("vocabulary" in str(x) for x in data):
                found.append((path, options))
    if len(found) != 1:
        raise ValueError(
            f"{folder} must have one YAML configuration with the vocabularies of the model, found "
            f"{', '.join(os.path.basename(x) for x, _ in found) or 'none'}: copy it there, with "
            "the files that it names."
        )
    path, options = found[0]
    data = options["data"]
    if several := [x for x in data if re.fullmatch(r"source_(\d+_)+vocabulary", str(x))]:
        raise ValueError(f"{path} has {several[0]}: models with several inputs are not supported.")
    return path, options


def _section(path, options, name):
    section = options.get(name) or {}
    if not isinstance(section, dict):
        raise ValueError(f"{path}: {name} must hold options, received {section!r:.40}.")
    return section


def _check_version(folder, names):
    if any(name.startswith(VERSION_1) for name in names):
        raise ValueError(
            f"{folder} is of OpenNMT-tf 1, which is not supported: let OpenNMT-tf 2 convert it."
        )


def _find_run(folder, options):
    """Returns the directory with model_description.py: the folder, or its model_dir."""
    name = os.path.basename(os.path.normpath(str(options.get("model_dir") or ".")))
    for place in (folder, os.path.join(folder, name)):
        if os.path.exists(os.path.join(place, DESCRIPTION)):
            return place
    raise ValueError(
        f"{folder} has no {DESCRIPTION}: copy the run directory of OpenNMT-tf 2 with all its files."
    )


def _read_vocabulary(path, files, data, side):
    """Reads the vocabulary of one side."""
    tokenizer = data.get(f"{side}_tokenization")
    if isinstance(tokenizer, str):
        place = files.find(tokenizer)
        tokenizer = parse_yaml(place, read_bytes(place, MAX_BYTES))
    tokenizer = tokenizer if isinstance(tokenizer, dict) else {}
    kind = tokenizer.get("type", "OpenNMTTokenizer" if tokenizer else None)
    if kind != "SentencePieceTokenizer":
        raise ValueError(
            f"{path}: {side}_tokenization must be of the type SentencePieceTokenizer, received "
            f"{kind!r:.40}: models with other tokenizers are not supported."
        )
    model = _section(path, tokenizer, "params").get("model")
    file = files.find(data.get(f"{side}_vocabulary"))
    pieces = read_lines(file)
    if pieces[:3] != SPECIAL:
        raise ValueError(
            f"{file} must begin with the lines {', '.join(SPECIAL)}, received "
            f"{', '.join(pieces[:3])!r:.60}: it is not a vocabulary of OpenNMT-tf 2."
        )
    model = read_model(files.find(model))
    unk = len(pieces)  # which the file does not have
    return Vocabulary([*pieces, "<unk>"], 0, unk, 1, 2, frozenset(), model, plain=True)


def _read_source_end(path, data):
    controls = _section(path, data, "source_sequence_controls")
    check_options(path, controls, {"start": (False, None), "end": (False, None, True)})
    target = _section(path, data, "target_sequence_controls")
    check_options(path, target, {"start": (True,), "end": (True,)})
    return bool(controls.get("end"))


def _read_search(path, options, params):
    """Returns the search, and notes."""
    automatic = options.get("auto_config") is True
    notes = list_ignored(params, NEUTRAL)
    if params.get("beam_width") is None and not automatic:
        notes.append(
            "the configuration has no beam_width, so the search is greedy; with --auto_config, "
            "OpenNMT-tf has a beam of 4."
        )
    search = make_search(
        path,
        read_option(params, "length_penalty", 0),
        beam_size=read_option(params, "beam_width", 4 if automatic else 1),
        max_output_length=read_option(params, "maximum_decoding_length", OUTPUT_LENGTH),
    )
    return search, notes


# --- the model ---


def read_description(
    path: Path, num_heads: int | None = None, activation: str | None = None
) -> tuple[int, str]:
    """Returns the heads and the activation: given ones, or of the model of the catalog's."""
    read_start(path)
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


def _read_config(path, num_heads, activation, tensors, longest):
    """Returns the architecture; its sizes are those of the tensors."""
    depths = [
        len({x.split("/")[2] for x in tensors if x.startswith(f"{stack}/layers/")})
        for stack in ("encoder", "decoder")
    ]
    embedding, inner = EMBEDDINGS["source"][0], "encoder/layers/0/ffn/layer/inner/kernel"
    for name in (embedding, inner):
        if name not in tensors or len(tensors[name].shape) != 2:
            raise ValueError(
                f"The checkpoint of {path} lacks {name}: it is not of a Transformer with one input."
            )
    tied = OUTPUT_KERNEL not in tensors
    shared = EMBEDDINGS["target"][0] not in tensors
    return make_config(
        path,
        *depths,
        d_model=tensors[embedding].shape[1],
        num_heads=num_heads,
        d_ff=tensors[inner].shape[1],
        dropout=DROPOUT,
        norm="pre" if "encoder/layer_norm/gamma" in tensors else "post",
        activation=read_activation(path, {"activation": activation}, "activation"),
        share_embeddings="none" if not tied else "all" if shared else "target",
        max_length=longest,
        epsilon=1e-3,
        frequencies="tensor2tensor",
        first_position=1,
        output_bias=tied and OUTPUT_BIAS in tensors,
    )


# --- checkpoints ---


def _find_checkpoint(run):
    """Returns the prefix of the files of the averaged checkpoint, or of the latest one."""
    for place in (os.path.join(run, AVERAGE), run):
        names = os.listdir(place) if os.path.isdir(place) else []
        found = [x for x in map(CHECKPOINT.fullmatch, names) if x]
        _check_version(run, names)
        if found:
            latest = max(found, key=lambda x: int(x[2]))
            return os.path.join(place, latest[0].removesuffix(".index"))
    raise ValueError(f"{run} has no checkpoint, such as ckpt-5000.index: copy one there.")


def _data_file(prefix):
    return f"{prefix}.data-00000-of-00001"


def read_checkpoint(prefix: Path) -> dict[str, StoredTensor]:
    """Finds the tensors of a model, without those of its optimizer, in a checkpoint."""
    import tensorflow as tf

    path = _data_file(prefix)
    for name in (f"{prefix}.index", path):
        read_start(name)
    try:
        reader = tf.train.load_checkpoint(os.fspath(prefix))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except Exception as error:  # of TensorFlow's reader, for a corrupted file
        raise ValueError(describe_corruption(f"{prefix}.index", error)) from None
    tensors, size = {}, 0
    for key, shape in shapes.items():
        name = key.removeprefix(ROOT).removesuffix(SUFFIX)
        if key != f"{ROOT}{name}{SUFFIX}" or ".OPTIMIZER_SLOT" in key:
            continue
        if dtypes[key] not in (tf.float32, tf.float16):
            raise ValueError(f"{path}: {name} must be float32 or float16, received {dtypes[key]}.")
        size += math.prod(shape) * dtypes[key].size
        tensors[name] = StoredTensor(
            tuple(shape), functools.partial(_read_tensor, path, reader, key)
        )
    if size > os.path.getsize(path):
        raise ValueError(
            f"{path} is truncated: its tensors have {size:,} bytes, but the file has "
            f"{os.path.getsize(path):,}; copy or download it again."
        )
    return tensors


def _read_tensor(path, reader, key):
    try:
        return reader.get_tensor(key)
    except Exception as error:  # of TensorFlow's reader, for a corrupted file
        raise ValueError(describe_corruption(path, error)) from None
