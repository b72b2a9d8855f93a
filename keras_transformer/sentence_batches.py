"""Sentences in batches of similar length, and the results in the order they were asked for."""


def translate_sorted(translate, texts, batch_size=256):
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


def as_bytes(texts):
    """Texts, strings or byte strings, as a list of byte strings.

    Raises:
        ValueError: If `texts` is one string.
    """
    if isinstance(texts, (str, bytes)):
        raise ValueError("Expected a list of sentences, received one string: put it in a list.")
    # A lone surrogate cannot be written in UTF-8 and becomes a question mark.
    return [t.encode("utf-8", errors="replace") if isinstance(t, str) else t for t in texts]


def in_batches(function, lengths, batch_size):
    """Calls a function for batches of items, those of similar length together.

    Args:
        function: From the numbers of some items to a list of as many results.
        lengths: Of all items.
        batch_size: Number of items per batch.

    Returns:
        List of the results, in the order of the items.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    results = [None] * len(lengths)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        for i, result in zip(chosen, function(chosen), strict=True):
            results[i] = result
    return results
