"""What `MultiHeadAttention` may be given, and what it says where it is given something else."""

import numbers
from collections.abc import Sequence

from keras_transformer.typing import Shape

# Of what Keras' layer has beside: what comes to the same as leaving it out.
ACCEPTED = {
    "attention_axes": (None, 1, (1,), [1]),
    "sliding_window": (None,),
    "flash_attention": (None, False),
    "use_gate": (False,),
}


def refuse_others(**given: object) -> None:
    """Refuses what Keras' layer has and this one has not.

    Args:
        **given: Values of the arguments in `ACCEPTED`.

    Raises:
        ValueError: If one asks for something.
    """
    for name, value in given.items():
        if value not in ACCEPTED[name]:
            raise ValueError(
                f"kt.MultiHeadAttention has no {name}, received {value!r}: leave it out, or use "
                "keras.layers.MultiHeadAttention."
            )


def last_dim(output_shape: int | Sequence[int] | None) -> int | None:
    """Reads `output_shape` as Keras writes it: None, an int, or a tuple of one int.

    Raises:
        ValueError: If it is something else.
    """
    if output_shape is None:
        return None
    if isinstance(output_shape, numbers.Integral):
        return int(output_shape)
    if isinstance(output_shape, tuple | list) and len(output_shape) == 1:
        return int(output_shape[0])
    raise ValueError(
        f"output_shape must be an int or a tuple of one int, received {output_shape!r}: reshape "
        "the output for more axes."
    )


def check_lengths(value_shape: Shape, key_shape: Shape) -> None:
    """Compares the lengths of values and keys.

    Raises:
        ValueError: If they differ, as far as they are known.
    """
    values, keys = tuple(value_shape[1:-1]), tuple(key_shape[1:-1])
    known = None not in (*values, *keys)
    if len(values) != len(keys) or (known and values != keys):
        raise ValueError(
            "The axes of value and key between the first and the last must be equal, received "
            f"shapes {tuple(value_shape)} and {tuple(key_shape)}: every value needs a key."
        )
