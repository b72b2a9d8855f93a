"""keras_transformer: the encoder–decoder Transformer as Keras 3 layers, with training and serving.

Importing the package imports Keras and registers the classes of saved models. Other modules are
imported when a public name is first used (PEP 562): importing a layer loads neither the tokenizers
nor, with another Keras backend, TensorFlow.
"""

import os as _os
import sys as _sys
from importlib import import_module as _import_module

__version__ = "0.1.0"

# The public names, by the modules that they are imported from. `__init__.pyi`, for type checkers
# and editors, lists the same.
_NAMES = {
    "data.dataset": "make_dataset",
    "data.prepared_corpus": "PreparedCorpus",
    "data.text_files": "read_pairs",
    "decoding.beam": "beam_search search",
    "decoding.sampling": "greedy_search sample",
    "kernels.tensorflow.machine": "configure_threads inter_op_threads",
    "layers.attention": "MultiHeadAttention dot_product_attention",
    "layers.decoder": "Decoder DecoderLayer",
    "layers.encoder": "Encoder EncoderLayer",
    "layers.masks": "causal_mask combine key_mask padding_mask",
    "layers.positional_embedding": "PositionalEmbedding sinusoidal_encoding",
    "layers.positions": "BucketedPositions DisentangledPositions Positions RelativePositions "
    "RotaryPositions",
    "layers.stack": "FeedForward",
    "presets": "ExportConfig ModelConfig PRESETS PrepareConfig SearchConfig TrainConfig get_preset",
    "runs.averaging": "average_checkpoints",
    "runs.opening": "load",
    "runs.resume_training": "ResumeTraining",
    "runs.training_data": "prepare",
    "runs.validation": "EMAValidation TranslationScores ema_weights",
    "serving.saved_model": "export load_saved_model",
    "serving.structure": "check_structure",
    "serving.trial": "check",
    "special_ids": "END PAD START UNK",
    "tokenizers.subword": "SubwordTokenizer",
    "tokenizers.tokenizer": "Tokenizer",
    "tokenizers.wordpiece": "WordPieceTokenizer",
    "tools.ctranslate2": "export_ctranslate2",
    "tools.curves": "plot_history plot_learning_rate plot_position_encoding plot_run plot_runs "
    "save_run_plot",
    "tools.importers.importing": "import_model",
    "tools.plots": "plot_alignment plot_attention plot_token_probabilities",
    "training.distribution": "make_strategy",
    "training.losses": "MaskedAccuracy Perplexity SmoothedCrossEntropy TargetTokens",
    "training.optimizer": "EMAAdam StopOnDivergence WarmupInverseSqrt",
    "training.token_trainer": "TokenTrainer",
    "training.word_vectors": "Coverage initialize_embeddings",
    "transformer": "Transformer",
    "translation.inspection": "attention_maps token_probabilities",
    "translation.translator": "Translator",
}
_HOME_OF = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)

# Modules with classes that Keras needs to load a saved model.
_REGISTERED = (
    "transformer",
    "training.losses",
    "training.optimizer",
)
LIGHT = "KERAS_TRANSFORMER_LIGHT"  # set to 1 to import the package without Keras

# The packages of the extra `all`, by the modules that are imported.
OPTIONAL = {
    **{name: name for name in ("babel", "matplotlib", "sacrebleu", "safetensors")},
    **{name: name for name in ("sentencepiece", "tensorboard", "tokenizers", "werkzeug")},
    "tensorflow_serving": "tensorflow-serving-api",
    "tensorflow_text": "tensorflow-text",
    "yaml": "pyyaml",
}


def explain_missing(what: str, error: ModuleNotFoundError) -> str | None:
    """Explains which extra a feature needs, if one of its packages is missing; else None."""
    package = OPTIONAL.get((error.name or "").partition(".")[0])
    return package and f"{what} needs {package}: pip install 'keras-encoder-decoder[all]'."


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'keras_transformer' has no attribute {name!r}")
    try:
        home = _import_module(f"keras_transformer.{_HOME_OF[name]}")
    except ModuleNotFoundError as error:
        if sentence := explain_missing(f"keras_transformer.{name}", error):
            raise ModuleNotFoundError(sentence, name=error.name) from None
        raise
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    modules = {name for name, value in globals().items() if isinstance(value, type(_sys))}
    return sorted({*globals(), *__all__} - modules)


def _starts_light() -> bool:
    """Returns whether to postpone importing Keras, which takes seconds.

    This is the case in the command `keras-transformer`, in `python -m keras_transformer…`, and if
    the environment variable `LIGHT` is set, as in processes that only read or encode files.
    """
    program = _os.path.basename((_sys.argv or [""])[0])  # "-m" while Python locates the module
    return (
        bool(_os.environ.get(LIGHT))
        or program == "keras-transformer"
        or (program == "-m" and any(x.startswith("keras_transformer") for x in _sys.orig_argv))
    )


if not _starts_light():
    for _module in _REGISTERED:
        _import_module(f"keras_transformer.{_module}")
