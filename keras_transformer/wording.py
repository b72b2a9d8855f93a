"""How messages write numbers."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Writes a number with its noun: "1 pair", "2,000 pairs".

    Args:
        number: How many there are.
        noun: The word for one of them.
        plural: The word for several; `noun` and an s when left out.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
