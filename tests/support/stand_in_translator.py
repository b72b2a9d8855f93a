"""A translator without a Transformer: what the export needs, small enough to trace in a second.

It has real SentencePiece ops, a variable, and a bounded greedy loop over a table of transition
scores. Each of the other classes breaks one rule of serving.
"""

import functools

import keras
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.tokenizers.vocabularies import train_sentencepiece

END = 3
LINES = ["a cat runs near the bird", "the bird runs", "near a cat", "straße 東京 été"]


@functools.cache
def train():
    """A tiny model with pieces for bytes, serialized."""
    return train_sentencepiece(LINES * 20, 330, "bpe", lowercase=False, nfkc=True)


class StandIn(tf.Module):
    """Sums the ids of a text to a first symbol, and follows the table from there to END."""

    maximum_iterations = 9

    def __init__(self):
        super().__init__()
        self.tokenizer = tf_text.SentencepieceTokenizer(model=train())
        size = int(self.tokenizer.vocab_size())
        scores = tf.random.stateless_normal([size, size], seed=[1, 2])
        # Now and then END wins, so that the rows of a batch end at different steps.
        self.scores = tf.Variable(scores + 2.7 * tf.one_hot(END, size))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def serve(self, text):
        text = self.read(tf.ensure_shape(text, [None]))
        pieces = self.tokenizer.tokenize(text)
        size = tf.shape(self.scores)[0]
        ids = tf.where(pieces.row_lengths() > 0, tf.reduce_sum(pieces, 1) % size, END)
        tokens, log_prob = self.decode(ids)
        texts = self.tokenizer.detokenize(tokens)
        return self.answer(tf.ensure_shape(texts, [None]), tf.ensure_shape(log_prob, [None]))

    def decode(self, ids):
        log_prob = tf.zeros(tf.shape(ids), tf.float32)

        def unfinished(ids, *_):
            return tf.reduce_any(ids != END)

        def extend(ids, tokens, log_prob):
            scores = self.step(ids)
            log_prob += tf.where(ids != END, tf.reduce_max(scores, -1), 0.0)
            ids = tf.where(ids != END, tf.argmax(scores, -1, output_type=tf.int32), END)
            return ids, tf.concat([tokens, ids[:, tf.newaxis]], 1), log_prob

        _, tokens, log_prob = tf.while_loop(
            unfinished,
            extend,
            [ids, ids[:, tf.newaxis], log_prob],
            shape_invariants=[tf.TensorShape([None] * rank) for rank in (1, 2, 1)],
            maximum_iterations=self.maximum_iterations,
        )
        return tokens, log_prob

    # What the twins replace.
    def read(self, text):
        return text

    def step(self, ids):
        return tf.nn.log_softmax(tf.gather(self.scores, ids))

    def answer(self, text, log_prob):
        return {"text": text, "log_prob": log_prob}


def twin(**replaced):
    """A class that differs from `StandIn` in some methods."""
    return type("Twin", (StandIn,), replaced)


def read_checked(self, text):
    with tf.control_dependencies([tf.debugging.assert_greater(tf.strings.length(text), 0)]):
        return tf.identity(text)


CompiledByXla = twin(step=tf.function(StandIn.step, jit_compile=True))
CallsPython = twin(
    read=lambda self, text: tf.ensure_shape(
        tf.numpy_function(lambda rows: rows, [text], tf.string), [None]
    )
)
RaisesOnContent = twin(read=read_checked)
OtherNames = twin(answer=lambda self, text, value: {"translation": text, "log_prob": value})
Random = twin(
    answer=lambda self, text, value: {
        "text": text,
        "log_prob": value + tf.random.uniform(tf.shape(value)),
    }
)


class HoldsKerasLayer(StandIn):
    """Loads in Python, and not in a server: see keras issue 20095."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Embedding(*self.scores.shape)
        self.layer.build()

    def step(self, ids):
        return tf.nn.log_softmax(self.layer(ids))
