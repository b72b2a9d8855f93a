"""WordPiece vocabularies that others have made, looked at as the JSON that they are."""

import json

import pytest

from keras_transformer.tokenizers.vocabularies import read_wordpiece_model, serialize_pieces

SOUND = {"format": "wordpiece 1", "lowercase": True, "pieces": ["[UNK]", "[SEP]", "a", "##b"]}
BAD = {
    "cut off": (serialize_pieces(["[UNK]", "a"], True)[:-9], "it is not JSON"),
    "nested": (b"[" * 100_000, "it is not JSON"),
    "a list": (b"[1]", "it is not JSON with pieces"),
    "another format": (SOUND | {"format": 2}, "its format is not 'wordpiece 1'"),
    "one string": (SOUND | {"pieces": "[UNK]"}, r"has no \[UNK\]"),
    "case": (SOUND | {"lowercase": "yes"}, "its format is not"),
    "twice": (SOUND | {"pieces": ["[UNK]", "a", "a"]}, "'a' is duplicated"),
    "no unknown": (SOUND | {"pieces": ["a"]}, r"has no \[UNK\]"),
}


def serialized(content):
    return content if isinstance(content, bytes) else json.dumps(content).encode()


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_wordpiece_vocabulary(name):
    content, reason = BAD[name]
    with pytest.raises(ValueError, match=reason) as error:
        read_wordpiece_model(serialized(content))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
