"""Training, step by step: data, vocabulary, model, compile, fit, save.

    keras-transformer train --preset dates --output runs/dates
    keras-transformer train --preset tiny --train-source A.en --train-target A.de \
        --valid-source V.en --valid-target V.de --output runs/ende
"""

import contextlib
import dataclasses
import json
import sys

import keras

from keras_transformer.data.dataset import make_dataset
from keras_transformer.kernels.tensorflow import machine
from keras_transformer.presets import PRECISIONS, TrainConfig
from keras_transformer.runs.resume_training import save_on_signals
from keras_transformer.runs.run import LOGS, MODEL, Run
from keras_transformer.runs.run_callbacks import Progress, RunCheckpoint, summarize_training
from keras_transformer.runs.training_data import check_training, load_word_vectors, open_data
from keras_transformer.runs.validation import RunValidation
from keras_transformer.training.distribution import broadcast_from_chief, check_equal, make_strategy
from keras_transformer.training.keras_workarounds import check_weights
from keras_transformer.training.losses import (
    MaskedAccuracy,
    Perplexity,
    SmoothedCrossEntropy,
    TargetTokens,
)
from keras_transformer.training.optimizer import EMAAdam, WarmupInverseSqrt
from keras_transformer.transformer import Transformer
from keras_transformer.utils import Path, counted


def train(config: TrainConfig, output: Path, resume: bool = False) -> dict[str, list[float]]:
    """Trains a model into a run directory.

    Args:
        config: `TrainConfig`, such as `presets.dates`; `dataclasses.replace` changes fields.
        output: Directory to create. It may exist only if it is empty, or with `resume`.
        resume: Whether to resume the training in `output` from its last checkpoint, on the same
            data and vocabulary. The final weights are those of an uninterrupted training. `config`
            must be that of the run (`Run.read_config`), except for the fields in
            `runs.training_data.MUTABLE_FIELDS`.

    Returns:
        The history of Keras, a dict of lists: `loss`, `val_loss` and so on, one entry per epoch.

    Raises:
        ValueError: If the data, the configuration or the directory is invalid.
        FloatingPointError: If the training diverges: it stops at the first step whose loss or
            gradient norm is not finite. Earlier checkpoints are kept; resume from them with a
            smaller learning rate.
    """
    return train_run(config, check_training(config, output, resume), resume)


def train_run(config: TrainConfig, run: Run, resume: bool = False) -> dict[str, list[float]]:
    """Trains a model into the run that `check_training` has returned; see `train`."""
    if resume:
        run.checkpoints.lock()
    try:
        return _train(config, run, resume)
    finally:
        run.checkpoints.release()


def _train(config, run, resume):
    parallel_microbatches = _configure_parallelism(config)
    strategy = make_strategy(config.strategy, config.logical_devices)
    config = _adapt_to_machine(config, run, resume, strategy)
    keras.utils.set_random_seed(config.seed)

    # --- data and vocabulary ---
    data = open_data(config, run, resume)
    if resume:
        run.check_same_text(data.fingerprints)
    check_equal(strategy, "texts", json.dumps(data.fingerprints, sort_keys=True))
    models = [tokenizer.model.hex() for tokenizer in data.tokenizers]
    check_equal(strategy, "vocabularies", "".join(models))
    dataset = _make_training_dataset(config, data)
    validation = RunValidation(config, data.valid, data.tokenizers)
    steps = config.steps_per_epoch or dataset.stream.batches_per_pass

    # --- model ---
    is_begun = resume and run.read_state() is not None
    with strategy.scope():
        model = _make_model(config, data, strategy, is_begun)
        _compile_model(model, config, steps * config.epochs)
        model.parallel_microbatches = parallel_microbatches

    # --- run directory: written only after everything above has succeeded ---
    with contextlib.nullcontext() if resume else run.created(config, data):
        checkpoint = RunCheckpoint(run, dataset, config)
        checkpoint.open()
        if checkpoint.state["finished"] and (text := _explain_end(checkpoint, config, run)):
            print(text, file=sys.stderr)
            return {}
        checkpoint.set_model(model)
        checkpoint.restore()
        if resume:  # only now, as nothing can fail before the first step
            run.update(config, data)

        # --- fit ---
        lines = summarize_training(config, data, model, steps, str(run))
        if done := checkpoint.position.epoch * steps + checkpoint.position.step:
            lines += f"\nresumed from step {done:,}"
        print(lines, file=sys.stderr, flush=True)
        callbacks = [*validation.callbacks, checkpoint]  # later ones read the logs of earlier ones
        if run.writes:
            callbacks.append(keras.callbacks.TensorBoard(run.file(LOGS)))
            callbacks.append(Progress(steps, checkpoint))
        with save_on_signals(checkpoint), contextlib.redirect_stdout(sys.stderr):
            return model.fit(
                dataset,
                validation_data=validation.dataset,
                epochs=config.epochs,
                steps_per_epoch=steps,
                shuffle=False,  # the dataset shuffles
                callbacks=callbacks,
                verbose=1 if sys.stderr.isatty() else 0,  # else `Progress` logs
            ).history


def _configure_parallelism(config):
    """Returns the number of parallel microbatches; if several, configures TensorFlow's threads."""
    slices = config.parallel_microbatches
    # XLA uses all cores for one operation; logical devices share them already.
    if slices == 1 or config.jit_compile or config.logical_devices > 1:
        return slices or 1
    threads = machine.configure_threads(None if slices else machine.MAX_SLICES)
    return slices or min(threads, machine.MAX_SLICES)


def _adapt_to_machine(config, run, resume, strategy):
    """Chooses precision and XLA, if left open, as the resumed run does or as is faster here."""
    precision, xla = config.precision, config.jit_compile
    if resume:
        recorded = run.read_config()
        precision = recorded.precision if precision == "auto" else precision
        xla = recorded.jit_compile if xla is None else xla
    chosen = {
        "precision": PRECISIONS.index(machine.choose_precision(precision)),
        "xla": machine.has_gpu() if xla is None else xla,
    }
    chosen = {name: int(value) for name, value in broadcast_from_chief(strategy, chosen).items()}
    precision, xla = PRECISIONS[chosen["precision"]], bool(chosen["xla"])
    return dataclasses.replace(config, precision=precision, jit_compile=xla)


def _make_training_dataset(config, data):
    """Makes the dataset of training batches, repeated without end."""
    options = dict(
        tokens_per_batch=config.tokens_per_batch,
        max_length=config.model.max_length,
        seed=config.seed,
        repeat=True,
        source_end=config.source_end,
        fixed_shapes=config.jit_compile,
    )
    if data.corpora:
        return make_dataset(corpus=data.corpora, **options)
    return make_dataset(data.pairs, *data.tokenizers, **options)


def _make_model(config, data, strategy, is_begun):
    """Makes the model with random weights, those of another run, or word vectors."""
    model = Transformer(
        *(tokenizer.vocabulary_size for tokenizer in data.tokenizers),
        **dataclasses.asdict(config.model),
        dtype=config.precision,
    )
    for name in config.freeze:
        getattr(model, name.replace("-embeddings", "_embedding")).trainable = False
    if is_begun:  # the checkpoint has the weights
        return model
    if config.start_from is not None:
        name = Run(config.start_from).file(MODEL)
        model.load_weights(name)
        check_weights(model, name)
    if config.pretrained:
        check_equal(strategy, "word vectors", load_word_vectors(config, model, data.tokenizers))
    return model


def _compile_model(model, config, total_steps):
    """Compiles a model with optimizer ("Attention Is All You Need", §5.3), loss and metrics."""
    schedule = WarmupInverseSqrt(
        d_model=None if config.learning_rate else config.model.d_model,
        peak=config.learning_rate,
        warmup_steps=config.warmup_steps,
        cooldown_steps=config.cooldown_steps,
        total_steps=total_steps,
    )
    optimizer = EMAAdam(
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
        rdrop=config.rdrop,
    )
    model.optimizer.build(model.trainable_variables)


def _explain_end(checkpoint, config, run):
    """Explains why nothing is left to train, and how to continue; empty if epochs are left."""
    done = checkpoint.position.epoch
    if done >= config.epochs:
        return (
            f"{run} has completed its {counted(done, 'epoch')}: to continue, --resume with "
            "more --epochs."
        )
    if checkpoint.position.ended:
        return (
            f"{run} was stopped by --patience {config.patience} after epoch {done} of "
            f"{config.epochs}: to continue, --resume with a larger --patience or none."
        )
    return ""
