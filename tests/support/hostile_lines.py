"""Lines that tokenizers may trip over, and a vocabulary with which two builds differ."""

import random

from tests.support.sample_text import BYTES, LINES, TEXTS

ODD = "\u2581\u200b\u200d\xa0\u3000\ufeff\u2028\x85\xad\ufffd\uffff\u202e\u2060\ufe0f\x00\x1b"


def hostile(count, seed=1):
    """Strings of odd characters, of characters at random, and bytes that are no UTF-8."""
    chooser = random.Random(seed)

    def character():
        kind = chooser.random()
        if kind < 0.3:
            return chr(chooser.randrange(32, 127))
        if kind < 0.5:
            return chooser.choice(ODD)
        return chr(chooser.randrange(0x80, 0xD800 if kind < 0.8 else 0x300))

    def line():
        text = bytearray("".join(character() for _ in range(chooser.randrange(40))).encode())
        for _ in range(chooser.choice([0, 0, 0, 1, 3]) if text else 0):
            text[chooser.randrange(len(text))] = chooser.randrange(256)
        return bytes(text)

    return [text.encode() for text in TEXTS] + BYTES + [line() for _ in range(count)]


def repetitive(count, seed=1):
    """Words that have many segmentations of the same pieces: numbers, and syllables repeated."""
    chooser = random.Random(seed)

    def word():
        unit = chooser.choice(["0", "0", "a", "ba", "haha", "x", ".", "12"])
        return unit * chooser.randrange(1, 12) + chooser.choice(["", "", "fox", ",000"])

    lengths = [chooser.choice([1, 4, 9, 40, 300]) for _ in range(count)]
    return [" ".join(word() for _ in range(length)).encode() for length in lengths]


def lines_with_numbers():
    """To learn pieces of several digits from: of 700 ids, unigram, some are equally probable."""
    chooser = random.Random(3)
    numbers = [f"for {chooser.randrange(10**6):,} dollars or 10,000" for _ in range(300)]
    return [*LINES, *numbers]
