"""Text as the byte strings that TensorFlow's operations take; needs no TensorFlow itself."""


def to_bytes(text: str | bytes) -> bytes:
    """Encodes a string in UTF-8, a lone surrogate, which cannot be, as a question mark.

    Args:
        text: str; or bytes, which stay as they are.

    Returns:
        bytes.
    """
    return text.encode("utf-8", errors="replace") if isinstance(text, str) else text
