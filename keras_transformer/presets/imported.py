"""Where an imported model comes from, and the search that it asks for."""

import dataclasses

from keras_transformer.presets.options import (
    COUNT,
    LENGTH_NORMS,
    NOT_NEGATIVE,
    check_fields,
    option,
)


@dataclasses.dataclass(frozen=True)
class Imported:
    """The origin of a run that `import_model` has made, and of what is fine-tuned from it."""

    source: str = option("", "name of the model")
    kind: str = option("", "what made it")
    licence: str = option("unknown", "licence, as its files name it")
    sha256: str = option("", "fingerprint of its weights")
    beam_size: int = option(1, "beam size of its own configuration, the default here", COUNT)
    length_penalty: float = option(1.0, "its length penalty, the default here", NOT_NEGATIVE)
    length_norm: str = option("length", "how it ranks a beam, the default here", LENGTH_NORMS)
    max_output_length: int | None = option(None, "its maximum tokens of a translation", COUNT)
    language_tags: tuple[str, ...] = option((), "with one of which each source begins")

    def __post_init__(self) -> None:
        check_fields(self)
