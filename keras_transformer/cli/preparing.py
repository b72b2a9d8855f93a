"""The command `prepare`."""

import tyro

from keras_transformer.data.prepared.prepare_config import PrepareConfig


def prepare(
    output: str,
    corpus: tyro.conf.OmitArgPrefixes[PrepareConfig],
    processes: int | None = None,
) -> None:
    """Tokenize a corpus of any size once, for train --corpus.

    The same text and options give the same bytes. Interrupted, the same command goes on from the
    last whole shard.

    Args:
        output: Directory to make.
        corpus: Its text and its vocabularies.
        processes: How many tokenize; none: one for each core.
    """
    from keras_transformer.runs.training_data import prepare

    prepare(corpus, output, processes)
