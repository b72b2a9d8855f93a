"""The vocabulary files that a configuration names."""

from keras_transformer.presets import PrepareConfig, TrainConfig
from keras_transformer.runs.files import VOCABULARIES
from keras_transformer.tokenizers.wordpiece_vocabulary import read_pieces


def check_files(config: TrainConfig | PrepareConfig, instead: str | None) -> None:
    """Refuses files that hold no vocabulary, or that are named beside other vocabularies.

    Args:
        config: What names them.
        instead: Where vocabularies are had from, if not from these files.

    Raises:
        ValueError: If there is one.
    """
    for name in VOCABULARIES:
        path = getattr(config, name)
        if path is None:
            continue
        if instead is not None:
            raise ValueError(
                f"The vocabularies are those of {instead}: leave out --{name.replace('_', '-')}."
            )
        read_pieces(path)
