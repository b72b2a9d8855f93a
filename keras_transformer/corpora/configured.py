"""The sentence pairs that a configuration names."""

from keras_transformer.corpora.corpus import Corpus
from keras_transformer.corpora.dates import LANGUAGES, dates
from keras_transformer.corpora.pair import Pair
from keras_transformer.corpora.text_files import read_pairs
from keras_transformer.corpora.validation_cut import ValidationCut
from keras_transformer.presets import TrainConfig
from keras_transformer.typing import Pairs


def load_corpus(config: TrainConfig) -> Corpus:
    """Reads the sentence pairs that a configuration names.

    Args:
        config: `TrainConfig`.

    Returns:
        `Corpus`; of text files, one without a test part.

    Raises:
        ValueError: If files are missing or unfit, or none or only some of them are named.
    """
    check_names(config)
    if config.train_source is None:
        return dates(config.languages or LANGUAGES)
    pairs = read_pairs(config.train_source, config.train_target)
    if config.valid_fraction is not None:
        return Corpus(*cut_off(pairs, config.valid_fraction, config.seed), [])
    return Corpus(pairs, load_valid(config), [])


def load_valid(config: TrainConfig) -> list[Pair]:
    """Reads the pairs that a training is validated by, and no others that it need not.

    Raises:
        ValueError: If files are missing or unfit.
    """
    if config.valid_source is None:
        return load_corpus(config).valid
    return read_pairs(config.valid_source, config.valid_target)


def check_names(config: TrainConfig) -> None:
    """Refuses a configuration that names no data, or only some of the files.

    Raises:
        ValueError: If it does.
    """
    if config.corpus:
        return
    if config.train_source is None:
        if config.valid_source or config.train_target or config.valid_fraction:
            raise ValueError("--train-source is missing: name it along with the other files.")
        if not (config.dates or config.languages):
            raise ValueError(
                "There is nothing to train on: give text by --train-source and --train-target, a "
                "prepared corpus by --corpus, or --dates for the built-in dates."
            )
    elif config.valid_source is None and config.valid_fraction is None:
        raise ValueError(
            "--valid-source is missing: the best model is chosen by a second corpus; name one, or "
            "have it cut off the first by --valid-fraction 0.02."
        )


def cut_off(pairs: Pairs, fraction: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Cuts a validation part off a corpus, so that no source is on both sides.

    Args:
        pairs: The corpus.
        fraction: Share of its distinct sources to draw, as `ValidationCut` does; at least one.
        seed: Of the drawing.

    Returns:
        The pairs to train on and those to validate by, in their order.

    Raises:
        ValueError: If there are fewer than two distinct sources.
    """
    sources = [pair[0].encode(errors="replace") for pair in pairs]
    cut = ValidationCut(fraction, seed, [sources] if sources else [])
    parts: tuple[list[Pair], list[Pair]] = ([], [])
    for pair, drawn in zip(pairs, cut.draws(sources).tolist(), strict=True):
        parts[drawn].append(Pair(*pair))
    return parts
