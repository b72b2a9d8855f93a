"""The configuration of a saved Keras model: which classes it may name, how large they may be.

Keras makes whatever `config.json` says, by name. So nothing may stand there but this package's
classes, some of Keras' own that only hold numbers, and what the calling program has registered.
"""

import json
import math
import re
import sys
from typing import Any

from keras_transformer.presets.options import MAX_DISTANCES, NUM_BUCKETS
from keras_transformer.utils import Path

# This package's classes that a file may name, whether or not they have been imported.
CLASSES = """
BucketedPositions Decoder DecoderLayer Dense DisentangledPositions DistanceTable
Dropout EinsumDense Encoder EncoderLayer FeedForward LayerNormalization MaskedAccuracy EMAAdam
MultiHeadAttention Perplexity PositionalEmbedding RelativePositions RotaryPositions
SmoothedCrossEntropy TargetTokens Transformer WarmupInverseSqrt
""".split()
PACKAGE, MODEL = "keras_transformer>", "keras_transformer>Transformer"
# What sizes may be. Weights also have to be in the file, which bounds most of them further.
MAX_OF = {
    "num_layers": 128,
    "num_encoder_layers": 128,
    "num_decoder_layers": 128,
    "d_model": 1 << 14,
    "num_heads": 1 << 10,
    "d_ff": 1 << 17,
    "max_length": 1 << 17,
    "max_distance": 1 << 17,
    "num_buckets": 1 << 17,
    "source_vocabulary_size": 1 << 22,
    "target_vocabulary_size": 1 << 22,
    "lora_rank": 1 << 14,
}
# Of them, what may be left out.
OPTIONAL = {"max_distance", "num_encoder_layers", "num_decoder_layers"}
BY_HEADS = ("query_dense", "key_dense", "value_dense")  # LoRA learns rank vectors for each head
MAX_INTEGER = 1 << 53  # any other whole number
MAX_DEPTH, MAX_STRING_LENGTH, MAX_VALUES = 32, 4096, 100_000

ACTIVATIONS = """celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish
hard_tanh leaky_relu linear log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink
softmax softplus softsign sparse_plus sparse_sigmoid sparsemax squareplus swish tanh tanh_shrink
threshold""".split()
_KERAS = {
    "": "DTypePolicy FloatDTypePolicy",
    "dtype_policies": """DTypePolicy DTypePolicyMap FloatDTypePolicy Int4DTypePolicy
        QuantizedDTypePolicy
        QuantizedFloat8DTypePolicy""",
    "initializers": """Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity LecunNormal
        LecunUniform Ones Orthogonal RandomNormal RandomUniform TruncatedNormal VarianceScaling
        Zeros""",
    "quantizers": "AbsMaxQuantizer Int4QuantizationConfig Int8QuantizationConfig",
    "optimizers": """Adadelta Adafactor Adagrad Adam AdamW Adamax Ftrl Lion LossScaleOptimizer Muon
        Nadam RMSprop SGD""",
    "optimizers.schedules": """CosineDecay CosineDecayRestarts ExponentialDecay InverseTimeDecay
        PiecewiseConstantDecay PolynomialDecay""",
    "losses": """BinaryCrossentropy CategoricalCrossentropy KLDivergence MeanAbsoluteError
        MeanSquaredError SparseCategoricalCrossentropy""",
    "metrics": """Accuracy BinaryAccuracy CategoricalAccuracy Mean MeanMetricWrapper
        SparseCategoricalAccuracy SparseCategoricalCrossentropy Sum""",
}
KERAS = {
    (f"keras.{module}".rstrip("."), name)
    for module, names in _KERAS.items()
    for name in names.split()
}


def read_model_config(path: Path, content: str) -> dict[str, Any]:
    """Reads the configuration of a model, having looked at all that it names.

    Args:
        path: Name of the `.keras` file, for errors.
        content: Of its `config.json`.

    Returns:
        The configuration as Keras would read it.
    """
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is corrupted: its config.json is not JSON.") from None
    _Values(path).visit(config, 0)
    kind = config.get("registered_name") if isinstance(config, dict) else None
    if kind != MODEL and not (isinstance(kind, str) and _is_registered(kind)):
        name = config.get("class_name") if isinstance(config, dict) else type(config).__name__
        raise ValueError(f"{path} holds a {name}, expected the Transformer of a training.")
    if not isinstance(config.get("config"), dict):
        raise ValueError(f"{path}: the configuration of its model is not a JSON object.")
    for part, change in _changes(config["config"], path).items():
        _check_change(path, part, change)
    return config


def _changes(config, path):
    """What was changed inside a model, by path: of earlier versions."""
    parts = config.get("changes", {"parts": {}})
    parts = parts.get("parts") if isinstance(parts, dict) else None
    if not isinstance(parts, dict) or not all(isinstance(x, dict) for x in parts.values()):
        raise ValueError(f'{path}: "changes" in its configuration must be objects by path.')
    return parts


def _check_change(path, part, change):
    """Raises an error for a change other than those that earlier versions wrote."""
    alpha, quantization = change.get("lora_alpha", 1), change.get("quantization", "int8")
    if not (
        change.keys() <= {"trainable", "quantization", "lora_rank", "lora_alpha"}
        and isinstance(change.get("trainable", True), bool)
        and type(alpha) in (int, float)
        and math.isfinite(alpha)
        and (
            quantization in ("int8", "int4", "float8")
            if isinstance(quantization, str)
            else isinstance(quantization, dict)
            and str(quantization.get("class_name")).endswith("QuantizationConfig")
        )
    ):
        raise ValueError(
            f"{path}: the change {str(change)[:80]} of {part[:80]!r} is invalid, expected "
            "trainable (true or false), quantization (int8, int4 or float8), lora_rank and "
            "lora_alpha."
        )


class _Values:
    """All values of a configuration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    def visit(self, value: Any, depth: int, name: str = "") -> None:
        """Checks a value and everything in it."""
        self.count += 1
        if depth > MAX_DEPTH or self.count > MAX_VALUES:
            self._refuse("its configuration is nested too deep, or too long")
        if isinstance(value, dict):
            self._object(value)
            for key, item in value.items():
                self.visit(item, depth + 1, key)
        elif isinstance(value, list):
            for item in value:
                self.visit(item, depth + 1, name)
        elif value is None and name in OPTIONAL:
            pass
        elif name in MAX_OF and not (type(value) is int and 1 <= value <= MAX_OF[name]):
            self._refuse(f"{name} is {value!r:.40}, expected an integer from 1 to {MAX_OF[name]:,}")
        elif isinstance(value, str):
            if len(value) > MAX_STRING_LENGTH:
                self._refuse(f"{name} has {len(value):,} characters")
            if name == "activation" and value not in ACTIVATIONS and not _is_registered(value):
                self._refuse(f"unknown activation {value[:80]!r}")
        elif isinstance(value, int) and abs(value) > MAX_INTEGER:
            self._refuse(f"{name} is {value!r:.40}, beyond all bounds")

    def _object(self, value):
        """Raises an error for what Keras would deserialize, unless it is allowed."""
        if "class_name" not in value and "registered_name" not in value and "module" not in value:
            return
        module, name = value.get("module"), value.get("class_name")
        registered = value.get("registered_name")
        if name == "function":
            known = value.get("config") in ACTIVATIONS and module in (
                "builtins",
                "keras.activations",
            )
            if known or _is_registered(value.get("config")):
                return
            name = f"function {value.get('config')!r:.80}"
        elif registered is not None:
            ours = registered in {f"{PACKAGE}{one}" for one in CLASSES}
            if ours and registered == f"{PACKAGE}{name}" or _is_registered(registered):
                return
        elif (module, name) in KERAS:
            return
        where = f" of {module!r:.80}" if module else ""
        self._refuse(
            f"refers to the {name if name == str(name)[:100] else 'class'}{where}, which no model "
            "of this package uses: if it is your own, register it with "
            "keras.saving.register_keras_serializable before loading"
        )

    def _refuse(self, what):
        raise ValueError(f"{self.path}: {what}.")


def _is_registered(name):
    """Whether the calling program has registered an object by this name."""
    keras = sys.modules.get("keras")
    saving = getattr(keras, "saving", None)  # of one half imported
    return isinstance(name, str) and bool(saving and saving.get_registered_object(name))


def implied_weights(config: dict[str, Any]) -> int:
    """Counts the numbers that a `Transformer` of this configuration has.

    Args:
        config: As `Transformer.get_config` returns it.
    """
    d, f = config["d_model"], config["d_ff"]
    encoder, decoder = (
        config.get(f"num_{side}_layers") or config["num_layers"] for side in ("encoder", "decoder")
    )
    attention, feed_forward, normalization = 4 * (d * d + d), 2 * d * f + d + f, 2 * d
    layers = encoder * (attention + feed_forward + 2 * normalization)
    layers += decoder * (2 * attention + feed_forward + 3 * normalization)
    if config["norm"] == "pre":
        layers += 2 * normalization
    source, target = (config[f"{side}_vocabulary_size"] for side in ("source", "target"))
    tables = [target] if config["share_embeddings"] == "all" else [source, target]
    positions = config["max_length"] if config["positions"] == "learned" else 0
    softmax = (d + 1) * target if config["share_embeddings"] == "none" else 0
    softmax += target * sum(bool(config.get(name)) for name in ("output_bias", "suppress_ids"))
    embeddings = d * (sum(tables) + positions * len(tables))
    lora = 0
    for part, change in _changes(config, "A model").items():
        rows = d * (config["num_heads"] if part.endswith(BY_HEADS) else 1)
        lora += rows * change.get("lora_rank", 0)  # of two matrices, the first
    schemes = sum(_scheme_weights(config, d, n) for n in (encoder, decoder))
    return layers + embeddings + softmax + schemes + lora


def _scheme_weights(config, d, n):
    """Counts the weights of the position bias in one stack of n layers."""
    scheme, heads = config["positions"], config["num_heads"]
    farthest = config.get("max_distance") or MAX_DISTANCES.get(scheme, 0)
    return {
        "relative": n * 2 * (2 * farthest + 1) * (d // heads),
        "bucketed": NUM_BUCKETS * heads,
        "disentangled": 2 * farthest * d + n * (2 * d * d + d),
    }.get(scheme, 0)


def check_weights(path: Path, config: dict[str, Any], weights: dict[str, list[int]]) -> None:
    """Raises an error if a file has fewer numbers than its model, before memory is allocated.

    Args:
        path: Its name, for errors.
        config: What `read_model_config` has returned.
        weights: What `describe_weights` has returned.
    """
    if config["registered_name"] != MODEL:
        return
    try:
        implied = implied_weights(config["config"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error} is missing or wrong in its configuration.") from None
    held = sum(math.prod(shape) for shape in weights.values())
    # Keras packs two weights of 4 bits into one number.
    converted = json.dumps([config["config"].get(key) for key in ("dtype", "changes")])
    packed = 2 if re.search("int4", converted, re.IGNORECASE) else 1
    if held * packed < implied:
        raise ValueError(
            f"{path} holds {held:,} numbers, but a model of the sizes that it names has "
            f"{implied:,}: it is corrupted or was modified."
        )
