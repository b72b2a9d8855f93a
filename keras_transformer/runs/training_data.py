"""What a training reads: text in memory, prepared corpora, or text that is prepared unasked."""

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from typing import Any

from keras_transformer.corpora.configured import load_corpus, load_valid
from keras_transformer.corpora.corpus import fingerprint
from keras_transformer.corpora.drawing import draw_rows
from keras_transformer.corpora.lines import text_size
from keras_transformer.corpora.pair import Pair
from keras_transformer.corpora.parallel_text import ParallelText
from keras_transformer.data.prepared.prepare import prepare_corpus
from keras_transformer.data.prepared.prepared_corpus import PreparedCorpus
from keras_transformer.presets import PrepareConfig, TrainConfig
from keras_transformer.runs import files
from keras_transformer.runs.configuration import paragraphs
from keras_transformer.runs.prepared import VOCABULARY, parse_corpora
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.vocabularies import learn_vocabularies
from keras_transformer.training.cluster import cluster_of
from keras_transformer.typing import Pairs, Path

# Bytes of text, about, up to which it is read into memory: half a million pairs, which take some
# hundred MB as strings and a minute to tokenize. Whatever is larger is worth its place on disk.
MOST_IN_MEMORY = 64_000_000


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """What a training reads.

    Attributes:
        source: What `make_dataset` takes for it: `pairs` and their tokenizers, or a `corpus`.
        valid: List of `Pair` to validate by.
        tokenizers: The source and the target tokenizer, one object if they are the same.
        fingerprints: Those of `train` and `valid`, for `data.json`.
    """

    source: dict[str, Any]
    valid: list[Pair]
    tokenizers: "tuple[saved.Saved, saved.Saved]"
    fingerprints: dict[str, Any]

    @property
    def digest(self) -> str:
        """A string that is another where text or vocabularies are."""
        models = [hashlib.sha256(tokenizer.model).hexdigest() for tokenizer in self.tokenizers]
        return json.dumps([self.fingerprints, models], sort_keys=True)


def open_data(
    config: TrainConfig, output: Path, resume: bool, accept_changed_text: bool = False
) -> TrainingData:
    """Opens what a training reads. Whichever way that is, the training will be the same.

    What that is goes to stderr, before anything else is done with it.

    Args:
        config: `TrainConfig`.
        output: The run directory. Text that is larger than `MOST_IN_MEMORY` is prepared into
            `corpus` in it; at first into a directory beside it (`move_in`).
        resume: Whether to go on with the run in `output`.
        accept_changed_text: Whether text is to be read anew that was prepared in it.

    Raises:
        ValueError: If the text or a corpus is at fault.
    """
    mix = _prepared(config, output, resume, accept_changed_text)
    corpus = None if mix else load_corpus(config)
    print(next(paragraphs(config)), file=sys.stderr, flush=True)
    if corpus is None:
        return _of_corpora(config, mix)
    tokenizers = _tokenizers(config, corpus.train, output, resume)
    source = dict(zip(("source_tokenizer", "target_tokenizer"), tokenizers, strict=True))
    prints = {"train": fingerprint(corpus.train), "valid": fingerprint(corpus.valid)}
    return TrainingData({"pairs": corpus.train} | source, corpus.valid, tokenizers, prints)


def train_tokenizers(config: TrainConfig, pairs: Pairs) -> "tuple[saved.Saved, saved.Saved]":
    """Learns the vocabularies: one of both sides when all embeddings are shared, else two.

    Args:
        config: `TrainConfig`.
        pairs: The training pairs.

    Returns:
        The source and the target tokenizer.
    """
    rows = draw_rows(len(pairs), config.vocabulary_sample, config.seed)
    options = {name: getattr(config, name) for name in (*VOCABULARY, *files.VOCABULARIES)}
    joint = config.model.share_embeddings == "all"
    models = learn_vocabularies(lambda: (pairs[row] for row in rows), **options, joint=joint)
    source, target = map(saved.open_model, models)
    return source, source if joint else target


def move_in(data: TrainingData, output: Path, run: Path) -> None:
    """Moves what was prepared beside the run directory `output` into `run`, which is or will be it.

    Nothing is moved where `data` was not prepared for this run, or is in it already.
    """
    if any(corpus.path == _beside(output) for corpus, _ in data.source.get("corpus", ())):
        shutil.rmtree(os.path.join(run, files.CORPUS), ignore_errors=True)
        os.replace(_beside(output), os.path.join(run, files.CORPUS))


def move_out(output: Path) -> None:
    """Moves it back, so that the next start finds it: the run directory is going to be removed."""
    inside = os.path.join(output, files.CORPUS)
    if os.path.exists(inside):
        os.replace(inside, _beside(output))


def _beside(output):
    return f"{os.fspath(output).rstrip('/')}.corpus"


def _tokenizers(config, pairs, output, resume):
    """The vocabularies: those of the run that goes on or is started from, else new ones."""
    if resume or config.start_from is not None:
        return saved.load(output if resume else config.start_from)
    return train_tokenizers(config, pairs)


def _prepared(config, output, resume, accept_changed_text):
    """List of (`PreparedCorpus`, weight); none where text is to be read into memory."""
    if config.corpus:
        corpora = parse_corpora(config.corpus)
        return [(PreparedCorpus(path), weight) for path, weight in corpora]
    if config.train_source is None:
        return []
    inside = os.path.join(output, files.CORPUS)
    if resume and not accept_changed_text and os.path.exists(inside):
        return [(PreparedCorpus(inside), 1.0)]
    if _size(config) <= MOST_IN_MEMORY:
        return []
    if cluster_of(config.strategy) is not None:
        raise ValueError(
            f"{config.train_source} is too large for each worker to read it into memory: prepare "
            "it first (keras-transformer prepare), and give all of them the corpus by --corpus."
        )
    path = _beside(output)
    prepare_corpus(_preparation(config, output if resume else config.start_from), path)
    return [(PreparedCorpus(path), 1.0)]


def _size(config):
    """Bytes of the text to train on, about."""
    text = ParallelText(config.train_source, config.train_target)
    return sum(text_size(name) for pair in text.files for name in pair if name is not None)


def _preparation(config, vocabularies):
    """What makes of the text the corpus that it would be in memory."""
    names = {field.name for field in dataclasses.fields(PrepareConfig)}
    same = {k: v for k, v in vars(config).items() if k in names}
    joint = config.model.share_embeddings == "all"
    return PrepareConfig(**same, vocabularies=vocabularies, joint_vocabulary=joint)


def _of_corpora(config, mix):
    """The data that prepared corpora are."""
    first = mix[0][0]
    valid = first.valid if config.valid_source is None else load_valid(config)
    train = [corpus.fingerprints["train"] for corpus, _ in mix]
    if len(mix) > 1:
        parts = [[part, weight] for part, (_, weight) in zip(train, mix, strict=True)]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        train = [{"pairs": sum(part["pairs"] for part in train), "sha256": digest}]
    prints = {"train": train[0], "valid": fingerprint(valid)}
    return TrainingData({"corpus": mix}, valid, first.tokenizers, prints)
