"""A training's directory: everything needed to translate, to resume and to look back.

`model.keras` (the best weights), `source.spm` and `target.spm` (equal when shared), `config.yaml`,
`logs/` (TensorBoard) and `checkpoints/`. Nothing in it names another place on the machine that
loading would need, so it can be moved.
"""

import dataclasses
import os

import yaml

from keras_transformer.presets import ModelConfig, TrainConfig

MODEL, CONFIG, SOURCE, TARGET = "model.keras", "config.yaml", "source.spm", "target.spm"


def is_run(path):
    """Says whether `path` is a run directory with a model to translate with."""
    return os.path.isfile(os.path.join(path, MODEL)) and os.path.isfile(os.path.join(path, SOURCE))


def load(path):
    """Loads a trained translator.

    Args:
        path: A run directory.

    Returns:
        `Translator`.

    Raises:
        ValueError: If `path` is no run directory, or one whose training has saved no model yet.

    Example:

    >>> keras_transformer.load("runs/dates").translate(["samedi 9 mai 1998"])
    ['1998-05-09']
    """
    if not is_run(path):
        raise ValueError(
            f"{path} is no run directory (no {MODEL} and {SOURCE} in it): give the --output of a "
            "training that has finished an epoch."
        )
    import keras

    from keras_transformer.transformer import Transformer  # noqa: F401, registers the class
    from keras_transformer.translator import Translator

    model = keras.saving.load_model(os.path.join(path, MODEL), compile=False)
    return Translator(model, *load_tokenizers(path))


def open_translator(path):
    """Opens whatever can translate.

    Args:
        path: A run directory, or a SavedModel's base or version directory.

    Returns:
        Function from a list of strings, in any order, to the list of their translations.

    Raises:
        ValueError: If `path` is neither.
    """
    if is_run(path):
        return load(path).translate
    from keras_transformer.saved_model import load_saved_model
    from keras_transformer.translator import translate_sorted

    if not os.path.isdir(path):
        raise ValueError(f"{path} is no directory: give a run directory or a SavedModel.")
    if os.path.exists(os.path.join(path, CONFIG)):
        load(path)  # a run without a model: says so
    exported = load_saved_model(path)
    return lambda texts: translate_sorted(lambda rows: exported(rows)[0], texts)


def load_tokenizers(path):
    """Reads a run's source and target tokenizer."""
    from keras_transformer.tokenizer import SubwordTokenizer

    return tuple(SubwordTokenizer.load(os.path.join(path, name)) for name in (SOURCE, TARGET))


def write_config(config, path):
    """Writes a `TrainConfig` as `config.yaml` into the directory `path`."""
    with open(os.path.join(path, CONFIG), "w", encoding="utf-8") as file:
        yaml.safe_dump(_plain(dataclasses.asdict(config)), file, sort_keys=False)


def read_config(path):
    """Reads the `TrainConfig` of a run directory.

    Raises:
        ValueError: If there is none, or one that this version does not understand.
    """
    name = os.path.join(path, CONFIG)
    try:
        with open(name, encoding="utf-8") as file:
            fields = yaml.safe_load(file)
        model = ModelConfig(**fields.pop("model"))
        fields["languages"] = tuple(fields["languages"])
        return TrainConfig(model=model, **fields)
    except OSError:
        raise ValueError(f"{path} is no run directory: there is no {CONFIG} in it.") from None
    except (yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{name} is not a configuration of this version: {error}.") from error


def _plain(value):
    """Tuples as lists: YAML knows no others."""
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    return list(value) if isinstance(value, tuple) else value
