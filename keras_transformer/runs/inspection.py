"""A `.keras` file of others, looked at before Keras loads it: what it may hold, name and measure.

Keras makes whatever `config.json` says, by name. So nothing may stand there but this package's
classes, some of Keras' own that only hold numbers, and what the calling program has registered.
"""

import sys
import zipfile
import zlib
from typing import Any

from keras_transformer.presets.options import MAX_LENGTH
from keras_transformer.utils import Path, describe_corruption, parse_json

# The members of an archive, and the bytes that they may have; Keras writes one kilobyte.
CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
MAX_BYTES = {CONFIG: 1 << 20, METADATA: 1 << 16}

# This package's classes that a file may name, whether or not they have been imported.
CLASSES = """
BucketedPositions Decoder DecoderLayer Dense DisentangledPositions DistanceTable
Dropout EinsumDense Encoder EncoderLayer FeedForward LayerNormalization MaskedAccuracy EMAAdam
MultiHeadAttention Perplexity PositionalEmbedding RelativePositions RotaryPositions
SmoothedCrossEntropy TargetTokens Transformer WarmupInverseSqrt
""".split()
PACKAGE, MODEL = "keras_transformer>", "keras_transformer>Transformer"
# What sizes may be.
MAX_OF = {
    "num_layers": 128,
    "num_encoder_layers": 128,
    "num_decoder_layers": 128,
    "d_model": 1 << 14,
    "num_heads": 1 << 10,
    "d_ff": 1 << 17,
    "max_length": MAX_LENGTH,
    "max_distance": 1 << 17,
    "num_buckets": 1 << 17,
    "source_vocabulary_size": 1 << 22,
    "target_vocabulary_size": 1 << 22,
    "lora_rank": 1 << 14,
}
# Of them, what may be left out.
OPTIONAL = {"max_distance", "num_encoder_layers", "num_decoder_layers"}
MAX_INTEGER = 1 << 53  # any other whole number
MAX_DEPTH, MAX_STRING_LENGTH, MAX_VALUES = 32, 4096, 100_000

ACTIVATIONS = """celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish
hard_tanh leaky_relu linear log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink
softmax softplus softsign sparse_plus sparse_sigmoid sparsemax squareplus swish tanh tanh_shrink
threshold""".split()
_KERAS = {
    "": "DTypePolicy FloatDTypePolicy",
    "dtype_policies": """DTypePolicy DTypePolicyMap FloatDTypePolicy Int4DTypePolicy
        QuantizedDTypePolicy QuantizedFloat8DTypePolicy""",
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


def inspect_model(path: Path) -> None:
    """Raises an error for a `.keras` file that holds or names anything but what is allowed."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(path, archive)
            config = parse_json(f"{path}: {CONFIG}", archive.read(CONFIG))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(describe_corruption(path, error)) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path.") from None
    check_model_config(path, config)


def _check_members(path, archive):
    """Checks the names of the members, and the sizes that the archive claims for them."""
    names = sorted(info.filename for info in archive.infolist())
    if names != sorted([CONFIG, METADATA, WEIGHTS]):
        raise ValueError(
            f"{path} holds {', '.join(map(repr, names[:6]))}, expected {CONFIG}, {METADATA} "
            f"and {WEIGHTS}: this package has not saved it."
        )
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise ValueError(
                f"{path}: {info.filename} is compressed, which Keras does not do: save the "
                "model anew."
            )
        if info.file_size > MAX_BYTES.get(info.filename, info.file_size):
            raise ValueError(
                f"{path}: {info.filename} has {info.file_size:,} bytes, at most "
                f"{MAX_BYTES[info.filename]:,} are read."
            )
        with archive.open(info):  # the header before it has the same values
            pass


def check_model_config(path: Path, config: dict[str, Any]) -> None:
    """Raises an error for a parsed `config.json` that names or measures what is not allowed."""
    _Values(path).visit(config, 0)
    kind = config.get("registered_name")
    if kind != MODEL and not _is_registered(kind):
        raise ValueError(
            f"{path} holds a {config.get('class_name')}, expected the Transformer of a training."
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
    """Returns whether the calling program has registered an object by this name."""
    keras = sys.modules.get("keras")
    saving = getattr(keras, "saving", None)  # of one half imported
    return isinstance(name, str) and bool(saving and saving.get_registered_object(name))
