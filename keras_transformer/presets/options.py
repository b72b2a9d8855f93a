"""Fields of configurations that describe and check themselves, and checks that others share.

Pure Python: loads neither Keras nor TensorFlow.
"""

import dataclasses
import math
import numbers
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16", "auto")
STRATEGIES = ("auto", "one", "mirrored", "multiworker")
FREEZABLE = ("encoder", "decoder", "source-embeddings")
SHARED = ("none", "target", "all")  # values of share_embeddings
MODEL_TYPES = ("bpe", "unigram", "char", "word", "wordpiece")
WHOLE = ("char", "word")  # model types of which a vocabulary may hold all that there is

# Positional encodings.
ABSOLUTE = ("sinusoidal", "learned")  # added to the embeddings
RELATIVE = ("relative", "bucketed", "rotary", "disentangled", "alibi")  # computed by attention
POSITIONS = (*ABSOLUTE, "none", *RELATIVE)
# The default of max_distance, for the schemes that have one; larger distances are clipped to it.
MAX_DISTANCES = {"relative": 16, "bucketed": 128, "disentangled": 128}
NUM_BUCKETS = 32

FORMAT = 1  # of what run directories and .keras files hold


class Range(NamedTuple):
    """The values that a number may have."""

    holds: Callable[[Any], bool]
    expected: str


COUNT = Range(lambda x: x >= 1, "at least 1")
SHARE = Range(lambda x: 0 <= x < 1, "at least 0 and below 1")
FRACTION = Range(lambda x: 0 < x < 1, "above 0 and below 1")
FROM_0 = Range(lambda x: x >= 0, "at least 0")
ABOVE_0 = Range(lambda x: x > 0, "above 0")
POSITIVE = Range(lambda x: 0 < x < math.inf, "a number above 0")
NOT_NEGATIVE = Range(lambda x: 0 <= x < math.inf, "a number of at least 0")
SEED = Range(lambda x: 0 <= x < 2**31, "at least 0 and less than 2^31")


def option(
    default: Any,
    help: str,
    allowed: Range | tuple[str, ...] | None = None,
    section: str | None = None,
) -> Any:
    """A field with its help text.

    Args:
        default: Its default.
        help: One line, for the command line and for `config.yaml`.
        allowed: The range of a number, or the choices of a string. None is always allowed.
        section: Title of the section that begins with this field, in both places.
    """
    metadata = {"help": help, "allowed": allowed, "section": section}
    return dataclasses.field(default=default, metadata=metadata)


def help_of(field: "dataclasses.Field[Any]") -> str:
    """The help text of a field, with its choices."""
    text, allowed = field.metadata["help"], field.metadata.get("allowed")
    return f"{text} ({', '.join(allowed)})" if type(allowed) is tuple else text


def check_fields(config: Any) -> None:
    """Checks each field of a configuration on its own.

    Raises:
        ValueError: If a number is out of its range, or a string is not one of the choices.
    """
    for field in dataclasses.fields(config):
        value, allowed = getattr(config, field.name), field.metadata.get("allowed")
        if value is None or allowed is None:
            continue
        if isinstance(allowed, Range):
            try:
                valid, expected = allowed.holds(value), allowed.expected
            except TypeError:  # not a number
                valid, expected = False, allowed.expected
        else:
            valid, expected = value in allowed, f"one of {', '.join(allowed)}"
        if not valid:
            raise ValueError(f"{field.name} must be {expected}, received {value!r}.")


def check_format(name: str, received: int | None) -> None:
    """Refuses a file that another version has written.

    Args:
        name: Of the file.
        received: The format that it names; None: older than the first format.

    Raises:
        ValueError: If it is not `FORMAT`.
    """
    if received != FORMAT:
        raise ValueError(
            f"{name} is of format {received or 0}, this version reads format {FORMAT}: use the "
            "version that wrote it, or train anew."
        )


def check_sharing(
    share_embeddings: str, source_vocabulary_size: int, target_vocabulary_size: int
) -> None:
    """Refuses an unknown `share_embeddings`, and one that the vocabularies do not allow.

    Raises:
        ValueError: If it is unknown or not allowed.
    """
    if share_embeddings not in SHARED:
        raise ValueError(
            f'share_embeddings must be "none", "target" or "all", received {share_embeddings!r}.'
        )
    if share_embeddings == "all" and source_vocabulary_size != target_vocabulary_size:
        raise ValueError(
            'share_embeddings="all" needs one vocabulary for both sides, received '
            f"{source_vocabulary_size} source and {target_vocabulary_size} target ids: use a "
            'joint vocabulary or share_embeddings="target".'
        )


def check_precision(precision: str | None) -> None:
    """Refuses a precision that is neither None nor one of `PRECISIONS`.

    Raises:
        ValueError: If it is unknown.
    """
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(
            f"precision must be one of {', '.join(PRECISIONS)}, received {precision!r}."
        )


def check_vocabulary(vocabulary_size: int | None, model_type: str) -> None:
    """Refuses an unknown type of vocabulary, and a size that no text could be learned with.

    Raises:
        ValueError: If the type is unknown, or the size too small or missing.
    """
    if model_type not in MODEL_TYPES:
        raise ValueError(
            f"model_type must be one of {', '.join(MODEL_TYPES)}, received {model_type!r}."
        )
    if vocabulary_size is None:
        if model_type not in WHOLE:
            raise ValueError(
                f"A {model_type} vocabulary needs a vocabulary_size, received None: pass a number "
                f'of ids, such as 8000, or model_type="char" or "word", which take every '
                "character or word."
            )
        return
    try:
        operator.index(vocabulary_size)
    except TypeError:
        raise ValueError(
            f"vocabulary_size must be an integer, received {vocabulary_size!r}."
        ) from None
    without_bytes = model_type in ("word", "wordpiece")
    taken, what = (4, "special") if without_bytes else (260, "special or single bytes")
    if vocabulary_size <= taken:
        raise ValueError(
            f"vocabulary_size={vocabulary_size} is too small: {taken} ids of a {model_type} "
            f"vocabulary are {what}, and the text needs some."
        )


def check_frozen_vectors(side: str, share_embeddings: str) -> None:
    """Refuses to freeze the embeddings of a side that shares its matrix with the softmax.

    Raises:
        ValueError: If it does.
    """
    if share_embeddings == "all" or (side, share_embeddings) == ("target", "target"):
        apart = "target" if side == "source" else "none"
        raise ValueError(
            f"--freeze-vectors would freeze the softmax, which shares the matrix of the {side} "
            f"embeddings (share_embeddings={share_embeddings}): give --share-embeddings {apart}."
        )


def check_vocabularies(config: Any, joint: bool, apart: str) -> None:
    """Refuses vocabularies that contradict each other, or that could not be learned.

    Args:
        config: `TrainConfig` or `PrepareConfig`.
        joint: Whether both sides share one vocabulary.
        apart: The option that gives each side a vocabulary of its own.

    Raises:
        ValueError: If they do.
    """
    files = (config.source_vocabulary, config.target_vocabulary)
    sizes = (config.source_vocabulary_size, config.target_vocabulary_size)
    for side, path, size in zip(("source", "target"), files, sizes, strict=True):
        if size is not None and joint:
            raise ValueError(
                f"--{side}-vocabulary-size {size} is for a vocabulary of its own, and both sides "
                f"have one: give --vocabulary-size, or {apart} as well."
            )
        if size is not None and path is not None:
            raise ValueError(
                f"--{side}-vocabulary {path} has the size it has: leave out "
                f"--{side}-vocabulary-size."
            )
    if joint and files[0] != files[1]:
        raise ValueError(
            f"Both sides have one vocabulary, received --source-vocabulary {files[0] or 'none'} "
            f"and --target-vocabulary {files[1] or 'none'}: give the same file twice, or {apart}."
        )
    for path, size in zip(files, sizes, strict=True):
        if path is None:
            check_vocabulary(config.vocabulary_size if size is None else size, config.model_type)


def check_validation(config: Any) -> None:
    """Refuses validation data that is named in two ways, or by its target alone.

    Args:
        config: `TrainConfig` or `PrepareConfig`.

    Raises:
        ValueError: If it is.
    """
    if config.valid_target is not None and config.valid_source is None:
        raise ValueError("--valid-source is missing: name it along with --valid-target.")
    if config.valid_source is not None and config.valid_fraction is not None:
        raise ValueError(
            f"--valid-fraction {config.valid_fraction} is for data without --valid-source: leave "
            "out one of the two."
        )


def check_positions(
    positions: str,
    max_distance: int | None = None,
    d_model: int | None = None,
    num_heads: int | None = None,
) -> None:
    """Checks the name of a positional encoding, and the sizes that it is used with.

    Args:
        positions: One of `POSITIONS`.
        max_distance: None for the default in `MAX_DISTANCES`.
        d_model, num_heads: Sizes of the model, if they are known.

    Raises:
        ValueError: If the name is unknown, or a size does not fit.
    """
    if positions not in POSITIONS:
        raise ValueError(
            f"positions must be one of {', '.join(POSITIONS)}, received {positions!r}."
        )
    if max_distance is not None:
        _check_max_distance(positions, max_distance)
    if d_model and d_model % 2 and positions in ("sinusoidal", "alibi"):
        subject = "Sinusoidal positions need" if positions == "sinusoidal" else "alibi needs"
        raise ValueError(
            f"{subject} an even d_model, received d_model={d_model}: choose an even one or "
            "other positions."
        )
    if positions == "rotary" and d_model and num_heads:
        check_rotary(d_model // num_heads)


def _check_max_distance(positions, max_distance):
    if positions not in MAX_DISTANCES:
        raise ValueError(
            f"max_distance={max_distance!r} has no effect on positions={positions!r}: leave it "
            f"out, or choose one of {', '.join(MAX_DISTANCES)}."
        )
    if not isinstance(max_distance, numbers.Integral) or max_distance < 1:
        raise ValueError(f"max_distance must be a positive integer, received {max_distance!r}.")
    if positions == "bucketed" and max_distance <= NUM_BUCKETS // 2:
        raise ValueError(
            f"max_distance of bucketed positions must be more than {NUM_BUCKETS // 2}, as so many "
            f"of the {NUM_BUCKETS} buckets hold one distance each, received {max_distance}."
        )


def check_rotary(key_dim: int) -> None:
    """Checks that the entries of a head form pairs.

    Raises:
        ValueError: If its width is odd.
    """
    if key_dim % 2:
        raise ValueError(
            f"Rotary positions rotate pairs of entries, received heads of odd width {key_dim}: "
            "choose num_heads and d_model so that d_model / num_heads is even."
        )
