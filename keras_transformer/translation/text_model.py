"""A model and its tokenizers: reads text, and says what it makes of given translations.

Shapes: B batch, S source length, T target length.
"""

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from keras_transformer.kernels.backend import require_tensorflow
from keras_transformer.special_ids import END, PAD
from keras_transformer.tokenizers.tokenizer import Tokenizer, check_tokenizer
from keras_transformer.translation.scoring import log_prob, most_attended
from keras_transformer.translation.sentence_batches import as_bytes, check_count, in_batches
from keras_transformer.typing import Tensor, Texts

if TYPE_CHECKING:
    from keras_transformer.transformer import Transformer

TEXT = tf.TensorSpec([None], tf.string, "text")
TARGET = tf.TensorSpec([None, None], tf.int32, "target")


class TextModel(tf.Module):
    """Answers questions about pairs of texts; a `Translator` writes translations too.

    Args:
        model: A built `Transformer`.
        source_tokenizer, target_tokenizer: `Tokenizer`s, the same object when shared.
        longest_output: Tokens that a translation may have; the model's `max_length` when left out
            or larger.

    Raises:
        ValueError: If what should be a tokenizer is none, a vocabulary is not of the size that the
            model was built for, `longest_output` is not positive, or Keras has another backend than
            TensorFlow.
    """

    def __init__(
        self,
        model: "Transformer",
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        longest_output: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        require_tensorflow(type(self).__name__)
        sides = (
            ("source", source_tokenizer, model.source_vocabulary_size),
            ("target", target_tokenizer, model.target_vocabulary_size),
        )
        for side, tokenizer, size in sides:
            check_tokenizer(side, tokenizer)
            if tokenizer.vocabulary_size != size:
                raise ValueError(
                    f"The {side} tokenizer has {tokenizer.vocabulary_size} ids, but the model was "
                    f"built for {size}: use the tokenizer it was trained with."
                )
        if not model.built:
            model.build()
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        if longest_output is not None and longest_output < 1:
            raise ValueError(f"longest_output must be at least 1, received {longest_output}.")
        self.longest_output = min(longest_output or model.max_length, model.max_length)
        # tf.saved_model.save would trace a Keras model on its own terms; it only has to know the
        # variables, so the model itself stays out of sight in a function.
        self.variables_to_save = [weight.value for weight in model.weights]
        self._get_model = lambda: model
        # What it makes is no part of what is saved.
        self._graphs: Callable[..., Callable[..., Any]] = functools.cache(_compile)
        self.compiled: Callable[..., Callable[..., Any]] = self._graphs

    def __reduce__(self) -> tuple[Any, ...]:
        # Keras pickles the model as a `.keras` file; graphs are made anew.
        arguments = self.model, self.source_tokenizer, self.target_tokenizer, self.longest_output
        state = {"card": self.card} if hasattr(self, "card") else None
        return type(self), arguments, state

    @property
    def model(self) -> "Transformer":
        """The `Transformer`."""
        return self._get_model()

    @property
    def default_layer(self) -> int:
        """The decoder layer whose attention to the source is looked at; see `align`."""
        return max(self.model.num_layers - 2, self.model.num_layers // 2)

    def run_eagerly(self, eagerly: bool = True) -> None:
        """Has no graphs made from now on: for a few sentences, that takes longer than they do.

        Args:
            eagerly: False: graphs are made again, or those are taken that there are.
        """
        self.compiled = _eager if eagerly else self._graphs

    def score(
        self, sources: Texts, targets: Texts, batch_size: int = 64
    ) -> list[tuple[float, int]]:
        """Computes how probable given translations are.

        Args:
            sources: Strings; cut as `translate` cuts them.
            targets: As many strings, the translations.
            batch_size: Number of pairs scored at once.

        Returns:
            For each pair (log_prob, number of tokens), END included in both: natural logarithm,
            not normalised by length, of the target as the tokenizer cuts it into pieces. Of an
            empty line to an empty line (0.0, 0), for the model is not asked.

        Raises:
            ValueError: If there are not as many targets as sources, or one has more tokens than
                the model's `max_length`.
        """
        rows = as_bytes(sources)
        ids = self.read_targets("target", targets, len(rows), end=True)
        lengths = ids.row_lengths().numpy()
        score = self.compiled(self.score_batch, (TEXT, TARGET))

        def score_batch(chosen):
            target = tf.gather(ids, chosen).to_tensor(PAD)
            values, counts = score([rows[i] for i in chosen], target)
            return list(zip(values.numpy().tolist(), counts.numpy().tolist(), strict=True))

        return in_batches(score_batch, lengths, batch_size)

    def align(
        self,
        sources: Texts,
        targets: Texts,
        layers: Iterable[int] | None = None,
        heads: Iterable[int] | None = None,
        batch_size: int = 64,
    ) -> list[tuple[list[str], list[str], list[int]]]:
        """Finds which source token each target token attends to most while it is predicted.

        Args:
            sources, targets, batch_size: As `score` has them.
            layers: Numbers of the decoder layers, from 0, whose attention to the source is
                averaged. By default the last but one, whose attention comes closest to alignments
                made by hand (Garg et al., 2019, "Jointly Learning to Align and Translate with
                Transformer Models", six layers); of fewer than three layers, the last.
            heads: Numbers of the heads, from 0; all by default.

        Returns:
            For each pair (source pieces, target pieces, positions): lists of strings, without
            END, and for each target piece the position of a source piece. No positions when there
            is no source piece.

        Raises:
            ValueError: As `score` does, or if there is no such layer or head.
        """
        model = self.model
        layers = (self.default_layer,) if layers is None else layers
        layers = check_numbers("layer", layers, model.num_layers)
        heads = check_numbers(
            "head", range(model.num_heads) if heads is None else heads, model.num_heads
        )
        rows = as_bytes(sources)
        ids = self.read_targets("target", targets, len(rows), end=True)
        lengths = ids.row_lengths().numpy() - 1
        align = self.compiled(self._align_batch, (TEXT, TARGET), layers=layers, heads=heads)

        def align_batch(chosen):
            target = tf.gather(ids, chosen)
            source, positions = align([rows[i] for i in chosen], target.to_tensor(PAD))
            source = tf.RaggedTensor.from_tensor(source, padding=PAD)[:, :-1]  # without END
            source, target = (
                [[piece.decode("utf-8") for piece in row] for row in tokenizer.pieces(x).to_list()]
                for tokenizer, x in (
                    (self.source_tokenizer, source),
                    (self.target_tokenizer, target[:, :-1]),
                )
            )
            positions = positions.numpy().tolist()
            return [
                (a, b, where[: len(b)] if a else [])
                for a, b, where in zip(source, target, positions, strict=True)
            ]

        return in_batches(align_batch, lengths, batch_size)

    def clean(self, text: Tensor) -> Tensor:
        """Text `(B,)` as it is: a tensor of another rank is refused, what is no UTF-8 replaced."""
        text = tf.ensure_shape(text, [None])
        return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")

    def close(self, ids: tf.RaggedTensor) -> tuple[Tensor, Tensor]:
        """Ragged ids to `(B, T)`, cut, closed by END and padded; and which rows had no token."""
        empty = tf.equal(ids.row_lengths(), 0)
        ids = tf.cast(ids[:, : self.model.max_length - 1], tf.int32)
        ids = tf.concat([ids, tf.fill([ids.nrows(), 1], END)], axis=1)
        return ids.to_tensor(PAD), empty

    def read_source(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Ids `(B, S)`, cut, closed by END and padded; and which rows have no token."""
        return self.close(self.source_tokenizer(self.clean(text)))

    def score_batch(self, text: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities `(B,)` of target ids `(B, T)`, closed by END; and their numbers."""
        source, empty = self.read_source(text)
        lengths = tf.math.count_nonzero(tf.not_equal(target, PAD), axis=1, dtype=tf.int32)
        asked = tf.logical_not(empty & tf.equal(lengths, 1))
        values = tf.where(asked, log_prob(self.model, source, target), 0.0)
        return values, tf.where(asked, lengths, 0)

    def read_targets(
        self,
        name: str,
        texts: Texts,
        count: int,
        end: bool = False,
        longest: int | None = None,
        first: int = 0,
    ) -> tf.RaggedTensor:
        """Cuts texts that the target has to hold whole into pieces.

        Args:
            name: What they are called when one is too long.
            texts: Strings.
            count: How many there have to be.
            end: Whether END closes them.
            longest: Tokens that each may have; the model's `max_length` when left out.
            first: Number of the first, from 0, where they are some of many.

        Returns:
            Ragged int32 `(B, None)`.

        Raises:
            ValueError: If there are more or fewer, or one has too many tokens.
        """
        texts, limit = as_bytes(texts), longest or self.model.max_length
        bound = "longest_output" if limit < self.model.max_length else "the model's max_length"
        check_count(name, texts, count)
        ids = tf.cast(self.target_tokenizer(texts, end), tf.int32)
        for number, length in enumerate(ids.row_lengths().numpy(), first + 1):
            if length > limit:
                raise ValueError(
                    f"{name.capitalize()} {number} has {length} tokens, but {bound} is {limit}: "
                    "shorten it."
                )
        return ids

    def _align_batch(self, text, target, layers, heads):
        source, _ = self.read_source(text)
        return source, most_attended(self.model, source, target, layers, heads)


def _compile(function, inputs, **options):
    # Nothing here needs autograph, which takes a third of the time of tracing.
    function = functools.partial(function, **options)
    function = tf.function(function, input_signature=inputs, autograph=False)
    function.get_concrete_function()  # traced before threads share it
    return function


def _eager(function, inputs, **options):
    def call(*values):
        pairs = zip(values, inputs, strict=True)
        return function(*(tf.convert_to_tensor(x, spec.dtype) for x, spec in pairs), **options)

    return call


def check_numbers(name: str, numbers: Iterable[int], count: int) -> tuple[int, ...]:
    """Numbers of layers or heads as a tuple of ints.

    Raises:
        ValueError: If there is none, or one that the model does not have.
    """
    numbers = tuple(numbers)
    for number in numbers:
        if number not in range(count):
            raise ValueError(
                f"There is no {name} {number}: the model has {count}, numbered from 0."
            )
    if not numbers:
        raise ValueError(f"There is nothing to look at: name one {name} or several.")
    return numbers
