"""Numbers in messages."""

from keras_transformer.utils import counted


def test_a_number_with_its_noun():
    found = [counted(number, "pair") for number in (0, 1, 29_000)]
    assert found == ["0 pairs", "1 pair", "29,000 pairs"]
    found = [counted(number, "prefix", "prefixes") for number in (1, 3)]
    assert found == ["1 prefix", "3 prefixes"]
