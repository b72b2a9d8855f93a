"""Named configurations: how large a model is and how it is trained.

`TrainConfig` is what `keras-transformer train` takes; every field is an option of the command
line. `PRESETS` maps the names that `--preset` knows to configurations.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The architecture: arguments of `Transformer`."""

    num_layers: int = 6  # N, of the encoder and of the decoder
    d_model: int = 512  # D, width of the model
    num_heads: int = 8  # H, must divide d_model
    d_ff: int = 2048  # inner width of the feed-forward networks
    dropout: float = 0.1  # of sublayer outputs and embeddings, in training
    norm: str = "post"  # post (the paper) or pre
    activation: str = "relu"  # of the feed-forward networks
    positions: str = "sinusoidal"  # sinusoidal or learned
    share_embeddings: str = "target"  # none, target (with the softmax) or all
    max_length: int = 256  # longest sentence, in tokens


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One training: its data, vocabulary, model and recipe."""

    # --- data: the built-in dates when no file is named ---
    train_source: str | None = None  # text, .gz, or a .tsv with both columns
    train_target: str | None = None  # the translations, line by line
    valid_source: str | None = None  # what the best checkpoint is chosen by
    valid_target: str | None = None
    languages: tuple[str, ...] = ()  # of the dates; empty: the default ones

    # --- vocabulary ---
    vocabulary_size: int | None = 8000  # ids per vocabulary; None: all characters (type char)
    model_type: str = "bpe"  # bpe, unigram, char or word
    lowercase: bool = False  # lower-case text before it is cut into pieces
    nfkc: bool = True  # normalise text to Unicode NFKC

    # --- model ---
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)

    # --- recipe ---
    epochs: int = 20  # passes over the training data
    tokens_per_batch: int = 8192  # rows × padded length of the longer side, all replicas
    label_smoothing: float = 0.1  # share spread evenly over the vocabulary
    peak: float | None = None  # highest learning rate; None: the paper's, (D · warm-up)^-0.5
    warmup_steps: int = 4000  # updates until the learning rate peaks
    precision: str = "float32"  # float32, mixed_bfloat16 or mixed_float16
    strategy: str = "auto"  # auto (all GPUs, else the CPU), one or mirrored
    jit_compile: bool = False  # compile training steps with XLA, once per padded shape
    seed: int = 1  # of everything random


# Written dates to ISO 8601, in minutes on two cores: `make demo`.
dates = TrainConfig(
    vocabulary_size=None,
    model_type="char",
    model=ModelConfig(
        num_layers=2, d_model=128, num_heads=4, d_ff=512, max_length=64, share_embeddings="all"
    ),
    epochs=2,
    tokens_per_batch=2048,
    label_smoothing=0.0,
    peak=1.5e-3,
    warmup_steps=200,
)

# Wu et al. (ACL 2021), "Transformer-Tiny" for Multi30k: 2.6 M weights.
tiny = TrainConfig(
    vocabulary_size=9900,
    model=ModelConfig(
        num_layers=4, d_model=128, num_heads=4, d_ff=256, dropout=0.3, share_embeddings="all"
    ),
    epochs=100,
    peak=5e-3,
    warmup_steps=2000,
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


def get_preset(name):
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
