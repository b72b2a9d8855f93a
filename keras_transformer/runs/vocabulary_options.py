"""What a configuration says of vocabularies: whether it goes together, and the files it names."""

from keras_transformer.data.prepared.prepare_config import PrepareConfig
from keras_transformer.presets import TrainConfig
from keras_transformer.runs.files import VOCABULARIES
from keras_transformer.tokenizers.vocabularies import check_type, check_vocabulary, read_pieces


def check_vocabularies(config: TrainConfig | PrepareConfig, joint: bool, apart: str) -> None:
    """Refuses vocabularies that could not be learned or taken, or of which one side has too many.

    Args:
        config: What says which there are to be.
        joint: Whether both sides have one vocabulary.
        apart: The option that gives each side its own, for errors.

    Raises:
        ValueError: If there is one.
    """
    files = [getattr(config, name) for name in VOCABULARIES]
    sizes = [getattr(config, f"{name}_size") for name in VOCABULARIES]
    for name, path, size in zip(VOCABULARIES, files, sizes, strict=True):
        option = name.replace("_", "-")
        if size is not None and joint:
            raise ValueError(
                f"--{option}-size {size} is for a vocabulary of its own, and both sides have one: "
                f"give --vocabulary-size, or {apart} as well."
            )
        if size is not None and path is not None:
            raise ValueError(f"--{option} {path} has the size it has: leave out --{option}-size.")
    if joint and files[0] != files[1]:
        raise ValueError(
            f"Both sides have one vocabulary, received --source-vocabulary {files[0] or 'none'} "
            f"and --target-vocabulary {files[1] or 'none'}: give the same file twice, or {apart}."
        )
    for path, size in zip(files, sizes, strict=True):
        if path is None:
            check_vocabulary(config.vocabulary_size if size is None else size, config.model_type)
    check_type(config.model_type)


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
