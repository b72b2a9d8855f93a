"""What callbacks have to remember when a training goes on."""

import inspect
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

SIMPLE = (bool, int, float, type(None), np.number)


def get_callback_state(
    callback: keras.callbacks.Callback, prefix: str
) -> tuple[Any, dict[str, np.ndarray]]:
    """Reads what a callback remembers.

    Args:
        callback: One with a method `get_state`, whose answer is the state; or any: then the numbers
            among its attributes, but for its arguments, and lists of arrays, such as the best
            weights.
        prefix: Of the names of the arrays.

    Returns:
        The state, which JSON can hold, and {name: array}.
    """
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


def set_callback_state(
    callback: keras.callbacks.Callback, state: Any, arrays: Mapping[str, np.ndarray], prefix: str
) -> None:
    """Has a callback remember what `get_callback_state` has read.

    Args:
        callback: One like that which was read.
        state: What was read.
        arrays: {name: array}, those that were read among others.
        prefix: Of their names.
    """
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
