"""Text to text: tokenizers, model and decoding in one graph.

Shapes: B batch, S source length, T target length.
"""

import tensorflow as tf

from keras_transformer.decoding.greedy import greedy_search
from keras_transformer.special_ids import END, PAD


class Translator(tf.Module):
    """Translates text with a trained model; what `export` writes and TF Serving runs.

    `serve` is the `serving_default` signature: `text`, string `[B]`, to `text`, string `[B]`, and
    `log_prob`, float32 `[B]`, the sum of the natural-log probabilities of the generated tokens,
    END included. It takes any batch, an empty one too, and any content: bytes that are no UTF-8
    count as U+FFFD, a source is cut at the model's `max_length` tokens, decoding stops after as
    many, and an empty line gives an empty line with log_prob 0.

    Args:
        model: A built `Transformer`.
        source_tokenizer, target_tokenizer: `SubwordTokenizer`s, the same object when shared.

    Raises:
        ValueError: If a vocabulary is not of the size that the model was built for.

    Example:

    >>> translator = Translator(model, tokenizer, tokenizer)
    >>> translator.translate(["samedi 9 mai 1998"])
    ['1998-05-09']
    """

    def __init__(self, model, source_tokenizer, target_tokenizer):
        super().__init__(name="translator")
        sides = (
            ("source", source_tokenizer, model.source_vocabulary_size),
            ("target", target_tokenizer, model.target_vocabulary_size),
        )
        for side, tokenizer, size in sides:
            if tokenizer.vocabulary_size != size:
                raise ValueError(
                    f"The {side} tokenizer has {tokenizer.vocabulary_size} ids, but the model was "
                    f"built for {size}: use the tokenizer it was trained with."
                )
        if not model.built:
            model.build()
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        # tf.saved_model.save would trace a Keras model on its own terms; it only has to know the
        # variables, so the model itself stays out of sight in a function.
        self.variables_to_save = [weight.value for weight in model.weights]
        self._get_model = lambda: model
        self.serve = tf.function(
            self._translate_batch, input_signature=[tf.TensorSpec([None], tf.string, "text")]
        )

    @property
    def model(self):
        """The `Transformer`."""
        return self._get_model()

    def translate(self, texts, batch_size=64):
        """Translates a list of sentences.

        Args:
            texts: Strings, in any order and of any content.
            batch_size: Number of sentences translated at once, those of similar length together.

        Returns:
            List of as many strings, in the same order.

        Raises:
            ValueError: If `texts` is one string.
        """

        def translate(rows):
            return [row.decode("utf-8") for row in self.serve(rows)["text"].numpy()]

        return translate_sorted(translate, texts, batch_size)

    def _translate_batch(self, text):
        text = tf.ensure_shape(text, [None])
        text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
        source, empty = self._read(text)
        tokens, _, log_prob = greedy_search(
            self.model.step,
            self.model.initial_state(source),
            tf.shape(source)[0],
            self.model.max_length,
        )
        output = self.target_tokenizer.detokenize(tokens)
        # Byte pieces may spell anything, and JSON takes only UTF-8.
        output = tf.strings.unicode_transcode(output, "UTF-8", "UTF-8", errors="replace")
        return {
            "text": tf.ensure_shape(tf.where(empty, "", output), [None]),
            "log_prob": tf.ensure_shape(tf.where(empty, 0.0, log_prob), [None]),
        }

    def _read(self, text):
        """Ids `(B, S)`, cut, closed by END and padded; and which rows have no token."""
        ids = self.source_tokenizer(text)
        empty = tf.equal(ids.row_lengths(), 0)
        ids = ids[:, : self.model.max_length - 1]
        ids = tf.concat([ids, tf.fill([ids.nrows(), 1], END)], axis=1)
        return ids.to_tensor(PAD), empty


def translate_sorted(translate, texts, batch_size=64):
    """Translates in batches of similar length and puts the results back in order.

    Args:
        translate: Function from a list of byte strings to a list of as many strings.
        texts: Strings or byte strings.
        batch_size: Number of texts per batch.

    Returns:
        List of strings.

    Raises:
        ValueError: If `texts` is one string.
    """
    if isinstance(texts, (str, bytes)):
        raise ValueError("Expected a list of sentences, received one string: put it in a list.")
    # A lone surrogate cannot be written in UTF-8 and becomes a question mark.
    rows = [t.encode("utf-8", errors="replace") if isinstance(t, str) else t for t in texts]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    results = [""] * len(rows)
    for start in range(0, len(rows), batch_size):
        chosen = order[start : start + batch_size]
        for i, result in zip(chosen, translate([rows[i] for i in chosen]), strict=True):
            results[i] = result
    return results
