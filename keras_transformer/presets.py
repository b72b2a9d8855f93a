"""Named configurations: how large a model is and how it is trained.

`TrainConfig` is what `keras-transformer train` takes; every field is an option of the command
line. `PRESETS` maps the names that `--preset` knows to configurations.

Example:

>>> config = dataclasses.replace(get_preset("tiny"), model=ModelConfig(d_model=64))
>>> isinstance(config, TrainConfig)
True
>>> beam, served = SearchConfig(beam_size=5), ExportConfig(precision="int8")
"""

import dataclasses
import math
import numbers

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16", "auto")
STRATEGIES = ("auto", "one", "mirrored", "multiworker")
FREEZABLE = ("encoder", "decoder", "source-embeddings")

# Positional encodings.
ABSOLUTE = ("sinusoidal", "learned")  # added to the embeddings
RELATIVE = ("relative", "bucketed", "rotary", "disentangled", "alibi")  # computed by attention
POSITIONS = (*ABSOLUTE, "none", *RELATIVE)
# The default of max_distance, for the schemes that have one; larger distances are clipped to it.
MAX_DISTANCES = {"relative": 16, "bucketed": 128, "disentangled": 128}
NUM_BUCKETS = 32

FORMAT = 1  # of what run directories and .keras files hold


def check_format(name: str, received: int | None) -> None:
    """Refuses what another version has written.

    Args:
        name: Of the file.
        received: The format that it says it has; None, an older one than the first.

    Raises:
        ValueError: If it is not `FORMAT`.
    """
    if received != FORMAT:
        raise ValueError(
            f"{name} is of format {received or 0}, this version reads format {FORMAT}: use the "
            "version that wrote it, or train anew."
        )


def check_positions(
    positions: str,
    max_distance: int | None = None,
    d_model: int | None = None,
    num_heads: int | None = None,
) -> None:
    """Checks the name of a positional encoding, and the sizes that it is used with.

    Args:
        positions: One of `POSITIONS`.
        max_distance: None for the default in `MAX_DISTANCES`.
        d_model, num_heads: Sizes of the model, if they are known.

    Raises:
        ValueError: If the name is unknown, or a size does not fit.
    """
    if positions not in POSITIONS:
        raise ValueError(
            f"positions must be one of {', '.join(POSITIONS)}, received {positions!r}."
        )
    if max_distance is not None:
        _check_max_distance(positions, max_distance)
    if d_model and d_model % 2 and positions in ("sinusoidal", "alibi"):
        subject = "Sinusoidal positions need" if positions == "sinusoidal" else "alibi needs"
        raise ValueError(
            f"{subject} an even d_model, received d_model={d_model}: choose an even one or "
            "other positions."
        )
    if positions == "rotary" and d_model and num_heads:
        check_rotary(d_model // num_heads)


def _check_max_distance(positions, max_distance):
    if positions not in MAX_DISTANCES:
        raise ValueError(
            f"max_distance={max_distance!r} has no effect on positions={positions!r}: leave it "
            f"out, or choose one of {', '.join(MAX_DISTANCES)}."
        )
    if not isinstance(max_distance, numbers.Integral) or max_distance < 1:
        raise ValueError(f"max_distance must be a positive integer, received {max_distance!r}.")
    if positions == "bucketed" and max_distance <= NUM_BUCKETS // 2:
        raise ValueError(
            f"max_distance of bucketed positions must be more than {NUM_BUCKETS // 2}, as so many "
            f"of the {NUM_BUCKETS} buckets hold one distance each, received {max_distance}."
        )


def check_rotary(key_dim: int) -> None:
    """Checks that the entries of a head form pairs.

    Raises:
        ValueError: If its width is odd.
    """
    if key_dim % 2:
        raise ValueError(
            f"Rotary positions rotate pairs of entries, received heads of odd width {key_dim}: "
            "choose num_heads and d_model so that d_model / num_heads is even."
        )


def check_sharing(
    share_embeddings: str, source_vocabulary_size: int, target_vocabulary_size: int
) -> None:
    """Refuses a way of sharing that is unknown or that the vocabularies do not allow.

    Raises:
        ValueError: If it is.
    """
    if share_embeddings not in ("none", "target", "all"):
        raise ValueError(
            f'share_embeddings must be "none", "target" or "all", received {share_embeddings!r}.'
        )
    if share_embeddings == "all" and source_vocabulary_size != target_vocabulary_size:
        raise ValueError(
            'share_embeddings="all" needs one vocabulary for both sides, received '
            f"{source_vocabulary_size} source and {target_vocabulary_size} target ids: use a "
            'joint vocabulary or share_embeddings="target".'
        )


def check_frozen_vectors(side: str, share_embeddings: str) -> None:
    """Refuses to freeze the embeddings of a side where their matrix is the softmax's too.

    Raises:
        ValueError: If it is.
    """
    if share_embeddings == "all" or (side, share_embeddings) == ("target", "target"):
        apart = "target" if side == "source" else "none"
        raise ValueError(
            f"--freeze-vectors would freeze the softmax, which shares the matrix of the {side} "
            f"embeddings (share_embeddings={share_embeddings}): give --share-embeddings {apart}."
        )


def check_precision(precision: str | None) -> None:
    """Refuses what is neither None nor the name of a precision.

    Raises:
        ValueError: If it is not.
    """
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(
            f"precision must be one of {', '.join(PRECISIONS)}, received {precision!r}."
        )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The architecture: arguments of `Transformer`."""

    num_layers: int = 6  # N, layers of the encoder, and as many of the decoder
    d_model: int = 512  # D, width of the model
    num_heads: int = 8  # H, heads of each attention; must divide d_model
    d_ff: int = 2048  # inner width of the feed-forward networks
    dropout: float = 0.1  # share of sublayer outputs and embeddings, while training
    norm: str = "post"  # post (the paper) or pre
    activation: str = "relu"  # of the feed-forward networks
    positions: str = "sinusoidal"  # learned relative bucketed rotary disentangled alibi none
    share_embeddings: str = "target"  # none, target (with the softmax) or all
    max_length: int = 256  # longest sentence, in tokens
    max_distance: int | None = None  # largest told apart by relative, bucketed and disentangled


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One training: its data, vocabulary, model and recipe."""

    # --- data: text, a prepared corpus, or the built-in dates ---
    train_source: str | None = None  # text, .gz, or .tsv with both columns; 'part-*.gz' for several
    train_target: str | None = None  # the translations, line by line
    valid_source: str | None = None  # what the best checkpoint is chosen by
    valid_target: str | None = None  # its translations, line by line
    valid_fraction: float | None = None  # instead of files: share of the training text cut off
    languages: tuple[str, ...] = ()  # of the dates; none: the default ones
    corpus: tuple[str, ...] = ()  # prepared, instead of text; path:weight mixes several
    dates: bool = False  # the built-in dates, where neither text nor a corpus is given

    # --- vocabulary ---
    vocabulary_size: int | None = 8000  # ids per vocabulary; none: all (types char and word)
    source_vocabulary_size: int | None = None  # of the source, where it has another one
    target_vocabulary_size: int | None = None  # of the target, where it has another one
    vocabulary_sample: int = 1_000_000  # pairs it is learned from, drawn where there are more
    model_type: str = "bpe"  # bpe, unigram, char, word or wordpiece
    source_vocabulary: str | None = None  # WordPiece vocab.txt to take, such as BERT's; none: learn
    target_vocabulary: str | None = None  # the target's
    lowercase: bool = False  # lower-case text before it is cut into pieces
    nfkc: bool = True  # normalise text to Unicode NFKC; wordpiece cleans it in its own way
    source_vectors: str | None = None  # GloVe, word2vec or fastText .vec: embeddings begin as these
    target_vectors: str | None = None  # the target's
    freeze_vectors: bool = False  # embeddings that began so keep what they began as
    subword_sampling: float = 0.0  # in training: dropout of merges (bpe), sharpness (unigram)

    # --- start: from fresh weights, or those of a run, with its vocabulary and architecture ---
    start_from: str | None = None  # run directory to fine-tune on other data
    freeze: tuple[str, ...] = ()  # what keeps its weights: encoder, decoder, source-embeddings

    # --- model ---
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)  # the architecture

    # --- recipe ---
    epochs: int = 20  # rounds, after each of which the model is validated and saved
    steps_per_epoch: int | None = None  # updates; none: one pass over the data
    tokens_per_batch: int = 8192  # rows × padded length of the longer side, all replicas
    accumulation_steps: int = 1  # micro-batches one after the other, to save memory
    parallel_microbatches: int | None = None  # together; none: one for each core, up to eight
    label_smoothing: float = 0.1  # share spread evenly over the vocabulary
    peak: float | None = None  # highest learning rate; none: the paper's, (D · warm-up)^-0.5
    warmup_steps: int = 4000  # updates until the learning rate peaks
    cooldown_steps: int = 0  # updates at the end in which it also falls to zero, linearly
    clip_norm: float | None = None  # largest norm of all gradients together
    weight_decay: float = 0.0  # share of the weights taken off per update, times learning rate
    ema: float = 0.0  # running mean of the weights, used instead of them: momentum it grows to
    precision: str = "float32"  # float32, mixed_bfloat16, mixed_float16 or auto (timed here)
    strategy: str = "auto"  # auto (all there is), one, mirrored or multiworker (by TF_CONFIG)
    logical_devices: int = 1  # replicas that the CPU plays, to try mirrored without GPUs
    jit_compile: bool = False  # compile training steps with XLA, once per padded shape
    seed: int = 1  # of everything random

    # --- validation ---
    validate_by: str = "loss"  # what the best is chosen by: loss; or bleu, and loss below 5
    bleu_tokenize: str = "13a"  # sacreBLEU's tokenizer; none where text is tokenized already
    validation_beam_size: int = 1  # of the translations for bleu; 1: greedy
    patience: int | None = None  # epochs without a new best after which training ends
    keep_checkpoints: int = 1  # so many of the best, and of the last
    average: str = "none"  # the model: none, the best; best or last, mean of those, if no worse

    # --- what is saved to go on from ---
    save_every: int | None = None  # updates from one point to the next; none: 2 % of the time

    # --- what is told meanwhile ---
    log_every: float = 60.0  # seconds between lines of progress, where stderr is no terminal
    log_file: str | None = None  # to which those lines are added as well


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """A way to search for translations: greedily, with a beam, or drawn at random.

    Raises:
        ValueError: If a value is out of its range, or a beam is to be sampled.
    """

    beam_size: int = 1  # hypotheses followed at once; 1: greedy search
    length_penalty: float = 1.0  # α ≥ 0: beams are ranked by log_prob / ((5 + length) / 6)^α
    beam_patience: float = 1.0  # beams stop at so many times beam_size ended; inf: exact search
    sample: bool = False  # draw each token at random instead
    temperature: float = 1.0  # of sampling: below 1 safer, above 1 more varied
    top_k: int = 0  # of sampling: only from the so many most probable tokens; 0: all
    top_p: float = 1.0  # of sampling: only from the fewest tokens with this share of probability
    seed: int = 1  # of sampling
    longest_output: int | None = None  # tokens of a translation; none: the model's max_length

    def __post_init__(self) -> None:
        longest = self.longest_output
        ranges = {
            "beam_size": (self.beam_size >= 1, "at least 1"),
            "length_penalty": (0 <= self.length_penalty < math.inf, "a number of at least 0"),
            "beam_patience": (self.beam_patience >= 1, "at least 1; inf for an exact search"),
            "temperature": (0 < self.temperature < math.inf, "a number above 0"),
            "top_k": (self.top_k >= 0, "at least 0, which stands for all tokens"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "seed": (0 <= self.seed < 2**31, "at least 0 and less than 2^31"),
            "longest_output": (longest is None or longest >= 1, "at least 1"),
        }
        for name, (good, expected) in ranges.items():
            if not good:
                raise ValueError(f"{name} must be {expected}, received {getattr(self, name)}.")
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


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """An export: what it can be asked, and how its weights are stored."""

    # What clients can ask for; serving_default is always there, explore only where it is named.
    signatures: tuple[str, ...] = ("beam", "sample", "score", "attention", "tokens")
    beam_size: int = 5  # hypotheses that the signature beam answers with
    length_penalty: float = SearchConfig.length_penalty  # α of the signature beam
    precision: str = "float32"  # of stored weights: float32, bfloat16 or int8
    computation: str = "float32"  # float32, or bfloat16 for servers with bfloat16 units
    longest_output: int | None = None  # tokens of a translation; none: the model's max_length

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
    peak=2e-3,
    warmup_steps=200,
    ema=0.99,
)

# The model of Wu et al. (ACL 2021), "Transformer-Tiny" for Multi30k: 2.6 M weights. Their
# recipe, but half the warm-up, larger batches, a running mean of the weights instead of one of
# checkpoints, and weight decay: worth 0.05 nats of validation loss and 0.4 BLEU there (seed 1).
tiny = TrainConfig(
    vocabulary_size=9900,
    model=ModelConfig(
        num_layers=4, d_model=128, num_heads=4, d_ff=256, dropout=0.3, share_embeddings="all"
    ),
    epochs=20,
    steps_per_epoch=250,
    peak=5e-3,
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
    peak=1e-3,
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
    """Looks a configuration up.

    Args:
        name: One of `PRESETS`.

    Returns:
        `TrainConfig`.

    Raises:
        ValueError: If there is no such preset.
    """
    if name not in PRESETS:
        raise ValueError(f"There is no preset {name!r}: choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]
