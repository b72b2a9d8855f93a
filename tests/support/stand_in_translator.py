"""A translator without a Transformer, traced in a second; the others break a rule of serving."""

import functools

import keras
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.tokenizers.vocabularies import train_sentencepiece

LINES = ["a cat runs near the bird", "the bird runs", "near a cat", "straße 東京 été"]


@functools.cache
def train():
    """A tiny model with pieces for bytes, serialized."""
    return train_sentencepiece(LINES * 20, 330, "bpe", lowercase=False, nfkc=True)


def save(translator, directory):
    """Saves as the export does, without its checks."""
    signatures = {"serving_default": translator.serve.get_concrete_function()}
    tf.saved_model.save(translator, str(directory), signatures=signatures)
    return directory


class StandIn(tf.Module):
    """Answers with the pieces of a text up to the tenth, and the sum of their scores."""

    def __init__(self):
        super().__init__()
        self.tokenizer = tf_text.SentencepieceTokenizer(model=train())
        size = [int(self.tokenizer.vocab_size())]
        self.scores = tf.Variable(tf.random.stateless_uniform(size, [1, 2], minval=-1, maxval=0))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def serve(self, text):
        pieces = self.tokenizer.tokenize(self.read(tf.ensure_shape(text, [None])))[:, :10]
        scores = pieces.with_flat_values(self.look_up(pieces.flat_values))
        texts = tf.ensure_shape(self.tokenizer.detokenize(pieces), [None])
        return self.answer(texts, tf.ensure_shape(tf.reduce_sum(scores, axis=1), [None]))

    # What the twins replace.
    def read(self, text):
        return text

    def look_up(self, ids):
        return tf.gather(self.scores, ids)

    def answer(self, text, log_prob):
        return {"text": text, "log_prob": log_prob}


class CompiledByXla(StandIn):
    look_up = tf.function(StandIn.look_up, jit_compile=True)


class RaisesOnContent(StandIn):
    def read(self, text):
        with tf.control_dependencies([tf.debugging.assert_greater(tf.strings.length(text), 0)]):
            return tf.identity(text)


class Random(StandIn):
    def answer(self, text, log_prob):
        return {"text": text, "log_prob": log_prob + tf.random.uniform(tf.shape(log_prob))}


class HoldsKerasLayer(StandIn):
    """Loads in Python, and not in a server: see keras issue 20095."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Embedding(*self.scores.shape, 1)
        self.layer.build()

    def look_up(self, ids):
        return self.layer(ids)[:, 0]
