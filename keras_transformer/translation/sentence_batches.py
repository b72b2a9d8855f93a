"""Sentences in batches of similar length, and the results in the order they were asked for."""

import concurrent.futures
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from keras_transformer.tokenizers.byte_strings import to_bytes
from keras_transformer.typing import Texts
from keras_transformer.wording import counted

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")


def translate_sorted(
    translate: Callable[[list[bytes]], Sequence[str]],
    texts: Texts,
    batch_size: int = 256,
) -> list[str]:
    """Translates in batches of similar length and puts the results back in order.

    Args:
        translate: Function from a list of byte strings to a list of as many strings.
        texts: Strings or byte strings.
        batch_size: Number of texts per batch.

    Returns:
        List of strings.

    Raises:
        ValueError: If `texts` is one string.
    """
    rows = as_bytes(texts)
    return in_batches(
        lambda chosen: translate([rows[i] for i in chosen]), [len(row) for row in rows], batch_size
    )


def as_bytes(texts: Texts) -> list[bytes]:
    """Texts, strings or byte strings, as a list of byte strings.

    Raises:
        ValueError: If `texts` is one string, or one of them is none.
    """
    if isinstance(texts, (str, bytes)):
        raise ValueError("Expected a list of sentences, received one string: put it in a list.")
    rows = [to_bytes(text) for text in texts]
    for row in rows:
        if not isinstance(row, bytes):
            raise ValueError(f"Expected sentences as strings, received {row!r} among them.")
    return rows


def check_count(name: str, texts: Sequence[object], count: int) -> None:
    """Refuses more or fewer texts than sources.

    Args:
        name: What one of the texts is called.
        texts: Of any kind.
        count: Number of sources.

    Raises:
        ValueError: If there are not as many.
    """
    if len(texts) != count:
        raise ValueError(
            f"Expected a {name} for each source, received {len(texts)} for "
            f"{counted(count, 'source')}."
        )


def in_batches(
    function: Callable[[list[int]], Sequence[T]],
    lengths: "Sequence[int] | np.ndarray",
    batch_size: int,
) -> list[T]:
    """Calls a function for batches of items, those of similar length together.

    Args:
        function: From the numbers of some items to a list of as many results. Called from several
            threads at once where cores work apart (`threads.work_apart`).
        lengths: Of all items.
        batch_size: Number of items per batch; less where cores would have nothing to do.

    Returns:
        List of the results, in the order of the items.
    """
    from keras_transformer.kernels.tensorflow.machine import operations_at_once

    at_once = operations_at_once()
    batches = sorted_batches(lengths, batch_size, at_once)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        run = pool.map if at_once > 1 else map
        return in_order(batches, run(function, batches))


def sorted_batches(
    lengths: "Sequence[int] | np.ndarray", batch_size: int, at_once: int
) -> list[list[int]]:
    """The numbers of items in batches of similar length, `at_once` or more of them if possible."""
    batch_size = max(1, min(batch_size, -(-len(lengths) // at_once)))
    # What takes longest comes first, so that at the end no core works for long alone.
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def in_order(batches: Iterable[Sequence[int]], results: Iterable[Sequence[T]]) -> list[T]:
    """The results of all items, in the order of their numbers, from those of their batches."""
    by_number = {
        number: result
        for batch, results_of_batch in zip(batches, results, strict=True)
        for number, result in zip(batch, results_of_batch, strict=True)
    }
    return [by_number[number] for number in sorted(by_number)]
