"""Relative positions: each scheme says to attention where its queries and keys are.

All of them are for self-attention: never for that to a memory, whose positions are others'.
"""

from typing import Any

from keras_transformer.layers.positions.alibi import AlibiPositions
from keras_transformer.layers.positions.bucketed import BucketedPositions
from keras_transformer.layers.positions.disentangled import DisentangledPositions
from keras_transformer.layers.positions.relative import RelativePositions
from keras_transformer.layers.positions.rotary import RotaryPositions
from keras_transformer.layers.positions.scheme import Positions
from keras_transformer.layers.positions.sharing import deserialize_shared
from keras_transformer.position_schemes import MAX_DISTANCES, RELATIVE, check_positions
from keras_transformer.typing import Config

__all__ = [
    "AlibiPositions",
    "BucketedPositions",
    "DisentangledPositions",
    "Positions",
    "RelativePositions",
    "RotaryPositions",
    "make_positions",
]

CLASSES: dict[str, type[Positions]] = {
    "relative": RelativePositions,
    "bucketed": BucketedPositions,
    "rotary": RotaryPositions,
    "disentangled": DisentangledPositions,
    "alibi": AlibiPositions,
}


def make_positions(
    positions: str | Positions | Config | None,
    max_distance: int | None = None,
    bidirectional: bool | None = None,
    **kwargs: Any,
) -> Positions | None:
    """Makes what `MultiHeadAttention` takes of what users say.

    Args:
        positions: One of `position_schemes.POSITIONS`; or a `Positions`, which is handed on, or its
            configuration.
        max_distance: From which on all distances count as one, where the scheme has such a one.
        bidirectional: Whether it is for attention that looks both ways, if that is known.
        **kwargs: What every layer takes, such as `dtype`.

    Returns:
        A `Positions`; None where attention is told nothing.

    Raises:
        ValueError: If there is no such scheme, or it cannot be given that.
    """
    scheme: Any = deserialize_shared(positions) if isinstance(positions, dict) else positions
    if scheme is None or isinstance(scheme, Positions):
        if max_distance is not None:
            raise ValueError(
                f"max_distance={max_distance} goes with the name of a scheme, received "
                f"{scheme!r}: name one, or say it where that was made."
            )
        return scheme
    check_positions(scheme, max_distance)
    if scheme not in RELATIVE:
        return None
    if scheme == "alibi" and bidirectional:
        raise ValueError(
            "alibi is for causal attention, for one that looks both ways would not tell a sentence "
            "from its reverse: give it to a Decoder, or an AlibiPositions to attention with a "
            "causal mask."
        )
    if scheme in MAX_DISTANCES and max_distance is not None:
        kwargs["max_distance"] = max_distance
    if scheme == "bucketed":
        kwargs["bidirectional"] = bidirectional is not False
    return CLASSES[scheme](**kwargs)
