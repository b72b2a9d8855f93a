"""Every configuration: the model, its training, a corpus to prepare, a search, an export.

Each one validates itself when it is made, as a whole, so that `dataclasses.replace` should change
fields that depend on each other in one call; only what needs files is checked by what reads them.
Every field of `TrainConfig`, `PrepareConfig`, `SearchConfig` and `ExportConfig` is an option of the
command line; its help text is `metadata["help"]` of the field. `PRESETS` maps the names that
`--preset` takes to configurations.

Example:

>>> config = dataclasses.replace(get_preset("tiny"), model=ModelConfig(d_model=64))
>>> isinstance(config, TrainConfig)
True
>>> beam, served = SearchConfig(beam_size=5), ExportConfig(precision="int8")
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_transformer.presets.options import (
    ABOVE_0,
    COUNT,
    FRACTION,
    FREEZABLE,
    FROM_0,
    MODEL_TYPES,
    NOT_NEGATIVE,
    POSITIONS,
    POSITIVE,
    PRECISIONS,
    SEED,
    SHARE,
    SHARED,
    STRATEGIES,
    Range,
    check_fields,
    check_frozen_vectors,
    check_positions,
    check_validation,
    check_vocabularies,
    option,
)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The architecture: arguments of `Transformer`.

    Raises:
        ValueError: If a value is invalid, or values do not fit together.
    """

    num_layers: int = option(6, "N, layers of the encoder, and as many of the decoder", COUNT)
    d_model: int = option(512, "D, width of the model", COUNT)
    num_heads: int = option(8, "H, heads of each attention; must divide d_model", COUNT)
    d_ff: int = option(2048, "inner width of the feed-forward networks", COUNT)
    dropout: float = option(0.1, "dropout rate of sublayer outputs and embeddings", SHARE)
    norm: str = option("post", "where layers normalize; post: the paper", ("post", "pre"))
    activation: str = option("relu", "of the feed-forward networks, by its name in Keras")
    positions: str = option("sinusoidal", "positional encoding", POSITIONS)
    share_embeddings: str = option(
        "target", "matrices that are one; target: with the softmax", SHARED
    )
    max_length: int = option(256, "longest sentence, in tokens", COUNT)
    max_distance: int | None = option(None, "of relative, bucketed and disentangled positions")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.d_model % self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} does not divide d_model={self.d_model}: every head "
                "takes an equal share of the width."
            )
        check_positions(self.positions, self.max_distance, self.d_model, self.num_heads)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One training: its data, vocabulary, model and optimization.

    Raises:
        ValueError: If a value is invalid, or values contradict each other.
    """

    train_source: str | None = option(
        None,
        "text, .gz, or .tsv with both columns; 'part-*.gz' for several files",
        section="data: text, a prepared corpus, or the built-in dates",
    )
    train_target: str | None = option(None, "the translations, line by line")
    valid_source: str | None = option(None, "validation text, to choose the best checkpoint by")
    valid_target: str | None = option(None, "its translations, line by line")
    valid_fraction: float | None = option(
        None, "instead of files: share of the training text that is held out", FRACTION
    )
    languages: tuple[str, ...] = option((), "of the dates; none: the default ones")
    corpus: tuple[str, ...] = option((), "prepared, instead of text; path:weight mixes several")
    dates: bool = option(False, "the built-in dates, if neither text nor a corpus is given")

    vocabulary_size: int | None = option(
        8000, "ids per vocabulary; none: all (types char and word)", section="vocabulary"
    )
    source_vocabulary_size: int | None = option(None, "of the source, if it differs")
    target_vocabulary_size: int | None = option(None, "of the target, if it differs")
    vocabulary_sample: int = option(1_000_000, "pairs to learn it from, at most", COUNT)
    model_type: str = option("bpe", "of the vocabularies", MODEL_TYPES)
    source_vocabulary: str | None = option(None, "WordPiece vocab.txt, such as BERT's, to use")
    target_vocabulary: str | None = option(None, "the target's")
    lowercase: bool = option(False, "lower-case text before it is tokenized")
    nfkc: bool = option(True, "normalize text to Unicode NFKC; wordpiece cleans it in its own way")
    source_vectors: str | None = option(None, "GloVe, word2vec or fastText .vec, to start from")
    target_vectors: str | None = option(None, "the target's")
    freeze_vectors: bool = option(False, "do not train embeddings that were initialized so")
    subword_sampling: float = option(
        0.0, "while training: dropout of merges (bpe), sharpness (unigram)", SHARE
    )

    start_from: str | None = option(
        None,
        "run directory to fine-tune on other data",
        section="initialization: random, or a run with its vocabulary and architecture",
    )
    freeze: tuple[str, ...] = option((), "not trained: encoder, decoder, source-embeddings")

    model: ModelConfig = dataclasses.field(
        default_factory=ModelConfig, metadata={"help": "the architecture", "section": "model"}
    )

    epochs: int = option(20, "each ends with a validation", COUNT, section="optimization")
    steps_per_epoch: int | None = option(None, "none: one pass over the data", COUNT)
    tokens_per_batch: int = option(
        8192, "rows × padded length of the longer side, of all replicas together", COUNT
    )
    accumulation_steps: int = option(1, "slices of a batch, one after the other", COUNT)
    parallel_microbatches: int | None = option(
        None, "slices of a batch, at once; none: one for each core, up to eight", COUNT
    )
    label_smoothing: float = option(0.1, "share spread evenly over the vocabulary", SHARE)
    learning_rate: float | None = option(
        None, "highest learning rate; none: the paper's, (D · warm-up)^-0.5", POSITIVE
    )
    warmup_steps: int = option(4000, "steps until the learning rate peaks", COUNT)
    cooldown_steps: int = option(0, "last steps, in which it also falls to 0, linearly", FROM_0)
    clip_norm: float | None = option(None, "largest global norm of the gradients", ABOVE_0)
    weight_decay: float = option(
        0.0, "share of the weights taken off per step, times learning rate", NOT_NEGATIVE
    )
    ema: float = option(
        0.0, "momentum of an exponential moving average that replaces the weights", SHARE
    )
    precision: str = option("float32", "of computation; auto: timed here", PRECISIONS)
    strategy: str = option("auto", "of distribution; multiworker: by TF_CONFIG", STRATEGIES)
    logical_devices: int = option(1, "replicas on the CPU, to try mirrored without GPUs", COUNT)
    jit_compile: bool = option(False, "compile training steps with XLA, once per padded shape")
    seed: int = option(1, "of everything random", SEED)

    validate_by: str = option(
        "loss",
        "what the best is chosen by; bleu: by loss while it is below 5",
        ("loss", "bleu"),
        section="validation",
    )
    bleu_tokenize: str = option("13a", "sacreBLEU's tokenizer; none if text is tokenized already")
    validation_beam_size: int = option(1, "of the translations for bleu; 1: greedy search", COUNT)
    patience: int | None = option(None, "epochs without a new best until training ends", COUNT)
    keep_checkpoints: int = option(1, "how many of the best, and of the last", COUNT)
    average: str = option(
        "none", "checkpoints whose mean becomes the model, if no worse", ("none", "best", "last")
    )

    save_every: int | None = option(
        None, "steps between checkpoints; none: 2 % of the time", COUNT, section="checkpoints"
    )

    log_every: float = option(
        60.0, "seconds between lines, without a terminal", ABOVE_0, section="logging"
    )
    log_file: str | None = option(None, "file to append these lines to as well")

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_data()
        joint = self.model.share_embeddings == "all"
        check_vocabularies(self, joint, "--share-embeddings target")
        self._check_vectors()
        if self.tokens_per_batch < self.model.max_length:
            raise ValueError(
                f"tokens_per_batch={self.tokens_per_batch} cannot hold a sentence of max_length="
                f"{self.model.max_length} tokens: raise the budget or lower max_length."
            )
        is_given = bool(self.source_vocabulary or self.target_vocabulary)
        if self.subword_sampling and (is_given or self.model_type not in ("bpe", "unigram")):
            raise ValueError(
                "subword_sampling needs a vocabulary of type bpe or unigram, received "
                f"{'wordpiece' if is_given else self.model_type!r}."
            )
        self._check_freeze()

    def _check_data(self) -> None:
        """Refuses data that is named in two ways at once."""
        if self.corpus:
            for name in ("train_source", "train_target", "valid_fraction", "languages"):
                if getattr(self, name):
                    raise ValueError(
                        f"--corpus brings its text with it: leave out --{name.replace('_', '-')}."
                    )
        elif self.train_source is not None and self.languages:
            raise ValueError("--languages are of the built-in dates: leave them out with files.")
        check_validation(self)

    def _check_vectors(self) -> None:
        """Refuses word vectors that do not fit the embeddings."""
        share = self.model.share_embeddings
        sides = [side for side in ("source", "target") if getattr(self, f"{side}_vectors")]
        if self.freeze_vectors and not sides:
            raise ValueError("--freeze-vectors needs --source-vectors or --target-vectors.")
        if len(sides) == 2 and share == "all":
            raise ValueError(
                "Both sides have one matrix of embeddings (share_embeddings=all): give "
                "--source-vectors or --target-vectors, not both, or --share-embeddings target."
            )
        if sides and self.start_from is not None:
            raise ValueError(
                f"The embeddings are those of {self.start_from}: leave out --{sides[0]}-vectors."
            )
        for side in sides if self.freeze_vectors else ():
            check_frozen_vectors(side, share)

    def _check_freeze(self) -> None:
        """Refuses to freeze what is unknown, random, or shared with the softmax."""
        for part in self.freeze:
            if part not in FREEZABLE:
                raise ValueError(f"freeze takes {', '.join(FREEZABLE)}, received {part!r}.")
        if self.freeze and self.start_from is None:
            raise ValueError("--freeze needs --start-from: fresh weights would stay random.")
        if "source-embeddings" in self.freeze and self.model.share_embeddings == "all":
            raise ValueError(
                "--freeze source-embeddings would freeze the softmax, which shares their matrix "
                "(share_embeddings=all): freeze encoder or decoder, or start from a run trained "
                "with --share-embeddings target."
            )


def _as_in_training(name: str) -> Any:
    """A field like the one of that name in `TrainConfig`."""
    field = TrainConfig.__dataclass_fields__[name]
    metadata = {**field.metadata, "section": None}
    return dataclasses.field(default=field.default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    """A corpus to prepare: its text and its vocabularies.

    Raises:
        ValueError: If a value is invalid, or values contradict each other.

    Example:

    >>> PrepareConfig("part-*.en.gz", "part-*.de.gz", valid_fraction=0.001).model_type
    'bpe'
    """

    train_source: str = dataclasses.field(
        metadata={
            "help": "text, .gz, or .tsv with both columns; 'part-*.gz' for several files",
            "section": "text",
        }
    )
    train_target: str | None = _as_in_training("train_target")
    valid_source: str | None = _as_in_training("valid_source")
    valid_target: str | None = _as_in_training("valid_target")
    valid_fraction: float | None = _as_in_training("valid_fraction")

    vocabularies: str | None = option(
        None, "run or prepared corpus to take them from; none: learn them", section="vocabulary"
    )
    vocabulary_size: int | None = _as_in_training("vocabulary_size")
    source_vocabulary_size: int | None = _as_in_training("source_vocabulary_size")
    target_vocabulary_size: int | None = _as_in_training("target_vocabulary_size")
    vocabulary_sample: int = _as_in_training("vocabulary_sample")
    model_type: str = _as_in_training("model_type")
    source_vocabulary: str | None = _as_in_training("source_vocabulary")
    target_vocabulary: str | None = _as_in_training("target_vocabulary")
    lowercase: bool = _as_in_training("lowercase")
    nfkc: bool = _as_in_training("nfkc")
    joint_vocabulary: bool = option(True, "one for both sides, as share_embeddings=all needs it")
    seed: int = option(1, "of the random sample and the held-out part", SEED)

    def __post_init__(self) -> None:
        check_fields(self)
        check_validation(self)
        if self.vocabularies is None:
            check_vocabularies(self, self.joint_vocabulary, "--no-joint-vocabulary")


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """A way to search for translations: greedy search, beam search, or random sampling.

    Raises:
        ValueError: If a value is out of its range, or values contradict each other.
    """

    beam_size: int = option(1, "hypotheses followed at once; 1: greedy search", COUNT)
    length_penalty: float = option(
        1.0, "α ≥ 0: beams are ranked by log_prob / ((5 + length) / 6)^α", NOT_NEGATIVE
    )
    beam_patience: float = option(
        1.0,
        "beams stop at so many times beam_size ended; inf: exact search",
        Range(lambda x: x >= 1, "at least 1; inf for an exact search"),
    )
    sample: bool = option(False, "draw each token at random instead")
    temperature: float = option(1.0, "of sampling: below 1 safer, above 1 more varied", POSITIVE)
    top_k: int = option(0, "of sampling: only the so many most probable tokens; 0: all", FROM_0)
    top_p: float = option(
        1.0,
        "of sampling: only from the fewest tokens with this share of probability",
        Range(lambda x: 0 < x <= 1, "above 0 and at most 1"),
    )
    seed: int = option(1, "of sampling", SEED)
    max_output_length: int | None = option(
        None, "tokens of a translation; none: the model's max_length", COUNT
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.sample and self.beam_size > 1:
            raise ValueError(
                f"A beam of {self.beam_size} cannot be sampled: leave out beam_size or sample."
            )
        for name in () if self.sample else ("temperature", "top_k", "top_p"):
            if getattr(self, name) != getattr(SearchConfig, name):
                raise ValueError(
                    f"{name} is {getattr(self, name)}, but nothing is sampled: set sample "
                    f"(--sample), or leave {name} out."
                )


GREEDY = SearchConfig()


def resolve_search(search: SearchConfig | None, options: dict[str, Any]) -> SearchConfig:
    """Returns the search that a call asks for, by a configuration or by keywords.

    Args:
        search: `SearchConfig`, or None.
        options: Fields of a `SearchConfig`.

    Raises:
        ValueError: If both are given, or an option is unknown or invalid.
    """
    if not options:
        return search or GREEDY
    names = ", ".join(options)
    if search is not None:
        raise ValueError(
            f"Received search and {names}: pass search=SearchConfig(...), or its fields as "
            "keywords, not both."
        )
    fields = [field.name for field in dataclasses.fields(SearchConfig)]
    for name in options:
        if name not in fields:
            raise ValueError(
                f"Unknown search option {name}: choose from search, {', '.join(fields)}."
            )
    return SearchConfig(**options)


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """An export: its signatures, and how its weights are stored.

    Raises:
        ValueError: If a value is invalid.
    """

    signatures: tuple[str, ...] = option(
        ("beam", "sample", "score", "attention", "tokens"),
        "besides serving_default, which is always there; explore: for the explorer",
        section="signatures and weights",
    )
    beam_size: int = option(5, "hypotheses of the signature beam", COUNT)
    length_penalty: float = option(
        SearchConfig.length_penalty, "α of the signature beam", NOT_NEGATIVE
    )
    precision: str = option("float32", "of stored weights", ("float32", "bfloat16", "int8"))
    computation: str = option(
        "float32", "of answers; bfloat16: for servers with such units", ("float32", "bfloat16")
    )
    max_output_length: int | None = option(
        None, "tokens of a translation; none: the model's max_length", COUNT
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def search(self) -> SearchConfig:
        """The `SearchConfig` of the signature `beam`."""
        return SearchConfig(beam_size=self.beam_size, length_penalty=self.length_penalty)


# Written dates to ISO 8601, in minutes on two cores: `make demo`.
dates = TrainConfig(
    dates=True,
    vocabulary_size=None,
    model_type="char",
    model=ModelConfig(
        num_layers=2, d_model=128, num_heads=4, d_ff=512, max_length=64, share_embeddings="all"
    ),
    epochs=3,
    steps_per_epoch=500,
    tokens_per_batch=2048,
    label_smoothing=0.0,
    learning_rate=2e-3,
    warmup_steps=200,
    ema=0.99,
)

# The model of Wu et al. (ACL 2021), "Transformer-Tiny" for Multi30k: 2.6 M weights. Their
# recipe, but half the warm-up, larger batches, an average (EMA) of the weights instead of one of
# checkpoints, and weight decay: worth 0.05 nats of validation loss and 0.4 BLEU there (seed 1).
tiny = TrainConfig(
    vocabulary_size=9900,
    model=ModelConfig(
        num_layers=4, d_model=128, num_heads=4, d_ff=256, dropout=0.3, share_embeddings="all"
    ),
    epochs=20,
    steps_per_epoch=250,
    learning_rate=5e-3,
    warmup_steps=1000,
    weight_decay=0.1,
    ema=0.998,
    validate_by="bleu",
    keep_checkpoints=10,
)

# The usual size for corpora of some hundred thousand pairs (IWSLT).
small = TrainConfig(
    vocabulary_size=16000,
    model=ModelConfig(
        num_layers=6, d_model=256, num_heads=4, d_ff=1024, dropout=0.3, share_embeddings="all"
    ),
    epochs=60,
    learning_rate=1e-3,
)

# "Attention Is All You Need", table 3.
base = TrainConfig(
    vocabulary_size=37000,
    model=ModelConfig(share_embeddings="all"),
    tokens_per_batch=25000,
)

big = TrainConfig(
    vocabulary_size=37000,
    model=ModelConfig(d_model=1024, num_heads=16, d_ff=4096, dropout=0.3, share_embeddings="all"),
    tokens_per_batch=25000,
)

PRESETS = {"dates": dates, "tiny": tiny, "small": small, "base": base, "big": big}


def get_preset(name: str) -> TrainConfig:
    """Looks up a configuration.

    Args:
        name: One of `PRESETS`.

    Returns:
        `TrainConfig`.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in PRESETS:
        raise ValueError(f"There is no preset {name!r}: choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]


def change(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """Changes fields of a configuration and of its model at once, so that it is checked as a whole.

    Args:
        config: `TrainConfig`.
        changes: Fields of `TrainConfig` and `ModelConfig` by their names, with their new values.

    Returns:
        Another `TrainConfig`.

    Raises:
        ValueError: If it would be invalid.
    """
    sizes = {name for name in changes if name in ModelConfig.__dataclass_fields__}
    model = dataclasses.replace(config.model, **{name: changes[name] for name in sizes})
    others = {name: changes[name] for name in changes if name not in sizes}
    return dataclasses.replace(config, model=model, **others)
