"""The table that a training prints when it starts."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from keras_transformer.presets import TrainConfig
from keras_transformer.tokenizers.saved import describe_lost
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer
from keras_transformer.utils import counted

if TYPE_CHECKING:
    from keras_transformer.runs.training_data import TrainingData
    from keras_transformer.transformer import Transformer


def describe_data(config: TrainConfig) -> str:
    """Names the training data: files, prepared corpora, or the built-in dates."""
    if config.corpus:
        return f"corpus {', '.join(config.corpus)}"
    if config.train_source:
        return ", ".join(filter(None, (config.train_source, config.train_target)))
    return "built-in dates" + (f" ({', '.join(config.languages)})" if config.languages else "")


def summarize_training(
    config: TrainConfig, data: "TrainingData", model: "Transformer", steps: int, output: str
) -> str:
    """Describes a training in about ten lines; `config.yaml` of the run has everything."""
    validation = _join(
        config.valid_source or ("held out" if config.train_source else None),
        counted(len(data.valid), "pair"),
        data.fingerprints["train"] == data.fingerprints["valid"] and "the training text itself",
        f"best selected by {config.validate_by}",
        config.patience and f"patience {counted(config.patience, 'epoch')}",
    )
    every = "by time"
    if config.save_every is not None:
        every = f"every {counted(config.save_every, 'step')}"
    kept = config.keep_checkpoints
    rows = {
        "data": f"{describe_data(config)}: {counted(data.fingerprints['train']['pairs'], 'pair')}",
        "vocabulary": _describe_vocabulary(config, data),
        "targets": _describe_targets(data),
        "model": ", ".join(_describe_model(config)),
        "parameters": f"{model.count_params():,}",
        "optimizer": ", ".join(_describe_optimizer(config, steps * config.epochs)),
        "epochs": _join(
            f"{counted(config.epochs, 'epoch')} of {counted(steps, 'step')}",
            f"{config.tokens_per_batch:,} tokens per batch",
            config.accumulation_steps > 1 and f"accumulation over {config.accumulation_steps}",
        ),
        "precision": config.precision,
        "devices": _describe_devices(config, model),
        "validation": validation,
        "checkpoints": f"the best {kept} and the last {kept}, saved {every}",
        "output": _join(output, config.log_file and f"log {config.log_file}"),
    }
    return "\n".join(f"{title:12}{text}" for title, text in rows.items() if text)


def _describe_vocabulary(config, data):
    source, target = (
        # A given vocabulary is WordPiece, whichever type would be learned.
        f"{'wordpiece' if isinstance(tokenizer, WordPieceTokenizer) else config.model_type}, "
        f"{tokenizer.vocabulary_size:,} tokens"
        for tokenizer in data.tokenizers
    )
    is_joint = config.model.share_embeddings == "all" and source == target
    return f"{source}, joint" if is_joint else f"source {source}; target {target}"


def _describe_targets(data):
    """Describes the targets that their vocabulary cannot write; empty if there are none."""
    if "corpus" in data.source:
        return "; ".join(filter(None, (corpus.lost for corpus, _ in data.source["corpus"])))
    targets = [pair[1] for pair in data.source["pairs"]]
    return describe_lost(data.tokenizers[1].model, targets)


def _describe_model(config: TrainConfig) -> Iterator[str]:
    model = config.model
    encoder, decoder = model.depths
    depth = counted(encoder, "layer") if encoder == decoder else f"{encoder} + {decoder} layers"
    yield f"{depth}, d_model {model.d_model}"
    yield f"{counted(model.num_heads, 'head')}, d_ff {model.d_ff}, dropout {model.dropout:g}"
    yield f"{model.norm}-norm, {model.positions} positions, max_length {model.max_length}"
    if config.start_from:
        yield f"fine-tuned from {config.start_from}"
    if config.freeze:
        yield f"frozen: {' '.join(config.freeze)}"


def _describe_optimizer(config: TrainConfig, total_steps: int) -> Iterator[str]:
    """Describes Adam, its schedule, and the options that are not off."""
    rate = "the paper's" if config.learning_rate is None else f"{config.learning_rate:g}"
    short = f" (the training has {total_steps:,})" if total_steps <= config.warmup_steps else ""
    yield f"Adam, learning rate {rate}, warm-up {counted(config.warmup_steps, 'step')}{short}"
    options: dict[str, Any] = {
        "cooldown steps": config.cooldown_steps,
        "label smoothing": config.label_smoothing,
        "R-Drop": config.rdrop,
        "weight decay": config.weight_decay,
        "clip norm": config.clip_norm,
        "EMA": config.ema,
    }
    yield from (f"{name} {value:g}" for name, value in options.items() if value)


def _describe_devices(config, model):
    replicas = model.distribute_strategy.num_replicas_in_sync
    return _join(
        f"strategy {config.strategy}, {counted(replicas, 'replica')}",
        model.parallel_microbatches > 1 and f"{model.parallel_microbatches} parallel microbatches",
        config.jit_compile and "XLA",
    )


def _join(*texts):
    return ", ".join(text for text in texts if text)
