"""A translator as a server sees it: one graph function for each signature.

Shapes: B batch, N hypotheses for each text, S source length, T target length.
"""

import tensorflow as tf

from keras_transformer.decoding.beam import check_beam_size
from keras_transformer.decoding.sampling import sample
from keras_transformer.kernels.tensorflow.machines import on_any_machine
from keras_transformer.presets import ExportConfig
from keras_transformer.serving.exploration import explore
from keras_transformer.serving.signatures import DEFAULT, SIGNATURES, Functions, check_names
from keras_transformer.serving.stored_weights import StoredWeights
from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.training.divergence import check_weights
from keras_transformer.translation.scoring import attention_to_source
from keras_transformer.translation.translator import Translator

COMPUTATIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16"}  # policies of Keras
COLDEST = 0.01  # at lower temperatures, the most probable token wins in any case


class ServedTranslator(tf.Module):
    """The module that `tf.saved_model.save` writes: tokenizers, weights and functions.

    No function raises on content: texts are cut, numbers out of range are moved into it, and ids
    the model does not know become UNK. Rows do not depend on the rows beside them.

    Args:
        translator: `Translator`.
        config: `ExportConfig`.

    Raises:
        ValueError: If a signature is unknown, the beam is wider than the target vocabulary, or the
            weights are not finite.
    """

    def __init__(self, translator: Translator, config: ExportConfig) -> None:
        super().__init__(name="served_translator")
        search = config.search
        check_weights(translator.model, "The model")
        check_beam_size(search.beam_size, translator.model.target_vocabulary_size)
        translator = translator.in_precision(COMPUTATIONS[config.computation])
        self._dtype = config.computation
        tokenizers = translator.source_tokenizer, translator.target_tokenizer
        self.tokenizers = list(tokenizers)
        self.weights = StoredWeights(translator.model, config.precision)
        if config.longest_output is not None:
            translator = Translator(translator.model, *tokenizers, config.longest_output)
        # A Keras model that tf.saved_model.save met would be traced on its own terms.
        self._get_translator = lambda: translator
        self._search = search
        functions = {name: self._function(name) for name in check_names(config.signatures)}
        # Out of sight as well: an attribute would be saved beside the signatures, once more.
        self._get_functions = lambda: functions

    @property
    def functions(self) -> Functions:
        """{name: tf.function}, called with the tensors that `SIGNATURES` names."""
        return self._get_functions()

    def _function(self, name):
        """The tf.function of a signature."""
        signature = SIGNATURES[name]
        answer = getattr(self, f"_{name}")

        def serve(*tensors):
            # Servers do not compare what comes in with the signature's shapes.
            tensors = [
                tf.ensure_shape(tensor, spec.shape)
                for tensor, spec in zip(tensors, signature.inputs.values(), strict=True)
            ]
            # The answer waits for the check, else what it runs into might be raised instead.
            with tf.control_dependencies(_check_rows(signature.inputs, tensors)):
                tensors = [tf.identity(tensor) for tensor in tensors]
            with self.weights.in_use():
                outputs = on_any_machine(lambda: answer(*tensors), self._dtype, tensors[0])
            return {
                key: tf.ensure_shape(outputs[key], spec.shape, name=key)
                for key, spec in signature.outputs.items()
            }

        return tf.function(serve, input_signature=list(signature.inputs.values()), autograph=False)

    def _serving_default(self, text):
        return self._get_translator().translate_batch(text)

    def _beam(self, text):
        answer = self._get_translator().search_batch(text, search=self._search)
        return dict(zip(("text", "log_prob", "score"), answer, strict=True))

    def _sample(self, text, temperature, top_k, top_p, seed):
        options = {
            "temperature": tf.clip_by_value(_finite(temperature, 1.0), COLDEST, 1 / COLDEST),
            "top_k": tf.maximum(top_k, 0),
            "top_p": tf.clip_by_value(_finite(top_p, 1.0), 0.0, 1.0),
            "seed": seed,
        }
        return self._get_translator().translate_batch(text, sample, options)

    def _score(self, source, target):
        translator = self._get_translator()
        ids, _ = translator.close(translator.target_tokenizer(translator.clean(target)))
        log_prob, tokens = translator.score_batch(source, ids)
        return {"log_prob": log_prob, "tokens": tokens}

    def _attention(self, text):
        translator = self._get_translator()
        model = translator.model
        source, empty = translator.read_source(text)
        tokens, answer = translator.translate_ids(source, empty)
        layers, heads = (translator.default_layer,), range(model.num_heads)
        attention = attention_to_source(model, source, tokens, layers, heads)
        filled = tf.logical_not(empty)[:, tf.newaxis]
        of_source = tf.not_equal(source, PAD) & filled  # (B, S)
        of_target = tf.not_equal(tokens, PAD) & filled  # (B, T)
        return {
            "text": answer["text"],
            "source_tokens": tf.where(of_source, translator.source_tokenizer.pieces(source), ""),
            "target_tokens": tf.where(of_target, translator.target_tokenizer.pieces(tokens), ""),
            "attention": tf.where(
                of_target[:, :, tf.newaxis] & of_source[:, tf.newaxis], attention, 0.0
            ),
        }

    def _explore(self, text, prefix, k):
        translator = self._get_translator()
        prefix = _known(prefix, translator.model.target_vocabulary_size)
        return explore(translator, text, prefix, k)

    def _tokens(self, ids):
        translator = self._get_translator()
        ids = _known(ids, translator.model.source_vocabulary_size)
        marks = tf.equal(ids, PAD) | tf.equal(ids, START) | tf.equal(ids, END)
        source, empty = translator.close(tf.ragged.boolean_mask(ids, tf.logical_not(marks)))
        tokens, answer = translator.translate_ids(source, empty)
        tokens = tf.where(tf.equal(tokens, END) | empty[:, tf.newaxis], PAD, tokens)
        return {"ids": tokens, "log_prob": answer["log_prob"]}


def _check_rows(names, tensors):
    """Operations that fail where inputs have other numbers of rows than the first."""
    (first, *others), (rows, *counts) = names, [tf.shape(tensor)[0] for tensor in tensors]
    return [
        tf.debugging.assert_equal(count, rows, f"There must be one {name} for each {first}.")
        for name, count in zip(others, counts, strict=True)
    ]


def _known(ids, vocabulary_size):
    return tf.where((ids >= 0) & (ids < vocabulary_size), ids, UNK)


def _finite(values, otherwise):
    return tf.where(tf.math.is_finite(values), values, otherwise)


def functions_of(
    translator: Translator | tf.Module, config: ExportConfig
) -> tuple[tf.Module, Functions]:
    """Makes what is to be saved, and its functions.

    Args:
        translator: `Translator`; or any tf.Module whose `serve` is a tf.function with the inputs
            and outputs of `serving_default`, which then is its one signature.
        config: `ExportConfig`.

    Returns:
        A tf.Module and {name of a signature: tf.function}.

    Raises:
        ValueError: If `translator` is none, or as `ServedTranslator` does.
    """
    if hasattr(translator, "translate_batch"):
        served = ServedTranslator(translator, config)
        return served, served.functions
    if not hasattr(getattr(translator, "serve", None), "get_concrete_function"):
        raise ValueError(
            f"Expected a translator, got {type(translator).__name__}, whose serve is not a "
            "tf.function; pass a keras_transformer.Translator."
        )
    return translator, {DEFAULT: translator.serve}
