"""Fields of configurations, with help texts and valid ranges; the architecture of a model.

Pure Python: loads neither Keras nor TensorFlow.
"""

import dataclasses
import math
import numbers
import operator
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16", "auto")
STRATEGIES = ("auto", "one", "mirrored", "multiworker")
LENGTH_NORMS = ("gnmt", "length")  # what a beam divides log_prob by; see `ranking_score`
# Fields of beam search that imported models have, and exports fix.
BEAM_OPTIONS = ("beam_size", "length_penalty", "length_norm", "beam_patience")
# Fields of all searches: the length, and which tokens may follow.
CONTROLS = ("max_output_length", "min_length", "no_repeat_ngram_size", "repetition_penalty")
FREEZABLE = ("encoder", "decoder", "source-embeddings")
SHARED = ("none", "target", "all")  # values of share_embeddings
MODEL_TYPES = ("bpe", "unigram", "char", "word", "wordpiece")
UNLIMITED_TYPES = ("char", "word")  # a vocabulary may hold every character or word

# Positional encodings.
ABSOLUTE = ("sinusoidal", "learned")  # added to the embeddings
RELATIVE = ("relative", "bucketed", "rotary", "disentangled")  # computed by attention
POSITIONS = (*ABSOLUTE, "none", *RELATIVE)
FREQUENCIES = ("transformer", "tensor2tensor")  # of the sines
# Default max_distance of the schemes that have one; larger distances are clipped.
MAX_DISTANCES = {"relative": 16, "bucketed": 128, "disentangled": 128}
NUM_BUCKETS = 32

EPSILON = 1e-6  # of layer normalization, by default

# The tokens of a source: the target's language and the text, as in OPUS-MT; or its own language and
# the text, or the text and its own language, and then the target begins with its own, as in NLLB.
TARGET_TEXT, SOURCE_TEXT, TEXT_SOURCE = "target text", "source text", "text source"
LANGUAGE_ORDERS = TARGET_TEXT, SOURCE_TEXT, TEXT_SOURCE

FORMAT = 1  # version of the format of run directories and .keras files


class Range(NamedTuple):
    """The valid values of a number."""

    contains: Callable[[Any], bool]
    expected: str


COUNT = Range(lambda x: x >= 1, "at least 1")
SHARE = Range(lambda x: 0 <= x < 1, "at least 0 and below 1")
FRACTION = Range(lambda x: 0 < x < 1, "above 0 and below 1")
FROM_0 = Range(lambda x: x >= 0, "at least 0")
ABOVE_0 = Range(lambda x: x > 0, "above 0")
POSITIVE = Range(lambda x: 0 < x < math.inf, "a number above 0")
AT_LEAST_1 = Range(lambda x: 1 <= x < math.inf, "a number of at least 1")
NOT_NEGATIVE = Range(lambda x: 0 <= x < math.inf, "a number of at least 0")
SEED = Range(lambda x: 0 <= x < 2**31, "at least 0 and less than 2^31")


def option(
    default: Any,
    help: str,
    allowed: Range | tuple[str, ...] | None = None,
    section: str | None = None,
    hidden: bool = False,
) -> Any:
    """Makes a dataclass field that is an option of the command line, unless it is hidden.

    None is always allowed. `section` is the title of the section that starts with this field, in
    `--help` and in `config.yaml`. A hidden one is in `config.yaml` only, and there unless it has
    its default.
    """
    if allowed is not None and not isinstance(allowed, Range):
        help += f" ({', '.join(allowed)})"
    metadata = {"help": help, "allowed": allowed, "section": section, "hidden": hidden}
    return dataclasses.field(default=default, metadata=metadata)


def check_fields(config: Any) -> None:
    """Checks each field of a configuration separately."""
    for field in dataclasses.fields(config):
        value, allowed = getattr(config, field.name), field.metadata.get("allowed")
        types = typing.get_args(field.type) or (field.type,)
        for one in value if isinstance(value, tuple) else (value,):
            if allowed is None or one is None and type(None) in types:
                continue
            check_value(field.name, one, allowed)
            if int in types and not isinstance(one, numbers.Integral):
                raise ValueError(f"{field.name} must be an integer, received {one!r}.")


def check_value(name: str, value: Any, allowed: Range | tuple[str, ...]) -> None:
    """Checks that a value is in the range of a number, or among the choices of a string."""
    if isinstance(allowed, Range):
        try:
            valid, expected = allowed.contains(value), allowed.expected
        except (TypeError, ValueError):  # not a number, or more than one
            valid, expected = False, allowed.expected
    else:
        valid, expected = value in allowed, f"one of {', '.join(allowed)}"
    if not valid:
        raise ValueError(f"{name} must be {expected}, received {value!r}.")


def read_functions(functions: Any) -> tuple[Callable[..., Any], ...]:
    """Returns a list of functions as a tuple, which is hashable."""
    if not isinstance(functions, (list, tuple)) or not all(map(callable, functions)):
        raise ValueError(f"logits_processors must be a list of functions, received {functions}.")
    return tuple(functions)


def check_beam(search: Any, given: Any) -> Any:
    """Returns a search, if options of beam search are given for a beam only."""
    for name in BEAM_OPTIONS[1:]:
        if search.beam_size == 1 and name in given:
            raise ValueError(f"{name} needs a beam_size above 1: set that, or leave it out.")
    return search


def check_sizes(**sizes: Any) -> list[int]:
    """Reads sizes, which may be NumPy integers."""
    for name, size in sizes.items():
        if not isinstance(size, numbers.Integral) or size < 1:
            raise ValueError(f"{name} must be a positive integer, received {size!r}.")
    return [int(size) for size in sizes.values()]


def check_format(name: str, received: int | None) -> None:
    """Checks the format version of a file; None is older than the first one."""
    if received != FORMAT:
        raise ValueError(
            f"{name} must have format {FORMAT}, received format {received or 0}: train it again."
        )


def check_sharing(
    share_embeddings: str, source_vocabulary_size: int, target_vocabulary_size: int
) -> None:
    """Checks `share_embeddings` against the sizes of the vocabularies."""
    if share_embeddings == "all" and source_vocabulary_size != target_vocabulary_size:
        raise ValueError(
            'share_embeddings="all" needs a joint vocabulary, received '
            f"{source_vocabulary_size} source and {target_vocabulary_size} target ids: use one "
            'vocabulary for both sides or share_embeddings="target".'
        )


def check_vocabulary(vocabulary_size: int | None, model_type: str) -> None:
    """Checks the type and the size of a vocabulary."""
    check_value("model_type", model_type, MODEL_TYPES)
    if vocabulary_size is None:
        if model_type not in UNLIMITED_TYPES:
            raise ValueError(
                f"vocabulary_size must be an integer for model_type={model_type!r}, received "
                'None: pass a size such as 8000, or model_type="char" or "word".'
            )
        return
    try:
        operator.index(vocabulary_size)
    except TypeError:
        raise ValueError(
            f"vocabulary_size must be an integer, received {vocabulary_size!r}."
        ) from None
    without_bytes = model_type in ("word", "wordpiece")
    reserved, what = (4, "special tokens") if without_bytes else (260, "special tokens and bytes")
    if vocabulary_size <= reserved:
        raise ValueError(
            f"vocabulary_size must be greater than {reserved} for model_type={model_type!r}, "
            f"received {vocabulary_size}: {reserved} ids are reserved for {what}."
        )


def check_vocabularies(config: Any, joint: bool, separate: str) -> None:
    """Checks that the options of both vocabularies are valid and consistent.

    `separate` is the option that gives each side its own vocabulary.
    """
    files = (config.source_vocabulary, config.target_vocabulary)
    sizes = (config.source_vocabulary_size, config.target_vocabulary_size)
    for side, path, size in zip(("source", "target"), files, sizes, strict=True):
        if size is not None and joint:
            raise ValueError(
                f"--{side}-vocabulary-size {size} needs separate vocabularies: give "
                f"--vocabulary-size instead, or {separate} as well."
            )
        if size is not None and path is not None:
            raise ValueError(
                f"--{side}-vocabulary {path} has a size: leave out --{side}-vocabulary-size."
            )
    if joint and files[0] != files[1]:
        raise ValueError(
            "--source-vocabulary and --target-vocabulary must be the same file for a joint "
            f"vocabulary, received {files[0] or 'none'} and {files[1] or 'none'}."
        )
    for path, size in zip(files, sizes, strict=True):
        if path is None:
            check_vocabulary(config.vocabulary_size if size is None else size, config.model_type)


def check_validation(config: Any) -> None:
    """Checks that validation data is given in one way, and completely."""
    if config.valid_target is not None and config.valid_source is None:
        raise ValueError("--valid-source is missing: give it together with --valid-target.")
    if config.valid_source is not None and config.valid_fraction is not None:
        raise ValueError(
            "--valid-fraction and --valid-source cannot be used together: leave out one of the two."
        )


def check_positions(
    positions: str,
    max_distance: int | None = None,
    d_model: int | None = None,
    num_heads: int | None = None,
    frequencies: str = FREQUENCIES[0],
    first_position: int = 0,
) -> None:
    """Checks the options of a positional encoding, and the sizes that it depends on, if known."""
    check_value("positions", positions, POSITIONS)
    check_value("frequencies", frequencies, FREQUENCIES)
    check_value("first_position", first_position, FROM_0)
    if positions != "sinusoidal" and (frequencies != FREQUENCIES[0] or first_position):
        raise ValueError(
            "frequencies and first_position need positions='sinusoidal', received "
            f"positions={positions!r}: leave them out."
        )
    if max_distance is not None:
        _check_max_distance(positions, max_distance)
    if d_model and d_model % 2 and positions == "sinusoidal":
        raise ValueError(f"d_model must be even for positions={positions!r}, received {d_model}.")
    if positions == "rotary" and d_model and num_heads:
        check_rotary(d_model // num_heads)


def _check_max_distance(positions, max_distance):
    if positions not in MAX_DISTANCES:
        raise ValueError(
            f"max_distance needs positions to be one of {', '.join(MAX_DISTANCES)}, received "
            f"positions={positions!r}: leave out max_distance={max_distance!r}."
        )
    if not isinstance(max_distance, numbers.Integral) or max_distance < 1:
        raise ValueError(f"max_distance must be a positive integer, received {max_distance!r}.")
    if positions == "bucketed" and max_distance <= NUM_BUCKETS // 2:
        raise ValueError(
            f"max_distance must be greater than {NUM_BUCKETS // 2} for positions='bucketed', "
            f"received {max_distance}."
        )


def check_rotary(key_dim: int) -> None:
    """Checks that the dimension of a head is even, for rotary positions."""
    if key_dim % 2:
        raise ValueError(
            f"key_dim must be even for rotary positions, received {key_dim}: it is d_model / "
            "num_heads."
        )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The architecture: the arguments of `Transformer`.

    Raises:
        ValueError: If a value is invalid, or values do not fit together.
    """

    num_layers: int = option(6, "layers of the encoder, and of the decoder", COUNT)
    d_model: int = option(512, "dimension of embeddings and layer outputs", COUNT)
    num_heads: int = option(8, "attention heads; must divide d_model", COUNT)
    d_ff: int = option(2048, "dimension of the feed-forward hidden layer", COUNT)
    dropout: float = option(0.1, "dropout rate of sublayers and embeddings", SHARE)
    norm: str = option("post", "layer normalization before or after each sublayer", ("post", "pre"))
    activation: str = option("relu", "Keras activation of the feed-forward networks")
    positions: str = option("sinusoidal", "positional encoding", POSITIONS)
    share_embeddings: str = option(
        "target", "target: with the softmax; all: also with the source", SHARED
    )
    max_length: int = option(256, "maximum length of a sentence, in tokens", COUNT)
    max_distance: int | None = option(
        None, "maximum distance of relative, bucketed, disentangled; none: the scheme's"
    )
    epsilon: float = option(EPSILON, "added to the variance in layer normalization", POSITIVE)
    output_bias: bool = option(False, "softmax bias beside shared embeddings")
    num_encoder_layers: int | None = option(None, "layers of the encoder; none: num_layers", COUNT)
    num_decoder_layers: int | None = option(None, "layers of the decoder; none: num_layers", COUNT)
    frequencies: str = option("transformer", "wavelengths of sinusoidal positions", FREQUENCIES)
    first_position: int = option(0, "number of the first sinusoidal position", FROM_0)
    suppress_ids: bool = option(False, "a weight that keeps ids out of translations; see import")

    @property
    def depths(self) -> tuple[int, int]:
        """Numbers of layers of the encoder and of the decoder."""
        given = self.num_encoder_layers, self.num_decoder_layers
        encoder, decoder = (self.num_layers if depth is None else depth for depth in given)
        return encoder, decoder

    def __post_init__(self) -> None:
        check_fields(self)
        if self.d_model % self.num_heads:
            raise ValueError(
                f"num_heads must divide d_model={self.d_model}, received {self.num_heads}."
            )
        sizes = self.d_model, self.num_heads, self.frequencies, self.first_position
        check_positions(self.positions, self.max_distance, *sizes)
        if self.output_bias and self.share_embeddings == "none":
            raise ValueError(
                'output_bias is for share_embeddings="target" or "all", received "none".'
            )


@dataclasses.dataclass(frozen=True)
class Imported:
    """The origin of a run that `import_model` has made, and the search that its model asks for."""

    source: str = option("", "name of the model")
    kind: str = option("", "what made it")
    licence: str = option("unknown", "licence, as its files name it")
    sha256: str = option("", "fingerprint of its weights")
    beam_size: int = option(1, "beam size of its own configuration, the default here", COUNT)
    length_penalty: float = option(1.0, "its length penalty, the default here", NOT_NEGATIVE)
    length_norm: str = option("length", "how it ranks a beam, the default here", LENGTH_NORMS)
    beam_patience: float = option(1.0, "its beam patience, the default here", AT_LEAST_1)
    max_output_length: int | None = option(None, "its maximum tokens of a translation", COUNT)
    min_length: int = option(0, "its minimum tokens of a translation", FROM_0)
    no_repeat_ngram_size: int = option(0, "its n of n-grams that are not repeated", FROM_0)
    repetition_penalty: float = option(1.0, "its penalty of repetitions", AT_LEAST_1)
    language_tags: tuple[str, ...] = option((), "tokens that choose a language")
    language_order: str = option(TARGET_TEXT, "of the tokens of a source", LANGUAGE_ORDERS)

    def __post_init__(self) -> None:
        check_fields(self)
