"""What other systems have computed, kept as numbers: tests need none of them.

`make parity` computes it again. The weights of the models in `tests/fixtures` are drawn: 3b6072c
has the scripts for all but M2M100's, which transformers draws.
"""

import json

import numpy as np

from tests.support.paths import FIXTURES

M2M100 = FIXTURES / "m2m100"
SEARCHES = {
    "greedy": dict(num_beams=1),
    "beam 4": dict(num_beams=4, length_penalty=1.0),
    "beam 6": dict(num_beams=6, length_penalty=0.6),
}


def read(name):
    """What a system has computed: {name: array}, its versions left out."""
    found = load(FIXTURES / "parity" / f"{name}.json")
    return {key: np.array(value) for key, value in found.items() if key != "made with"}


def load(file):
    return json.loads(file.read_text(encoding="utf-8"))
