"""The ways to say where a token is: their names, and what each of them can be given."""

import numbers

ABSOLUTE = ("sinusoidal", "learned")  # added to the embedding
RELATIVE = ("relative", "bucketed", "rotary", "disentangled", "alibi")  # told to attention
POSITIONS = (*ABSOLUTE, "none", *RELATIVE)

# From which distance on all are one, where a scheme has such a distance.
MAX_DISTANCES = {"relative": 16, "bucketed": 128, "disentangled": 128}
NUM_BUCKETS = 32


def check_positions(
    positions: str,
    max_distance: int | None = None,
    d_model: int | None = None,
    num_heads: int | None = None,
) -> None:
    """Refuses what is no scheme, and what the scheme cannot be given.

    Args:
        positions: One of `POSITIONS`.
        max_distance: None for that of `MAX_DISTANCES`.
        d_model, num_heads: Sizes of the model, as far as they are known.

    Raises:
        ValueError: If something does not go together.
    """
    if positions not in POSITIONS:
        raise ValueError(
            f"positions must be one of {', '.join(POSITIONS)}, received {positions!r}."
        )
    _check_max_distance(positions, max_distance)
    if d_model and d_model % 2 and positions in ("sinusoidal", "alibi"):
        whose = "Sinusoidal positions need" if positions == "sinusoidal" else "alibi needs"
        raise ValueError(
            f"{whose} an even d_model, received d_model={d_model}: choose an even one or "
            "other positions."
        )
    if positions == "rotary" and d_model and num_heads:
        check_rotary(d_model // num_heads)


def _check_max_distance(positions, max_distance):
    if max_distance is None:
        return
    if positions not in MAX_DISTANCES:
        raise ValueError(
            f"max_distance={max_distance!r} says nothing for positions={positions!r}: leave it "
            f"out, or choose one of {', '.join(MAX_DISTANCES)}."
        )
    if not isinstance(max_distance, numbers.Integral) or max_distance < 1:
        raise ValueError(f"max_distance must be a positive integer, received {max_distance!r}.")
    if positions == "bucketed" and max_distance <= NUM_BUCKETS // 2:
        raise ValueError(
            f"max_distance of bucketed positions must be more than {NUM_BUCKETS // 2}, for so many "
            f"of the {NUM_BUCKETS} buckets hold one distance each, received {max_distance}."
        )


def check_rotary(key_dim: int) -> None:
    """Refuses heads whose entries make no pairs.

    Raises:
        ValueError: If their width is odd.
    """
    if key_dim % 2:
        raise ValueError(
            f"Rotary positions turn pairs of entries, received heads of odd width {key_dim}: "
            "choose num_heads and d_model so that d_model / num_heads is even."
        )
