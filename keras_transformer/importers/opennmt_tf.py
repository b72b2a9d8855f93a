"""Reads a run directory of OpenNMT-tf 2: checkpoints, `model_description.py`, configuration.

`model_description.py` is Python. It is parsed for the arguments of the Transformer, as the number
of heads cannot be told from the shapes of tensors, and never executed.
"""

import ast
import functools
import math
import os
import re
import warnings
from typing import Any

from keras_transformer.importers.source_model import (
    SourceModel,
    check_options,
    parse_yaml,
    read_activation,
    read_licence,
    read_size,
)
from keras_transformer.importers.tensors import StoredTensor, read_start
from keras_transformer.importers.vocabularies import (
    Vocabulary,
    read_lines,
    read_model,
)
from keras_transformer.inspection.files import describe_corruption, read_bytes
from keras_transformer.presets import ModelConfig, SearchConfig
from keras_transformer.utils import Path

DESCRIPTION, AVERAGE = "model_description.py", "avg"
MAX_BYTES = 1 << 20  # of a file of options
MAX_LENGTH = 512  # tokens; OpenNMT-tf has no limit for sources
OUTPUT_LENGTH = 250  # tokens of a translation, if the configuration does not say
SPECIAL = ["<blank>", "<s>", "</s>"]  # the first lines of a vocabulary
VERSION_1 = ("model_description.pkl", "model.ckpt-")  # names in its run directories
CHECKPOINT = re.compile(r"(.+)-(\d+)\.index")
ROOT, SUFFIX = "model/", "/.ATTRIBUTES/VARIABLE_VALUE"  # of the name of each tensor
# The arguments of opennmt.models.Transformer, in order, and their defaults.
ARGUMENTS: dict[str, Any] = {
    "source_inputter": None,
    "target_inputter": None,
    "num_layers": 6,
    "num_units": 512,
    "num_heads": 8,
    "ffn_inner_dim": 2048,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "ffn_dropout": 0.1,
    "ffn_activation": "relu",
    "mha_bias": True,
    "position_encoder_class": "SinusoidalPositionEncoder",
    "share_embeddings": "NONE",
    "share_encoders": False,
    "maximum_relative_position": None,
    "attention_reduction": "FIRST_HEAD_LAST_LAYER",
    "pre_norm": True,
    "output_layer_bias": True,
}
# What they may be; sizes, sharing, norm and bias are known by the tensors.
ALLOWED: dict[str, tuple[Any, ...]] = {
    "source_inputter": ("WordEmbedder", None),
    "target_inputter": ("WordEmbedder", None),
    "mha_bias": (True,),
    "maximum_relative_position": (None,),
    "position_encoder_class": ("SinusoidalPositionEncoder",),
}
# The Transformers of OpenNMT-tf's catalog, with arguments that are neither defaults nor sizes.
RELATIVE = {"maximum_relative_position": 20}
CATALOG: dict[str, dict[str, Any]] = {
    "Transformer": {},
    "TransformerBase": {},
    "TransformerBaseSharedEmbeddings": {},
    "TransformerBaseRelative": RELATIVE,
    "TransformerRelative": RELATIVE,
    "TransformerBig": {"num_heads": 16},
    "TransformerBigSharedEmbeddings": {"num_heads": 16},
    "TransformerBigRelative": RELATIVE,
    "TransformerTiny": {"num_heads": 2},
}
# Options of the search that change translations, and their values without an effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "coverage_penalty": (0, None),
    "sampling_topk": (1,),
    "minimum_decoding_length": (0,),
    "replace_unknown_target": (False, None),
    "decoding_noise": (None, []),
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


def read_opennmt_tf(folder: Path) -> SourceModel:
    """Reads a run directory with its configuration, or the folder that both are in."""
    folder = os.fspath(folder)
    _check_version(folder, os.listdir(folder))
    path, options = _find_configuration(folder)
    run = _find_run(folder, options)
    data, params = options["data"], _section(path, options, "params")
    prefix = _find_checkpoint(run)
    source, target = (_read_vocabulary(path, run, data, side) for side in ("source", "target"))
    description = os.path.join(run, DESCRIPTION)
    arguments = read_description(description)
    tensors = read_checkpoint(prefix)
    norm = "input" if "encoder/layer_norm/gamma" in tensors else "output"
    search, notes = _read_search(path, options, params)
    longest = max(MAX_LENGTH, search.max_output_length or 0)
    return SourceModel(
        path=folder,
        kind="OpenNMT-tf",
        weights=_data_file(prefix),
        licence=read_licence(folder),
        config=_read_config(description, arguments, tensors, longest),
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
    for name in sorted(os.listdir(folder)):
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


def _find_file(path, run, value):
    """Finds a file that the configuration names: in the run directory, or beside itself."""
    if not isinstance(value, str):
        raise ValueError(f"{path} must name a file, received {value!r:.40}.")
    inside = not os.path.isabs(value) and ".." not in value.replace("\\", "/").split("/")
    names = [value, os.path.basename(value)] if inside else [os.path.basename(value)]
    places = [os.path.join(x, name) for name in names for x in (run, os.path.dirname(path))]
    for place in places:
        if os.path.isfile(place):
            return place
    raise ValueError(f"{places[-1]} is missing: copy all files that {path} names there.")


def _read_vocabulary(path, run, data, side):
    """Reads the vocabulary of one side."""
    tokenizer = data.get(f"{side}_tokenization")
    if isinstance(tokenizer, str):
        place = _find_file(path, run, tokenizer)
        tokenizer = parse_yaml(place, read_bytes(place, MAX_BYTES))
    tokenizer = tokenizer if isinstance(tokenizer, dict) else {}
    kind = tokenizer.get("type", "OpenNMTTokenizer" if tokenizer else None)
    if kind != "SentencePieceTokenizer":
        raise ValueError(
            f"{path}: {side}_tokenization must be of the type SentencePieceTokenizer, received "
            f"{kind!r:.40}: models with other tokenizers are not supported."
        )
    model = _section(path, tokenizer, "params").get("model")
    file = _find_file(path, run, data.get(f"{side}_vocabulary"))
    pieces = read_lines(file)
    if pieces[:3] != SPECIAL:
        raise ValueError(
            f"{file} must begin with the lines {', '.join(SPECIAL)}, received "
            f"{', '.join(pieces[:3])!r:.60}: it is not a vocabulary of OpenNMT-tf 2."
        )
    model = read_model(_find_file(path, run, model))
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
    notes = []
    if "beam_width" not in params and not automatic:
        notes.append(
            "the configuration has no beam_width, so the search is greedy; with --auto_config, "
            "OpenNMT-tf has a beam of 4."
        )
    for name, values in NEUTRAL.items():
        if name in params and params[name] not in values:
            notes.append(f"{name} {params[name]!r:.40} of the configuration is ignored.")
    try:
        search = SearchConfig(
            beam_size=params.get("beam_width", 4 if automatic else 1),
            length_penalty=float(params.get("length_penalty") or 0),
            max_output_length=params.get("maximum_decoding_length", OUTPUT_LENGTH),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"The search of {path} is invalid: {error}") from None
    return search, notes


# --- the description, which is never executed ---


def read_description(path: Path) -> dict[str, Any]:
    """Reads the arguments of the Transformer in `model_description.py`, without executing it.

    Args:
        path: The file. It creates one Transformer of the catalog or one with arguments, by a call
            or as a subclass whose `__init__` calls `super().__init__`.

    Returns:
        {name: value}; of a function, a class or a member of an enumeration its name.
    """
    read_start(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # such as of "\d" in a string
            tree = ast.parse(read_bytes(path, MAX_BYTES))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(describe_corruption(path, error)) from None
    found = [call for call in map(_as_transformer, _walk(tree)) if call]
    if len(found) != 1:
        raise ValueError(
            f"{path} must create one Transformer, such as models.Transformer(num_heads=8), found "
            f"{len(found)}: other models are not supported."
        )
    name, call = found[0]
    if name not in CATALOG:
        raise ValueError(
            f"{path}: the model {name[:60]!r} is not supported; TransformerBase and others are."
        )
    values = ARGUMENTS | CATALOG[name]
    if call is not None:
        pairs = [*zip(ARGUMENTS, call.args, strict=False)]
        pairs += [(str(keyword.arg), keyword.value) for keyword in call.keywords]
        values |= {key: _read_value(path, key, node) for key, node in pairs}
    unknown = {key: (None, False) for key in values if key not in ARGUMENTS}
    check_options(path, values, unknown | ALLOWED)
    return values


def _walk(tree):
    """Returns pairs of a node and the name of the base class of the class that it is in."""
    inside = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            inside |= {id(x): _last_name(node.bases[0]) for x in ast.walk(node) if node.bases}
    return [(node, inside.get(id(node), "")) for node in ast.walk(tree)]


def _as_transformer(pair):
    """Returns name and call of a model if a node creates one, else None."""
    node, base = pair
    if not isinstance(node, ast.Call):
        if isinstance(node, ast.Assign) and _last_name(node.targets[0]) == "model":
            name = _last_name(node.value)  # model = models.TransformerBase
            return (name, None) if name in CATALOG else None
        return None
    name = _last_name(node.func)
    if name == "get_model_from_catalog":
        literal = node.args[0] if node.args else None
        return (str(literal.value), None) if isinstance(literal, ast.Constant) else None
    if name == "__init__" and base in CATALOG:
        return base, node
    return (name, node) if name in CATALOG else None


def _last_name(node):
    """Returns the last part of a dotted name, `Transformer` of `onmt.models.Transformer`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _read_value(path, name, node):
    if isinstance(node, ast.Call) and _last_name(node.func):
        return _last_name(node.func)  # an inputter
    if _last_name(node):
        return _last_name(node)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(
            f"{path}: {name} must be a plain value, as the file is not executed, received an "
            f"expression in line {node.lineno}: write the value there."
        ) from None


def _read_config(path, arguments, tensors, longest):
    """Returns the architecture; its sizes are those of the tensors."""
    depths = {
        stack: len({x.split("/")[2] for x in tensors if x.startswith(f"{stack}/layers/")})
        for stack in ("encoder", "decoder")
    }
    embedding, inner = EMBEDDINGS["source"][0], "encoder/layers/0/ffn/layer/inner/kernel"
    for name in (embedding, inner):
        if name not in tensors or len(tensors[name].shape) != 2:
            raise ValueError(
                f"The checkpoint of {path} lacks {name}: it is not of a Transformer with one input."
            )
    tied = OUTPUT_KERNEL not in tensors
    shared = EMBEDDINGS["target"][0] not in tensors
    try:
        return ModelConfig(
            num_layers=depths["encoder"],
            num_decoder_layers=depths["decoder"],
            d_model=tensors[embedding].shape[1],
            num_heads=read_size(path, arguments, "num_heads"),
            d_ff=tensors[inner].shape[1],
            dropout=arguments["dropout"],
            norm="pre" if "encoder/layer_norm/gamma" in tensors else "post",
            activation=read_activation(path, arguments, "ffn_activation"),
            share_embeddings="none" if not tied else "all" if shared else "target",
            max_length=longest,
            epsilon=1e-3,
            frequencies="tensor2tensor",
            first_position=1,
            output_bias=tied and OUTPUT_BIAS in tensors,
            suppress_ids=True,
        )
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


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
    """Finds the tensors of a model in a checkpoint of TensorFlow, without those of its optimizer.

    Args:
        prefix: Path of the checkpoint, without the ending of a file.

    Returns:
        {name: `StoredTensor`}.
    """
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
