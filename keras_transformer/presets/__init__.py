"""All configurations: model, training, corpus preparation, decoding and export.

A configuration validates itself as a whole when it is created: change fields that depend on each
other in one call of `dataclasses.replace`. Files are checked by the functions that read them. Every
field of `TrainConfig`, `PrepareConfig`, `SearchConfig` and `ExportConfig` is an option of the
command line; its help text is `metadata["help"]` of the field. `PRESETS` maps the values of
`--preset` to configurations.

Example:

>>> config = dataclasses.replace(get_preset("tiny"), model=ModelConfig(d_model=64))
>>> isinstance(config, TrainConfig)
True
>>> beam, served = SearchConfig(beam_size=5), ExportConfig(precision="int8")
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from keras_transformer.presets.languages import Languages
from keras_transformer.presets.options import (
    ABOVE_0,
    AT_LEAST_1,
    BEAM_OPTIONS,
    CONTROLS,
    COUNT,
    FRACTION,
    FREEZABLE,
    FROM_0,
    LENGTH_NORMS,
    MODEL_TYPES,
    NOT_NEGATIVE,
    POSITIVE,
    PRECISIONS,
    SEED,
    SHARE,
    STRATEGIES,
    Imported,
    ModelConfig,
    Range,
    check_beam,
    check_fields,
    check_validation,
    check_vocabularies,
    option,
    read_functions,
)

TEXT_HELP = "training text: .txt, .gz or two-column .tsv; 'part-*.gz': several"


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A training: data, vocabulary, model, optimization and so on.

    Raises:
        ValueError: If a value is invalid, or values contradict each other.
    """

    train_source: str | None = option(
        None, TEXT_HELP, section="data: text files, a prepared corpus, or the built-in dates"
    )
    train_target: str | None = option(None, "its translations, line by line")
    valid_source: str | None = option(None, "validation text, which selects the best checkpoint")
    valid_target: str | None = option(None, "its translations, line by line")
    valid_fraction: float | None = option(None, "fraction of training text to hold out", FRACTION)
    languages: tuple[str, ...] = option((), "languages of the built-in dates; none: the default")
    corpus: tuple[str, ...] = option((), "prepared corpora instead; path:weight mixes several")
    dates: bool = option(False, "use the built-in dates unless text or a corpus is given")

    vocabulary_size: int | None = option(
        8000, "tokens per vocabulary; none: all (char and word only)", section="vocabulary"
    )
    source_vocabulary_size: int | None = option(None, "source tokens, if different")
    target_vocabulary_size: int | None = option(None, "target tokens, if different")
    vocabulary_sample: int = option(1_000_000, "maximum number of pairs to learn from", COUNT)
    model_type: str = option("bpe", "tokenizer to learn", MODEL_TYPES)
    source_vocabulary: str | None = option(None, "WordPiece vocab.txt to use, such as BERT's")
    target_vocabulary: str | None = option(None, "the same for the target")
    lowercase: bool = option(False, "convert text to lower case")
    nfkc: bool = option(True, "normalize sources to Unicode NFKC (not wordpiece)")
    source_vectors: str | None = option(None, "pretrained embeddings: text of GloVe or fastText")
    target_vectors: str | None = option(None, "the same for the target")
    source_end: bool = option(True, "append END to sources")

    start_from: str | None = option(
        None,
        "run to fine-tune; its architecture and vocabulary stay; by default 5 epochs at a tenth of "
        "its learning rate",
        section="fine-tuning",
    )
    freeze: tuple[str, ...] = option((), "parts not to train", FREEZABLE)
    source_language: str | None = option(None, "language of the sources, if the model has several")
    target_language: str | None = option(None, "language of the targets, if the model has several")

    model: ModelConfig = dataclasses.field(
        default_factory=ModelConfig, metadata={"help": "architecture", "section": "model"}
    )

    epochs: int = option(20, "epochs; each ends with a validation", COUNT, section="optimization")
    steps_per_epoch: int | None = option(None, "none: one pass over the data", COUNT)
    tokens_per_batch: int = option(
        8192, "tokens of the longer side, padding and all replicas included", COUNT
    )
    accumulation_steps: int = option(1, "gradient accumulation: slices of a batch", COUNT)
    parallel_microbatches: int | None = option(
        None, "gradient accumulation in parallel: slices; none: cores, up to 8", COUNT
    )
    label_smoothing: float = option(0.1, "probability spread over the vocabulary", SHARE)
    rdrop: float = option(0.0, "R-Drop alpha, in about twice the time; 0: off", NOT_NEGATIVE)
    learning_rate: float | None = option(
        None, "peak learning rate; none: (d_model * warmup_steps)^-0.5", POSITIVE
    )
    warmup_steps: int = option(4000, "steps of linear warm-up to the peak", COUNT)
    cooldown_steps: int = option(0, "final steps of linear decay to 0", FROM_0)
    clip_norm: float | None = option(None, "maximum global norm of the gradients", ABOVE_0)
    weight_decay: float = option(0.0, "decoupled weight decay, times learning rate", NOT_NEGATIVE)
    ema: float = option(0.0, "momentum of the exponential moving average of weights", SHARE)
    seed: int = option(1, "seed of all random numbers", SEED)

    precision: str = option(
        "float32", "dtype policy; auto: the faster one", PRECISIONS, section="devices"
    )
    strategy: str = option("auto", "distribution; multiworker reads TF_CONFIG", STRATEGIES)
    logical_devices: int = option(1, "CPU replicas, to try mirrored without GPUs", COUNT)
    jit_compile: bool | None = option(
        None, "compile training steps with XLA, for a few padded shapes; none: only on a GPU"
    )

    validate_by: str = option(
        "loss",
        "metric that selects the best; bleu: the loss while BLEU < 5",
        ("loss", "bleu"),
        section="validation",
    )
    bleu_tokenize: str = option("13a", "sacreBLEU tokenizer; none: text is already tokenized")
    validation_beam_size: int = option(1, "beam size for BLEU; 1: greedy search", COUNT)
    patience: int | None = option(None, "epochs without a new best before training stops", COUNT)

    keep_checkpoints: int = option(
        1, "epochs to keep: N of the best and N of the last", COUNT, section="checkpoints"
    )
    save_every: int | None = option(None, "steps between checkpoints; none: 2 % of time", COUNT)

    log_every: float = option(
        60.0, "seconds between progress lines, if stderr is no terminal", ABOVE_0, section="logging"
    )

    # Not options of the command line; the latter was one of earlier versions.
    imported: Imported | None = option(None, "origin", section="imported model", hidden=True)
    subword_sampling: float = option(0.0, "alpha of subword sampling in training", hidden=True)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.corpus:
            for name in ("train_source", "train_target", "valid_fraction", "languages"):
                if getattr(self, name):
                    raise ValueError(
                        f"--corpus excludes --{name.replace('_', '-')}: leave out one of the two."
                    )
        elif self.train_source is not None and self.languages:
            raise ValueError(
                "--languages applies to the built-in dates only: leave it out with --train-source."
            )
        check_validation(self)
        is_joint = self.model.share_embeddings == "all"
        if self.imported is None:  # else they are not learned
            check_vocabularies(self, is_joint, "--share-embeddings target")
        if self.tokens_per_batch < self.model.max_length:
            raise ValueError(
                f"tokens_per_batch must be at least max_length={self.model.max_length}, received "
                f"{self.tokens_per_batch}."
            )
        sides = self.pretrained
        if len(sides) == 2 and is_joint:
            raise ValueError(
                "--source-vectors and --target-vectors cannot be used with --share-embeddings all."
            )
        if sides and self.start_from is not None:
            raise ValueError(
                f"--{sides[0]}-vectors and --start-from cannot be used together: leave one out."
            )
        if self.freeze and self.start_from is None:
            raise ValueError("--freeze needs --start-from: frozen new weights would stay random.")
        if "source-embeddings" in self.freeze and is_joint:
            raise ValueError(
                "--freeze source-embeddings would also freeze the softmax: share_embeddings=all."
            )

    def find_languages(self) -> Languages:
        """Returns the languages that the model translates between."""
        languages = Languages.of_import(self.imported)
        return languages.choose(self.source_language, self.target_language)

    @property
    def is_imported(self) -> bool:
        """Whether this is the configuration of an imported run, not of one fine-tuned from it."""
        return self.imported is not None and self.start_from is None

    @property
    def search(self) -> "SearchConfig":
        """The search by default: that of an imported model, or greedy search."""
        return SearchConfig(**_search_fields(self.imported)) if self.imported else GREEDY

    @property
    def pretrained(self) -> list[str]:
        """The sides with pretrained embeddings: source, target."""
        return [side for side in ("source", "target") if getattr(self, f"{side}_vectors")]


def _copy_field(config: Any, name: str) -> Any:
    """Copies a field of a configuration, without its section."""
    field = config.__dataclass_fields__[name]
    metadata = {**field.metadata, "section": None}
    return dataclasses.field(default=field.default, metadata=metadata)


_copy_train_field = functools.partial(_copy_field, TrainConfig)


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    """A corpus to prepare: text and vocabularies.

    Raises:
        ValueError: If a value is invalid, or values contradict each other.

    Example:

    >>> PrepareConfig("part-*.en.gz", "part-*.de.gz", valid_fraction=0.001).model_type
    'bpe'
    """

    train_source: str = dataclasses.field(metadata={"help": TEXT_HELP, "section": "data"})
    train_target: str | None = _copy_train_field("train_target")
    valid_source: str | None = _copy_train_field("valid_source")
    valid_target: str | None = _copy_train_field("valid_target")
    valid_fraction: float | None = _copy_train_field("valid_fraction")
    source_language: str | None = _copy_train_field("source_language")
    target_language: str | None = _copy_train_field("target_language")

    vocabularies: str | None = option(
        None, "run or prepared corpus to reuse; none: learn new ones", section="vocabulary"
    )
    vocabulary_size: int | None = _copy_train_field("vocabulary_size")
    source_vocabulary_size: int | None = _copy_train_field("source_vocabulary_size")
    target_vocabulary_size: int | None = _copy_train_field("target_vocabulary_size")
    vocabulary_sample: int = _copy_train_field("vocabulary_sample")
    model_type: str = _copy_train_field("model_type")
    source_vocabulary: str | None = _copy_train_field("source_vocabulary")
    target_vocabulary: str | None = _copy_train_field("target_vocabulary")
    lowercase: bool = _copy_train_field("lowercase")
    nfkc: bool = _copy_train_field("nfkc")
    joint_vocabulary: bool = option(True, "one for both sides; share_embeddings=all needs it")
    subword_sampling: float = option(0.0, "BPE-dropout, or alpha of unigram sampling", SHARE)
    samples: int = option(1, "times to write each pair, each time with new segmentations", COUNT)
    seed: int = option(1, "seed of the sample and of the held-out pairs", SEED)

    def __post_init__(self) -> None:
        check_fields(self)
        check_validation(self)
        if self.vocabularies is None:
            check_vocabularies(self, self.joint_vocabulary, "--no-joint-vocabulary")
        if self.samples > 1 and not self.subword_sampling:
            raise ValueError("samples needs --subword-sampling: all would be the same.")
        is_given = bool(self.source_vocabulary or self.target_vocabulary)
        if self.subword_sampling and (is_given or self.model_type not in ("bpe", "unigram")):
            raise ValueError(
                "subword_sampling needs a vocabulary of type bpe or unigram, received "
                f"{'wordpiece' if is_given else self.model_type!r}."
            )


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """How to decode: greedy search, beam search, or random sampling.

    Raises:
        ValueError: If a value is out of its range, or values contradict each other.
    """

    beam_size: int = option(1, "beam size; 1: greedy search", COUNT)
    length_penalty: float = option(
        1.0, "α in log_prob / ((5 + length) / 6)^α, which ranks a beam", NOT_NEGATIVE
    )
    beam_patience: float = option(
        1.0, "a beam stops after this × beam_size hypotheses; inf: exact", COUNT
    )
    length_norm: str = option(
        "gnmt", "length: rank by log_prob / length^α instead, as Marian does", LENGTH_NORMS
    )
    sample: bool = option(False, "random sampling instead")
    temperature: float = option(1.0, "sampling temperature; below 1: less random", POSITIVE)
    top_k: int = option(0, "sample from the k most probable tokens; 0: from all", FROM_0)
    top_p: float = option(
        1.0,
        "sample from the fewest tokens with this total probability",
        Range(lambda x: 0 < x <= 1, "above 0 and at most 1"),
    )
    seed: int = option(1, "seed of the sampling", SEED)
    max_output_length: int | None = option(
        None, "maximum tokens of a translation; none: the model's max_length", COUNT
    )
    min_length: int = option(0, "minimum tokens of a translation, without its end", FROM_0)
    no_repeat_ngram_size: int = option(0, "n: no n tokens in a row occur twice; 0: off", FROM_0)
    repetition_penalty: float = option(1.0, "makes repetitions less probable; 1: off", AT_LEAST_1)
    # Functions that change the logits of each step, see `greedy_search`: in Python only.
    logits_processors: tuple[Callable[..., Any], ...] = option((), "functions", hidden=True)

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "logits_processors", read_functions(self.logits_processors))
        if self.sample and self.beam_size > 1:
            raise ValueError(
                f"beam_size must be 1 with sample, received {self.beam_size}: leave out one."
            )
        for name in () if self.sample else ("temperature", "top_k", "top_p"):
            if getattr(self, name) != getattr(SearchConfig, name):
                raise ValueError(f"{name} needs sample: set that, or leave {name} out.")

    @property
    def greedy(self) -> "SearchConfig":
        """Greedy search with the same limits and functions."""
        names = *CONTROLS, "logits_processors"
        return SearchConfig(**{name: getattr(self, name) for name in names})


GREEDY = SearchConfig()
_copy_search_field = functools.partial(_copy_field, SearchConfig)


def resolve_search(
    search: SearchConfig | None, options: Mapping[str, Any], default: SearchConfig = GREEDY
) -> SearchConfig:
    """Returns the options of a search: `search`, or `default` with the fields in `options`."""
    if search is not None and not isinstance(search, SearchConfig):
        raise ValueError(f"search must be a SearchConfig, received {search!r}.")
    if not options:
        return search or default
    if search is not None:
        raise ValueError(
            f"Received search and {', '.join(options)}: pass search=SearchConfig(...), or its "
            "fields as keywords, not both."
        )
    fields = SearchConfig.__dataclass_fields__
    if unknown := [name for name in options if name not in fields]:
        raise ValueError(
            f"Unknown search option {unknown[0]}: choose from search, {', '.join(fields)}."
        )
    beam = {"beam_size": 1} if options.get("sample") else {}  # no beam of the default's
    return check_beam(dataclasses.replace(default, **{**beam, **options}), options)


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """An export: its signatures, and how its weights are stored.

    Raises:
        ValueError: If a value is invalid.
    """

    signatures: tuple[str, ...] = option(
        ("beam", "sample", "score", "attention", "tokens"),
        "in addition to serving_default",
        section="signatures and weights",
    )
    beam_size: int = option(5, "beam size of the signature beam", COUNT)
    length_penalty: float = option(
        SearchConfig.length_penalty, "α of the signature beam", NOT_NEGATIVE
    )
    length_norm: str = option(
        SearchConfig.length_norm, "how the signature beam uses α, see translate", LENGTH_NORMS
    )
    beam_patience: float = option(
        SearchConfig.beam_patience, "when the signature beam stops, see translate", AT_LEAST_1
    )
    precision: str = option("float32", "dtype of stored weights", ("float32", "bfloat16", "int8"))
    computation: str = option(
        "float32", "compute dtype; bfloat16: for hardware that has it", ("float32", "bfloat16")
    )
    max_output_length: int | None = option(
        None, "maximum tokens of a translation; none: the model's max_length", COUNT
    )
    min_length: int = _copy_search_field("min_length")
    no_repeat_ngram_size: int = _copy_search_field("no_repeat_ngram_size")
    repetition_penalty: float = _copy_search_field("repetition_penalty")
    logits_processors: tuple[Callable[..., Any], ...] = _copy_search_field("logits_processors")
    source_language: str | None = option(None, "language of all sources; none: each request's")
    target_language: str | None = option(None, "language of all targets; none: each request's")

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def search(self) -> SearchConfig:
        """The `SearchConfig` of the signature `beam`."""
        return SearchConfig(**{**_search_fields(self), "max_output_length": None})

    @classmethod
    def for_search(cls, search: SearchConfig, **options: Any) -> "ExportConfig":
        """Creates the configuration whose signature `beam` has this search, unless it is greedy."""
        own = {} if search == GREEDY else _search_fields(search)
        return cls(**{**own, **options})


def _search_fields(config: Any) -> dict[str, Any]:
    """Returns the fields of a search that imported models and exports have."""
    own = {name: getattr(config, name) for name in (*BEAM_OPTIONS, *CONTROLS)}
    return own | {"logits_processors": getattr(config, "logits_processors", ())}


# Dates as text to ISO 8601; trains in minutes on two cores: `make demo`.
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

# 2.4 M weights: "Transformer-Tiny" of Wu et al. (ACL 2021) for Multi30k, but with rotary positions
# and a fifth layer instead of 3,900 tokens. Their recipe, but half the warm-up, larger batches, an
# average (EMA) of the weights instead of one of checkpoints, weight decay, and R-Drop.
tiny = TrainConfig(
    vocabulary_size=6000,
    model=ModelConfig(
        num_layers=5,
        d_model=128,
        num_heads=4,
        d_ff=256,
        dropout=0.3,
        positions="rotary",
        share_embeddings="all",
    ),
    epochs=20,
    steps_per_epoch=250,
    learning_rate=5e-3,
    warmup_steps=1000,
    weight_decay=0.1,
    rdrop=1.0,
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
    """Returns the `TrainConfig` of a name in `PRESETS`.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in PRESETS:
        raise ValueError(f"Unknown preset {name!r}: choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]


def change(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """Changes fields of a configuration and of its model together, and validates the result."""
    sizes = {name for name in changes if name in ModelConfig.__dataclass_fields__}
    model = dataclasses.replace(config.model, **{name: changes[name] for name in sizes})
    others = {name: changes[name] for name in changes if name not in sizes}
    return dataclasses.replace(config, model=model, **others)
