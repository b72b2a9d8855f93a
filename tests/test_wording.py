"""Numbers in messages."""

import pytest

from keras_transformer.utils import counted


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((0, "pair"), "0 pairs"),
        ((1, "pair"), "1 pair"),
        ((2, "pair"), "2 pairs"),
        ((29_000, "logical device"), "29,000 logical devices"),
        ((1, "prefix", "prefixes"), "1 prefix"),
        ((3, "prefix", "prefixes"), "3 prefixes"),
    ],
)
def test_a_number_with_its_noun(arguments, text):
    assert counted(*arguments) == text
