"""How a corpus is prepared."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    """A corpus to prepare: its text and its vocabularies.

    Example:

    >>> PrepareConfig("part-*.en.gz", "part-*.de.gz", valid_fraction=0.001).model_type
    'bpe'
    """

    # --- text ---
    train_source: str  # text, .gz, or a .tsv with both columns; 'part-*.gz' for several files
    train_target: str | None = None  # the translations, line by line
    valid_source: str | None = None  # what the best checkpoint is chosen by
    valid_target: str | None = None  # its translations, line by line
    valid_fraction: float | None = None  # instead of files: share of the training text cut off

    # --- vocabulary ---
    vocabularies: str | None = None  # run or prepared corpus to have them from, not to learn any
    vocabulary_size: int | None = 8000  # ids per vocabulary; none: all (types char and word)
    source_vocabulary_size: int | None = None  # of the source, where it has another one
    target_vocabulary_size: int | None = None  # of the target, where it has another one
    vocabulary_sample: int = 1_000_000  # pairs it is learned from, drawn where there are more
    model_type: str = "bpe"  # bpe, unigram, char, word or wordpiece
    source_vocabulary: str | None = None  # WordPiece vocab.txt to take, such as BERT's; none: learn
    target_vocabulary: str | None = None  # the target's
    lowercase: bool = False  # lower-case text before it is cut into pieces
    nfkc: bool = True  # normalise text to Unicode NFKC; wordpiece cleans it in its own way
    joint_vocabulary: bool = True  # one for both sides, as share_embeddings=all needs it
    seed: int = 1  # of what is drawn: the sample, and the part cut off
