"""Writes `keras_transformer/__init__.pyi`, which tells editors where the lazy public names live.

    python -m tests.support.public_names

Run it after adding a public name to `keras_transformer/__init__.py`.
"""

import keras_transformer
from tests.support.paths import ROOT

STUB = ROOT / "keras_transformer" / "__init__.pyi"
HEAD = '''\
"""The public names as type checkers and editors see them; at run time they are loaded lazily.

Written by `python -m tests.support.public_names`.
"""

'''
TAIL = """
__version__: str
OPTIONAL: dict[str, str]
LIGHT: str

def explain_missing(what: str, error: ModuleNotFoundError) -> str | None: ...
"""


def text():
    """What the file has to hold."""
    homes = sorted(keras_transformer._HOME_OF.items(), key=_order)
    return HEAD + "".join(_import(home, name) for name, home in homes) + TAIL


def _order(item):
    """As ruff sorts imports: of one module, constants, then classes, then functions."""
    name, home = item
    return home, not name.isupper(), not name[0].isupper(), name


def _import(home, name):
    """`import X as X` is how a stub hands a name on; broken as ruff breaks it."""
    start, end = f"from keras_transformer.{home} import", f"{name} as {name}"
    line = f"{start} {end}\n"
    return line if len(line) <= 101 else f"{start} (\n    {end},\n)\n"


if __name__ == "__main__":
    STUB.write_text(text(), encoding="utf-8")
