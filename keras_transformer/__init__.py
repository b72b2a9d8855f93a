"""keras_transformer: the encoder–decoder Transformer as Keras 3 layers, with training and serving.

Importing the package imports Keras and registers the classes of saved models. Other modules are
imported when a public name is first used (PEP 562): importing a layer loads neither the tokenizers
nor, with another Keras backend, TensorFlow.
"""

import os as _os
import re as _re
import sys as _sys
from importlib import import_module as _import_module

__version__ = "0.1.0"

# The stub lists the public names for type checkers; the same lines tell where to import them from.
_STUB = _os.path.join(_os.path.dirname(__file__), "__init__.pyi")
with open(_STUB, encoding="utf-8") as _file:
    _HOME_OF = {
        name: home
        for home, name in _re.findall(
            r"^from keras_transformer\.([\w.]+) import \(?\s*(\w+) as", _file.read(), _re.MULTILINE
        )
    }

__all__ = sorted(_HOME_OF)

# Modules with classes that Keras needs to load a saved model.
_REGISTERED = (
    "layers",
    "transformer",
    "training.losses",
    "training.optimizer",
)
LIGHT = "KERAS_TRANSFORMER_LIGHT"  # set to 1 to import the package without Keras

# The packages of the extra `all`, by the modules that are imported.
OPTIONAL = {
    **{name: name for name in ("babel", "matplotlib", "rich", "sacrebleu", "safetensors")},
    **{name: name for name in ("sentencepiece", "tensorboard", "tokenizers", "werkzeug")},
    "tensorflow_serving": "tensorflow-serving-api",
    "tensorflow_text": "tensorflow-text",
    "yaml": "pyyaml",
}


def explain_missing(what: str, error: ModuleNotFoundError) -> str | None:
    """Explains which extra to install if an optional package is missing.

    Args:
        what: The feature that needs it.
        error: The error of the import.

    Returns:
        One sentence, or None if the module does not belong to the extra.
    """
    package = OPTIONAL.get((error.name or "").partition(".")[0])
    return package and f"{what} needs {package}: pip install 'keras-encoder-decoder[all]'."


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'keras_transformer' has no attribute {name!r}")
    try:
        home = _import_module(f"keras_transformer.{_HOME_OF[name]}")
    except ModuleNotFoundError as error:
        if sentence := explain_missing(f"keras_transformer.{name}", error):
            raise ModuleNotFoundError(sentence, name=error.name) from None
        raise
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    modules = {name for name, value in globals().items() if isinstance(value, type(_sys))}
    return sorted({*globals(), *__all__} - modules)


def _starts_light() -> bool:
    """Returns whether to postpone importing Keras, which takes seconds.

    This is the case in the command `keras-transformer`, in `python -m keras_transformer…`, and if
    the environment variable `LIGHT` is set, as in processes that only read or encode files.
    """
    program = _os.path.basename((_sys.argv or [""])[0])  # "-m" while Python locates the module
    return (
        bool(_os.environ.get(LIGHT))
        or program.removesuffix(".exe") == "keras-transformer"
        or (program == "-m" and any(x.startswith("keras_transformer") for x in _sys.orig_argv))
    )


if not _starts_light():
    for _module in _REGISTERED:
        _import_module(f"keras_transformer.{_module}")
