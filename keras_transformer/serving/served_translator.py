"""What an export saves: the weights, the tokenizers and one graph function for each signature.

Shapes: B batch, S source length, T target length.
"""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.decoding.beam import check_beam_size
from keras_transformer.presets import ExportConfig
from keras_transformer.serving.versions import DEFAULT, SIGNATURES, check_names
from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.training.keras_workarounds import check_weights
from keras_transformer.translation.sentences import LEAST_LOG_PROB
from keras_transformer.translation.text_model import attention_to_source, make_valid
from keras_transformer.translation.translator import Translator, copied

COMPUTATIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16"}  # Keras' dtype policies
MIN_TEMPERATURE = 0.01  # below, the most probable token wins in any case


class StoredWeights(tf.Module):
    """Holds a model's weights in a smaller type.

    Only matrices are stored in the smaller type. The computation stays that of the model's layers:
    each request first converts the stored weights to its dtype. `"int8"` keeps for every output
    channel of a matrix (every row of an embedding) the scale max|w| / 127 and rounds to the nearest
    multiple of it.
    """

    _stored: list[tuple[Any, tf.Variable, tf.Variable | None]]

    def __init__(self, model: keras.Model, precision: str = "float32") -> None:
        super().__init__(name="stored_weights")
        # Their names are those in the checkpoint of an export.
        self.as_they_are, self.bfloat16, self.quantized, self.scales = [], [], [], []
        self.__dict__["_stored"] = stored = []  # not an attribute that would be saved as well
        self._dtype = model.compute_dtype
        for weight in model.weights:
            axes = _input_axes(weight)
            if precision == "float32" or not axes:
                self.as_they_are.append(weight.value)
            elif precision == "bfloat16":
                self.bfloat16.append(tf.Variable(tf.cast(weight.value, tf.bfloat16)))
                stored.append((weight, self.bfloat16[-1], None))
            else:
                largest = tf.reduce_max(tf.abs(weight.value), axis=axes, keepdims=True)
                scale = tf.maximum(largest, 1e-12) / 127
                self.scales.append(tf.Variable(scale))
                self.quantized.append(tf.Variable(tf.cast(tf.round(weight.value / scale), tf.int8)))
                stored.append((weight, self.quantized[-1], self.scales[-1]))

    def in_use(self) -> keras.StatelessScope:
        """Context in which the model computes with the stored values."""
        scope = keras.StatelessScope()
        for weight, variable, scale in self._stored:
            value = variable if scale is None else tf.cast(variable, tf.float32) * scale
            scope.add_update((weight, tf.cast(value, self._dtype)))
        return scope


def _input_axes(weight):
    """The axes of a matrix that its output channels sum over; none if it is not a matrix."""
    if weight.name.endswith("embeddings"):  # a row is an input, or an output of the softmax
        return (1,)
    if weight.name != "kernel" or weight.dtype == "int8":  # weights that Keras quantized stay so
        return ()
    output = weight.path.endswith("attention_output/kernel")  # (H, K, D)
    return tuple(range(len(weight.shape) - 1)) if output else (0,)


class ServedTranslator(tf.Module):
    """The module that `tf.saved_model.save` writes: tokenizers, weights and functions.

    No function raises on content: texts are truncated, numbers out of range are clipped, and
    unknown ids become UNK. Rows do not depend on other rows.

    Attributes:
        functions: {name: tf.function}, called with the tensors that `SIGNATURES` names.
    """

    functions: dict[str, Any]
    _translator: Translator

    def __init__(self, translator: Translator, config: ExportConfig) -> None:
        super().__init__(name="served_translator")
        check_weights(translator.model, "The model")
        check_beam_size(config.beam_size, translator.model.target_vocabulary_size)
        translator = translator.in_precision(COMPUTATIONS[config.computation])
        self.tokenizers = [translator.source_tokenizer, translator.target_tokenizer]
        self.weights = StoredWeights(translator.model, config.precision)
        if config.max_output_length is not None:
            translator = copied(translator, translator.model, config.max_output_length)
        languages = config.source_language, config.target_language
        self._languages = translator.languages.fix(*languages)
        self._config = config
        # Not as attributes of a tf.Module, which would be saved as well.
        self.__dict__["_translator"] = translator
        names = check_names(config.signatures)
        self.__dict__["functions"] = {name: self._function(name) for name in names}

    def _function(self, name):
        """The tf.function of a signature."""
        inputs = SIGNATURES[name].inputs_with(self._languages.inputs)
        specs = [tf.TensorSpec(shape, dtype, key) for key, (shape, dtype) in inputs.items()]
        compute = getattr(self, f"_{name}")

        def serve(*tensors):
            # Servers do not compare requests with the signature's shapes.
            tensors = [
                tf.ensure_shape(tensor, spec.shape)
                for tensor, spec in zip(tensors, specs, strict=True)
            ]
            # The computation waits for the check; otherwise it might raise another error first.
            with tf.control_dependencies(_check_rows(inputs, tensors)):
                values = dict(zip(inputs, map(tf.identity, tensors), strict=True))
            languages = self._take_languages(values)
            with self.weights.in_use():
                results = compute(**values, languages=languages)
            if self._languages.inputs:
                known = tf.reduce_all(tf.not_equal(languages, PAD), axis=1)
                results = {key: _blank(key, value, ~known) for key, value in results.items()}
            return {
                key: tf.ensure_shape(results[key], shape, name=key)
                for key, (shape, _) in SIGNATURES[name].outputs.items()
            }

        return tf.function(serve, input_signature=specs, autograph=False)

    def _take_languages(self, values):
        """Takes the codes out of inputs; returns the tokens, see `LANGUAGES`; PAD if unknown."""
        if not self._languages.sides:
            return None
        known, columns = self._translator.language_ids, []
        for side in self._languages.sides:
            codes = values.pop(f"{side}_language", [getattr(self._languages, side)])
            found = tf.equal(tf.expand_dims(codes, 1), [*known])
            columns.append(tf.reduce_sum(tf.where(found, [*known.values()], PAD), axis=1))
        rows = tf.shape(next(iter(values.values())))[:1]
        return tf.stack([tf.broadcast_to(x, rows) for x in (columns[0], columns[-1])], axis=1)

    def _serving_default(self, text, languages):
        return self._translator.best(text, self._config.search, languages=languages)

    def _beam(self, text, languages):
        search = self._config.search
        answer = self._translator.translate_batch(text, languages=languages, search=search)
        return dict(zip(("text", "log_prob", "score"), answer, strict=True))

    def _sample(self, text, temperature, top_k, top_p, seed, languages):
        temperature = _finite(temperature, 1.0)
        return self._translator.best(
            text,
            self._config.search,
            temperature=tf.clip_by_value(temperature, MIN_TEMPERATURE, 1 / MIN_TEMPERATURE),
            top_k=tf.maximum(top_k, 0),
            top_p=tf.clip_by_value(_finite(top_p, 1.0), 0.0, 1.0),
            seeds=seed,
            languages=languages,
        )

    def _score(self, source, target, languages):
        translator = self._translator
        target, _ = translator.truncate_and_pad(translator.target_tokenizer(make_valid(target)))
        log_prob, tokens = translator.score_batch(source, target, languages)
        return {"log_prob": log_prob, "tokens": tokens}

    def _attention(self, text, languages):
        translator = self._translator
        model = translator.model
        source, empty = translator.read_source(text, languages)
        search = self._config.search.greedy
        tokens, texts, *_ = translator.translate_ids(source, empty, search, languages=languages)
        tokens = tokens[:, 0]
        layers, heads = (translator.default_layer,), range(model.num_heads)
        inputs = translator.begin_target(tokens, languages)
        attention = attention_to_source(model, source, inputs, layers, heads)
        attention = attention[:, translator.languages.num_forced :]
        filled = tf.logical_not(empty)[:, tf.newaxis]  # an empty row has no tokens
        in_source, in_target = (tf.not_equal(ids, PAD) & filled for ids in (source, tokens))
        cells = in_target[:, :, tf.newaxis] & in_source[:, tf.newaxis]
        return {
            "text": texts[:, 0],
            "source_tokens": tf.where(in_source, translator.source_tokenizer.pieces(source), ""),
            "target_tokens": tf.where(in_target, translator.target_tokenizer.pieces(tokens), ""),
            "attention": tf.where(cells, attention, 0.0),
        }

    def _tokens(self, ids, languages):
        translator = self._translator
        is_known = (ids >= 0) & (ids < translator.model.source_vocabulary_size)
        ids = tf.where(is_known, ids, UNK)
        marks = tf.equal(ids, PAD) | tf.equal(ids, START) | tf.equal(ids, END)
        ids = tf.ragged.boolean_mask(ids, tf.logical_not(marks))
        source, empty = translator.truncate_and_pad(ids, translator.source_end, languages)
        search = self._config.search.greedy
        tokens, _, log_prob, _ = translator.translate_ids(
            source, empty, search, languages=languages
        )
        tokens = tokens[:, 0]
        tokens = tf.where(tf.equal(tokens, END) | empty[:, tf.newaxis], PAD, tokens)
        return {"ids": tokens, "log_prob": log_prob[:, 0]}


def _blank(name, values, rows):
    """An output with the values of no translation in some rows, bool `(B,)`."""
    blank = LEAST_LOG_PROB if name in ("log_prob", "score") else tf.zeros([], values.dtype)
    return tf.where(tf.reshape(rows, [-1, *[1] * (values.shape.rank - 1)]), blank, values)


def _check_rows(names, tensors):
    """Operations that fail if inputs have other numbers of rows than the first."""
    (first, *others), (rows, *counts) = names, [tf.shape(tensor)[0] for tensor in tensors]
    return [
        tf.debugging.assert_equal(count, rows, f"There must be one {name} for each {first}.")
        for name, count in zip(others, counts, strict=True)
    ]


def _finite(values, otherwise):
    return tf.where(tf.math.is_finite(values), values, otherwise)


def functions_of(
    translator: Translator | tf.Module, config: ExportConfig
) -> tuple[tf.Module, dict[str, Any]]:
    """Makes the module to save, and its functions by the names of their signatures.

    `translator` may be any tf.Module whose `serve` is a tf.function with the inputs and outputs of
    `serving_default`, which then is its only signature.
    """
    if isinstance(translator, Translator):
        served = ServedTranslator(translator, config)
        return served, served.functions
    if not hasattr(getattr(translator, "serve", None), "get_concrete_function"):
        raise ValueError(f"Expected a Translator, received {type(translator).__name__}.")
    return translator, {DEFAULT: translator.serve}


def run_signature(
    functions: dict[str, Any], name: str, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Runs a signature in memory, on nested lists: {name of an output: nested lists}."""
    specs = SIGNATURES[name].inputs_with(inputs)
    tensors = [tf.constant(inputs[key], dtype) for key, (_, dtype) in specs.items()]
    return {key: to_lists(value.numpy()) for key, value in functions[name](*tensors).items()}


def to_lists(value: Any) -> Any:
    """An array as nested lists, byte strings as str."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [to_lists(item) for item in value] if isinstance(value, list) else value
