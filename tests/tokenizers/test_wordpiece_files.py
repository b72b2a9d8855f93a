"""WordPiece vocabularies that others have made, looked at as the JSON that they are."""

import json

import pytest

from keras_transformer.tokenizers.vocabularies import read_wordpiece_model, serialize_pieces

SOUND = {"format": "wordpiece 1", "lowercase": True, "pieces": ["[UNK]", "[SEP]", "a", "##b"]}
BAD = {
    "cut off": (serialize_pieces(["[UNK]", "a"], True)[:-9], "it is not JSON"),
    "nested": (b"[" * 100_000, "it is not JSON"),
    "a list": (b"[1]", "does not say that its format is 'wordpiece 1'"),
    "another format": (SOUND | {"format": 2}, "does not say that its format is"),
    "numbers": (SOUND | {"pieces": ["[UNK]", 7]}, "its pieces are not a list of strings"),
    "one string": (SOUND | {"pieces": "[UNK]"}, "its pieces are not a list of strings"),
    "case": (SOUND | {"lowercase": "yes"}, "does not say whether text is lower-cased"),
    "twice": (SOUND | {"pieces": ["[UNK]", "a", "a"]}, "'a' is duplicated"),
    "no unknown": (SOUND | {"pieces": ["a"]}, r"has no \[UNK\]"),
    "long": (SOUND | {"pieces": ["[UNK]", "x" * 257]}, "line 2 has 257 bytes"),
    "half a character": (SOUND | {"pieces": ["[UNK]", "\ud800"]}, "surrogates not allowed"),
}


def serialized(content):
    return content if isinstance(content, bytes) else json.dumps(content).encode()


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_wordpiece_vocabulary(name):
    content, reason = BAD[name]
    with pytest.raises(ValueError, match=reason) as error:
        read_wordpiece_model(serialized(content))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
