"""Training, from top to bottom: data, vocabulary, model, compile, fit, save.

    keras-transformer train --preset dates --output runs/dates
    keras-transformer train --preset tiny --train-source A.en --train-target A.de \
        --valid-source V.en --valid-target V.de --output runs/ende
"""

import contextlib
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterator

import keras

from keras_transformer.atomic_files import creating, remove_leftovers
from keras_transformer.data.dataset import make_dataset
from keras_transformer.kernels.tensorflow import threads
from keras_transformer.presets import PRECISIONS, TrainConfig
from keras_transformer.runs import files
from keras_transformer.runs.checkpoint import RunCheckpoint
from keras_transformer.runs.checks import check_same_text, check_training
from keras_transformer.runs.configuration import paragraphs
from keras_transformer.runs.progress import Lines, Progress
from keras_transformer.runs.signals import saved_by_signals
from keras_transformer.runs.training_data import move_in, move_out, open_data
from keras_transformer.runs.validation import RunValidation
from keras_transformer.runs.vectors import begin_with_vectors, sides_of
from keras_transformer.streams import lasting_stderr
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.tokenizer import Tokenizer
from keras_transformer.training.cluster import cluster_of
from keras_transformer.training.distribution import (
    broadcast_from_chief,
    check_equal,
    is_chief,
    make_strategy,
)
from keras_transformer.training.divergence import check_weights
from keras_transformer.training.losses import (
    MaskedAccuracy,
    Perplexity,
    SmoothedCrossEntropy,
    TargetTokens,
)
from keras_transformer.training.optimizer import MeanAdam, WarmupInverseSqrt
from keras_transformer.transformer import Transformer, freeze, freeze_embeddings
from keras_transformer.typing import Path
from keras_transformer.wording import counted


@lasting_stderr()
def train(
    config: TrainConfig, output: Path, resume: bool = False, accept_changed_text: bool = False
) -> dict[str, list[float]]:
    """Trains a model into a run directory.

    Args:
        config: `TrainConfig`, such as `presets.dates`; `dataclasses.replace` changes fields.
        output: Directory to make. It may exist only if it is empty, or with `resume`.
        resume: Whether to go on with the training in `output`: from the last point that was saved,
            on the same data and vocabulary, to the weights that it would have had without the stop.
            `config` is that run's (`runs.files.read_config`), but for what may change
            (`runs.checks.MAY_CHANGE`): the curve is the same until a cooldown begins.
        accept_changed_text: Whether to go on though the text is another than the run was begun
            with.

    Returns:
        Keras' history, a dict of lists: `loss`, `val_loss` and so on, one entry per epoch.

    Raises:
        ValueError: If the data, the configuration or the directory is at fault.
        FloatingPointError: If the training diverges: it stops at the first step whose loss or
            gradient norm is not finite. What was saved before stays, to translate with and to
            resume from, with a smaller learning rate.
    """
    check_training(config, output, resume)
    cluster = cluster_of(config.strategy)
    writes = cluster is None or cluster.is_chief
    with files.locked(output) if resume and writes else contextlib.nullcontext():
        return _train(config, output, resume, accept_changed_text)


def _train(config, output, resume, accept_changed_text):
    parallel_microbatches = _parallel_microbatches(config)
    strategy = make_strategy(config.strategy, config.logical_devices)
    config = _choose_precision(config, output, resume, strategy)
    keras.utils.set_random_seed(config.seed)

    # --- data and vocabulary ---
    data = open_data(config, output, resume, accept_changed_text)
    if resume and not accept_changed_text:
        check_same_text(output, data.fingerprints)
    check_equal(strategy, "texts and vocabularies", data.digest)
    dataset = _training_dataset(config, data)
    validation = RunValidation(config, data.valid, *data.tokenizers)
    steps = config.steps_per_epoch or dataset.stream.batches_per_pass

    # --- model ---
    with strategy.scope():
        model = build_model(config, *data.tokenizers)
        coverage = {} if _has_checkpoint(output) else _begin(model, config, data, dataset, strategy)
        _compile_model(model, config, steps * config.epochs)
        model.parallel_microbatches = parallel_microbatches

    # --- run directory: nothing is written before everything above has succeeded ---
    writes = is_chief(strategy)
    begins = writes and not resume
    if begins:
        _create(output, config, data, coverage)
    with _gone_by_failure(output) if begins else contextlib.nullcontext():
        checkpoint = _make_checkpoint(config, output, dataset, validation, writes)
        checkpoint.accept_changes = accept_changed_text
        checkpoint.open()
        if checkpoint.is_finished(config.epochs):
            print(_why_finished(checkpoint, config, output), file=sys.stderr)
            checkpoint.close()
            return {}
        checkpoint.set_model(model)
        checkpoint.restore()
        if resume and writes:  # training is certain to start
            _update(output, config, data, coverage)

        # --- fit ---
        callbacks = _make_callbacks(config, output, checkpoint, validation, steps)
        _introduce(config, data, model, steps, checkpoint)
        with saved_by_signals(checkpoint):
            return _fit(model, dataset, steps, validation.dataset, callbacks, config.epochs)


def _training_dataset(config, data):
    """The batches to train on, pass after pass."""
    return make_dataset(
        **data.source,
        tokens_per_batch=config.tokens_per_batch,
        max_length=config.model.max_length,
        seed=config.seed,
        subword_sampling=config.subword_sampling,
        repeat=True,
    )


def _begin(model, config, data, dataset, strategy):
    """Weights that are not drawn: those of a run, or word vectors; what these cover."""
    if config.start_from is not None:
        name = os.path.join(config.start_from, files.MODEL)
        model.load_weights(name)
        check_weights(model, name)
    coverage = begin_with_vectors(config, model, data.tokenizers, dataset.stream.pairs)
    if coverage:
        check_equal(strategy, "word vectors", json.dumps(coverage, sort_keys=True))
    return coverage


def _has_checkpoint(output):
    return files.read_state(output) is not None


@contextlib.contextmanager
def _gone_by_failure(output: Path) -> Iterator[None]:
    """Removes a run directory whose training fails before there is anything to go on from."""
    try:
        yield
    except Exception:
        if not _has_checkpoint(output) and not files.is_run(output):
            move_out(output)
            shutil.rmtree(output)
        raise


def _introduce(config, data, model, steps, checkpoint):
    """Says what is going to be done."""
    say = Lines(config.log_file)
    text, *recipe = paragraphs(config)
    say(text, quiet=True)  # `open_data` has printed it
    say("\n".join(recipe))
    pairs = counted(data.fingerprints["train"]["pairs"], "pair")
    say(f"{pairs} to train on, {len(data.valid):,} to validate by")
    done = checkpoint.epoch * steps + checkpoint.update
    begin = f", from update {done:,}" if done else ""
    say(f"{model.count_params():,} weights, {counted(steps, 'update')} an epoch{begin}")


def _parallel_microbatches(config):
    """Counts the micro-batches at once; if several, has each core do its own operation."""
    parts = config.parallel_microbatches
    # XLA takes all cores for itself; logical devices share them already.
    if parts == 1 or config.jit_compile or config.logical_devices > 1:
        return parts or 1
    at_once = threads.work_apart(None if parts else threads.MOST_PARTS)
    return parts or min(at_once, threads.MOST_PARTS)


def _choose_precision(config, output, resume, strategy):
    """The configuration with `auto` decided upon: by this machine, or by the run that goes on."""
    from keras_transformer.kernels.tensorflow.precision import choose

    if resume and config.precision == "auto":
        return dataclasses.replace(config, precision=files.read_config(output).precision)
    chosen = PRECISIONS.index(choose(config.precision))
    chosen = int(broadcast_from_chief(strategy, {"precision": chosen})["precision"])
    return dataclasses.replace(config, precision=PRECISIONS[chosen])


def _fit(model, dataset, steps, valid, callbacks, epochs):
    """`model.fit` on an endless dataset, from the epoch on that is under way."""
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
        return model.fit(
            dataset,
            validation_data=valid,
            epochs=epochs,
            steps_per_epoch=steps,
            shuffle=False,  # the dataset shuffles by itself
            callbacks=callbacks,
            verbose=1 if sys.stderr.isatty() else 0,  # else `Progress` tells
        ).history


def _make_checkpoint(config, output, dataset, validation, writes):
    """Makes the callback that saves."""
    checkpoint = RunCheckpoint(
        output,
        dataset,
        validation,
        f"val_{config.validate_by}",
        config.keep_checkpoints,
        config.average,
        config.patience,
        config.save_every,
    )
    checkpoint.points.writes = writes
    return checkpoint


def _make_callbacks(config, output, checkpoint, validation, steps):
    """Makes the callbacks, in the order in which they add to and read the logs."""
    if not checkpoint.points.writes:
        return [*validation.callbacks, checkpoint]
    logs = os.path.join(output, "logs")
    board = keras.callbacks.TensorBoard(logs)
    say = Lines(config.log_file)
    progress = Progress(steps, config.epochs, say, config.log_every, logs, checkpoint)
    return [*validation.callbacks, checkpoint, board, progress]


def build_model(
    config: TrainConfig, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> Transformer:
    """Makes a `Transformer` with fresh weights for two vocabularies."""
    model = Transformer(
        source_tokenizer.vocabulary_size,
        target_tokenizer.vocabulary_size,
        **dataclasses.asdict(config.model),
        dtype=config.precision,
    )
    model.build()
    freeze(model, config.freeze)
    freeze_embeddings(model, sides_of(config) if config.freeze_vectors else ())
    return model


def _compile_model(model, config, total_steps):
    """Gives a model its optimizer ("Attention Is All You Need", §5.3), loss and metrics."""
    schedule = WarmupInverseSqrt(
        d_model=None if config.peak else config.model.d_model,
        peak=config.peak,
        warmup_steps=config.warmup_steps,
        cooldown_steps=config.cooldown_steps,
        total_steps=total_steps,
    )
    optimizer = MeanAdam(
        schedule,
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-9,
        weight_decay=config.weight_decay or None,
        use_ema=config.ema > 0,
        ema_momentum=config.ema,
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(config.label_smoothing),
        metrics=[MaskedAccuracy(), Perplexity(), TargetTokens()],
        jit_compile=config.jit_compile,
        clip_norm=config.clip_norm,
        accumulation_steps=config.accumulation_steps,
    )
    model.optimizer.build(model.trainable_variables)


def _why_finished(checkpoint, config, output):
    """Says why there is nothing left to do, and what changes that."""
    if checkpoint.epoch < config.epochs:
        return (
            f"{output} was ended by --patience {config.patience} after epoch {checkpoint.epoch} of "
            f"{config.epochs}: --resume with a larger --patience, or none, trains on"
        )
    plural = "s" * (checkpoint.epoch != 1)
    return (
        f"{output} has its {checkpoint.epoch} epoch{plural} already: --resume with more --epochs "
        "trains on"
    )


def _update(output, config, data, coverage):
    """Records in a run that is resumed what it is trained with from now on."""
    remove_leftovers(output)
    files.write_config(config, output)
    files.write_data(data.fingerprints | coverage, output)
    move_in(data, output, output)


def _create(output, config, data, coverage):
    """Makes the run directory, whole or not at all."""
    with creating(output) as temporary:
        files.write_data(data.fingerprints | coverage, temporary)
        for folder in ("logs", files.CHECKPOINTS):
            os.makedirs(os.path.join(temporary, folder))
        files.resume_points(temporary).begin()
        files.write_config(config, temporary)
        files.write_examples(temporary, data.valid)
        saved.write(temporary, data.tokenizers)
        move_in(data, output, temporary)
