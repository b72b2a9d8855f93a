"""What callbacks have to remember when a training goes on."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

SIMPLE = (bool, int, float, type(None), np.number)


def get_states(
    callbacks: Sequence[keras.callbacks.Callback],
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Reads what callbacks remember.

    Args:
        callbacks: Those with a method `get_state`, whose answer is the state; of any others, the
            numbers among the attributes, but for arguments, and lists of arrays, such as the best
            weights.

    Returns:
        The states, which JSON can hold, and {name: array}.
    """
    states: list[Any] = []
    arrays: dict[str, np.ndarray] = {}
    for number, callback in enumerate(callbacks):
        state, more = _get_state(callback, f"callbacks/{number}")
        states.append(state)
        arrays |= more
    return states, arrays


def set_states(
    callbacks: Sequence[keras.callbacks.Callback],
    states: Sequence[Any],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Has callbacks remember what `get_states` has read.

    Args:
        callbacks: Such as those that were read.
        states: What was read.
        arrays: {name: array}, those that were read among others.
    """
    for number, (callback, state) in enumerate(zip(callbacks, states, strict=True)):
        _set_state(callback, state, arrays, f"callbacks/{number}")


def _get_state(
    callback: keras.callbacks.Callback, prefix: str
) -> tuple[Any, dict[str, np.ndarray]]:
    if hasattr(callback, "get_state"):
        return callback.get_state(), {}
    state: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    arguments = inspect.signature(type(callback).__init__).parameters
    for name, value in vars(callback).items():
        if isinstance(value, SIMPLE) and name not in arguments:
            state[name] = value
        elif _is_arrays(value):
            arrays |= {f"{prefix}/{name}/{number}": array for number, array in enumerate(value)}
    return state, arrays


def _set_state(
    callback: keras.callbacks.Callback, state: Any, arrays: Mapping[str, np.ndarray], prefix: str
) -> None:
    if hasattr(callback, "set_state"):
        callback.set_state(state)
        return
    vars(callback).update(state)
    lists: dict[str, list[np.ndarray]] = {}
    for name, array in arrays.items():
        if name.startswith(f"{prefix}/"):
            lists.setdefault(name.split("/")[-2], []).append(array)
    vars(callback).update(lists)


def _is_arrays(value):
    return isinstance(value, list) and value and all(isinstance(x, np.ndarray) for x in value)
