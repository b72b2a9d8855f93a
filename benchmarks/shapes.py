"""What is measured: sizes of models and batches, and the work that is in them."""

import dataclasses

import numpy as np

FIRST_ID = 4  # below it are padding, unknown, start and end, which no system is given or may write


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model and its batches; every sentence is as long as the others, so nothing is padding."""

    layers: int  # of the encoder, and of the decoder
    d_model: int
    d_ff: int
    heads: int
    vocabulary: int
    rows: int  # of a training batch
    length: int  # of its sources and targets
    steps: int  # taken by decoding, from a source as long
    dropout: float = 0.1
    marian: bool = False  # with swish and a softmax bias, as the models of OPUS-MT

    def ids(self, rows, length, seed):
        """Random int32 ids `(rows, length)` without special ones."""
        random = np.random.default_rng(seed)
        return random.integers(FIRST_ID, self.vocabulary, (rows, length), "int32")

    def batch(self):
        """Source, target with START in front, and target, as a training step takes them."""
        source, target = (self.ids(self.rows, self.length, seed) for seed in (0, 1))
        return source, np.concatenate([np.full((self.rows, 1), 2), target[:, :-1]], 1), target

    def dataset(self, steps):
        """That batch as often as there are steps, as Keras' `fit` reads it."""
        import tensorflow as tf

        source, target_in, target_out = self.batch()
        data = (source, target_in), target_out
        dataset = tf.data.Dataset.from_tensors(data).repeat(steps).prefetch(tf.data.AUTOTUNE)
        options = tf.data.Options()
        options.autotune.enabled = False  # as in `make_dataset`
        return dataset.with_options(options)

    def training_flops(self):
        """Floating-point operations in the matrix products of a training step.

        Two for each multiplication and addition; gradients take twice as many as the forward pass.
        """
        width, tokens, length = self.d_model, self.rows * self.length, self.length
        feed_forward, attention = 4 * width * self.d_ff, 4 * width * length
        encoder = 8 * width**2 + attention + feed_forward  # query, key, value, output
        decoder = 16 * width**2 + 2 * attention + feed_forward
        return 3 * tokens * (self.layers * (encoder + decoder) + 2 * width * self.vocabulary)


SHAPES = {
    "small": Shape(3, 256, 1024, 4, 8000, rows=64, length=24, steps=16),
    "tiny": Shape(4, 128, 256, 4, 9900, rows=64, length=24, steps=16, dropout=0.3),
    "base": Shape(6, 512, 2048, 8, 32000, rows=16, length=24, steps=24),
    # What is imported from OPUS-MT; weights are random.
    "opus": Shape(6, 512, 2048, 8, 58_000, rows=16, length=24, steps=24, marian=True),
    # A batch that keeps a GPU busy: 16,384 target tokens.
    "gpu": Shape(6, 512, 2048, 8, 32000, rows=512, length=32, steps=32),
    # For trying the benchmark itself out: `--shapes toy`.
    "toy": Shape(1, 32, 64, 2, 400, rows=4, length=6, steps=5),
}
