"""Writes a trained translator in the format of CTranslate2, the fastest engine for CPUs.

Needs the package ctranslate2 (extra `bench`). Text is not part of that format: CTranslate2 reads
and writes the pieces of the vocabularies (`source.spm` or `source.wordpiece`, and the target's),
which are saved beside the model.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.layers.positional_embedding import sinusoidal_encoding
from keras_transformer.layers.positions import BucketedPositions, RelativePositions
from keras_transformer.presets.options import ABSOLUTE
from keras_transformer.special_ids import END, START, UNK
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.tokenizer import check_tokenizer
from keras_transformer.training.keras_workarounds import check_weights
from keras_transformer.translation.ensemble import Ensemble
from keras_transformer.utils import Path, check_is_free, creating

if TYPE_CHECKING:
    from keras_transformer.translation.translator import Translator


def export_ctranslate2(translator: "Translator", output: Path) -> Path:
    """Writes a model directory that `ctranslate2.Translator` opens.

    Greedy translations are equal except for ties that the last bits of float32 decide. CTranslate2
    ranks beams by log_prob / length^α, as `beam_search` does with `length_norm="length"`, but stops
    at N ended hypotheses even if an unfinished one ranks higher.

    Args:
        translator: `Translator`.
        output: Directory to create, which may exist if it is empty.

    Returns:
        `output`.

    Raises:
        ValueError: If `output` is not empty, ctranslate2 is not installed, a tokenizer cannot be
            saved, or the model has weights that are not finite, or an activation or positional
            encoding that CTranslate2 does not support.

    Example:

    >>> export_ctranslate2(keras_transformer.load("runs/dates"), "dates.ct2")
    'dates.ct2'
    """
    try:
        import ctranslate2.specs
    except ImportError as error:
        raise ValueError(
            'ctranslate2 is not installed: pip install "keras-encoder-decoder[bench]".'
        ) from error
    if isinstance(translator.model, Ensemble):
        raise ValueError("CTranslate2 has no ensembles: export one model, or a SavedModel.")
    check_is_free(output)
    tokenizers: dict[str, Any] = {
        "source": translator.source_tokenizer,
        "target": translator.target_tokenizer,
    }
    for side, tokenizer in tokenizers.items():
        check_tokenizer(side, tokenizer, ["save"])
    model = translator.model
    check_weights(model, "The model")
    spec = _make_spec(ctranslate2.specs.transformer_spec, model)
    epsilon = model.encoder.layers[0].feed_forward_norm.epsilon
    spec.config.add_attribute("layer_norm_epsilon", epsilon)
    spec.config.add_source_eos = translator.source_end
    _set_stack(spec.encoder, model.encoder, model.source_embedding, spec.encoder.embeddings[0])
    _set_stack(spec.decoder, model.decoder, model.target_embedding, spec.decoder.embeddings)
    _set_softmax(spec.decoder.projection, model)
    _set_vocabularies(spec, *tokenizers.values())
    spec.validate()
    spec.optimize()  # writes shared matrices once
    with creating(output) as temporary:
        spec.save(temporary)
        saved.write(temporary, list(tokenizers.values()))
    return output


def _make_spec(specs, model):
    """CTranslate2's specification of the model, still without weights."""
    positions: dict[str, dict[str, Any]] = {
        "relative": {"relative_position": True},
        "bucketed": {"relative_attention_bias": True},
        "rotary": {"rotary_dim": 0, "rotary_interleave": True},  # 0: the whole head
        **{name: {} for name in (*ABSOLUTE, "none")},
    }
    if model.positions not in positions:
        raise ValueError(
            f"CTranslate2 has no {model.positions} positions, only {', '.join(positions)}: export "
            "a SavedModel instead."
        )
    options = {"pre_norm": model.norm == "pre", "activation": _activation(model.activation)}
    options |= positions[model.positions]
    return specs.TransformerSpec(
        specs.TransformerEncoderSpec(model.encoder.num_layers, model.num_heads, **options),
        specs.TransformerDecoderSpec(model.decoder.num_layers, model.num_heads, **options),
    )


def _encodings(embedding):
    """The encodings added to embeddings; CTranslate2 always adds some, unless attention does."""
    if embedding.positions == "learned":
        return np.array(embedding.position_embeddings)
    if embedding.positions == "sinusoidal":
        how = embedding.first_position, embedding.frequencies
        return np.array(sinusoidal_encoding(embedding.max_length, embedding.d_model, *how))
    return np.zeros((embedding.max_length, embedding.d_model), "float32")


def _set_positions(spec, positions):
    """Copies the weights of a positional encoding in attention."""
    if isinstance(positions, RelativePositions):
        spec.relative_position_keys = np.array(positions.key_table)
        spec.relative_position_values = np.array(positions.value_table)
    elif isinstance(positions, BucketedPositions):
        spec.relative_attention_bias = np.array(positions.biases)
        spec.relative_attention_max_distance = np.int32(positions.max_distance)


def _set_stack(spec, stack, embedding, embedding_spec):
    """Copies an encoder or a decoder with its embedding."""
    embedding_spec.weight = np.array(embedding.embeddings)
    spec.scale_embeddings = True
    if hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = _encodings(embedding)
    if stack.final_norm:
        _set_norm(spec.layer_norm, stack.final_norm)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        attention = layer.self_attention
        first, last = layer_spec.self_attention.linear
        _set_projections(first, attention, "query", "key", "value")
        _set_output(last, attention)
        _set_positions(layer_spec.self_attention, attention.positions)
        _set_norm(layer_spec.self_attention.layer_norm, layer.self_attention_norm)
        if layer.cross_attention:
            query, memory, last = layer_spec.attention.linear
            _set_projections(query, layer.cross_attention, "query")
            _set_projections(memory, layer.cross_attention, "key", "value")
            _set_output(last, layer.cross_attention)
            _set_norm(layer_spec.attention.layer_norm, layer.cross_attention_norm)
        _set_dense(layer_spec.ffn.linear_0, layer.feed_forward.inner)
        _set_dense(layer_spec.ffn.linear_1, layer.feed_forward.outer)
        _set_norm(layer_spec.ffn.layer_norm, layer.feed_forward_norm)


def _set_projections(spec, attention, *names):
    """Projections of the same input, concatenated: (outputs, inputs)."""
    denses = [getattr(attention, f"{name}_dense") for name in names]
    kernels = [np.array(dense.kernel) for dense in denses]
    biases = [np.array(dense.bias) for dense in denses]
    spec.weight = np.concatenate([kernel.reshape(len(kernel), -1).T for kernel in kernels])
    spec.bias = np.concatenate([bias.reshape(-1) for bias in biases])


def _set_output(spec, attention):
    kernel = np.array(attention.output_dense.kernel)
    spec.weight = kernel.reshape(-1, kernel.shape[-1]).T
    spec.bias = np.array(attention.output_dense.bias)


def _set_dense(spec, dense):
    spec.weight, spec.bias = np.array(dense.kernel).T, np.array(dense.bias)


def _set_softmax(spec, model):
    """Copies the output projection, with what suppresses ids as part of its bias."""
    bias = model.target_embedding.output_bias
    if model.output_projection:
        _set_dense(spec, model.output_projection)
        bias = model.output_projection.bias
    else:
        spec.weight = np.array(model.target_embedding.embeddings)
    biases = [np.array(some) for some in (bias, model.suppressed) if some is not None]
    if biases:
        spec.bias = sum(biases)


def _set_norm(spec, norm):
    spec.gamma, spec.beta = np.array(norm.gamma), np.array(norm.beta)


def _activation(function):
    """CTranslate2's name of an activation."""
    from ctranslate2.specs.common_spec import Activation

    names = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "tanh": "Tanh", "sigmoid": "Sigmoid"}
    name = getattr(function, "__name__", str(function))
    if name not in names:
        raise ValueError(
            f"CTranslate2 has no activation {name!r}, only {', '.join(names)}: export a SavedModel "
            "instead."
        )
    return Activation[names[name]]


def _set_vocabularies(spec, source_tokenizer, target_tokenizer):
    """Registers the pieces of both sides, and the names of the special ones.

    CTranslate2 has one name for both sides: the target's. Source pieces are only read, and those
    missing from the vocabulary, such as [UNK] beside a target's <unk>, are unknown anyway.
    """
    source, target = _pieces(source_tokenizer), _pieces(target_tokenizer)
    special = target[: END + 1]
    spec.register_source_vocabulary([*special, *source[len(special) :]])
    spec.register_target_vocabulary(target)
    spec.config.unk_token, spec.config.eos_token = special[UNK], special[END]
    spec.config.bos_token = spec.config.decoder_start_token = special[START]


def _pieces(tokenizer):
    """All pieces of a vocabulary, in the order of their ids."""
    pieces = tokenizer.pieces(np.arange(tokenizer.vocabulary_size, dtype="int32"))
    return [piece.decode() for piece in pieces.numpy().tolist()]
