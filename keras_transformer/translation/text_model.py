"""A model with its tokenizers: what signatures compute, tensors of text in and tensors out.

Shapes: B batch, N hypotheses for each source, S source length, T target length.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from keras_transformer.decoding.beam import ranking_score
from keras_transformer.decoding.sampling import greedy_search
from keras_transformer.decoding.search import search as search_tokens
from keras_transformer.kernels.backend import require_tensorflow
from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.special_ids import END, PAD
from keras_transformer.tokenizers.tokenizer import Tokenizer, check_tokenizer
from keras_transformer.translation.results import LEAST_LOG_PROB
from keras_transformer.translation.scoring import log_prob, most_attended
from keras_transformer.utils import Hidden, SearchOutputs, Tensor

if TYPE_CHECKING:
    from keras_transformer.transformer import Transformer

TEXT = tf.TensorSpec([None], tf.string, "text")
# Minimum rows of a slice of a batch: with fewer, reading the weights costs more than another core
# saves.
MIN_SLICE_ROWS = 12
SLICES = 1, 2, 4  # of a batch


class TextModel(tf.Module):
    """Translates and scores batches of text; for its arguments, see `Translator`.

    Attributes:
        source_prefix: Id of a token that is put before every source; None for none.

    Raises:
        ValueError: See `Translator`; or if Keras has another backend than TensorFlow.
    """

    source_prefix: int | None = None

    def __init__(
        self,
        model: "Transformer",
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        max_output_length: int | None = None,
        source_end: bool = True,
        card: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name="translator")
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
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.source_end = source_end
        if max_output_length is not None and max_output_length < 1:
            raise ValueError(f"max_output_length must be at least 1, received {max_output_length}.")
        self.max_output_length = min(max_output_length or model.max_length, model.max_length)
        self.variables_to_save = [weight.value for weight in model.weights]
        self._model, self._card = Hidden(model), Hidden(card or {})
        self._graphs: Callable[..., Callable[..., Any]] = functools.cache(_compile)
        self.compiled: Callable[..., Callable[..., Any]] = self._graphs
        self.serve = tf.function(self.translate_batch, input_signature=[TEXT], autograph=False)

    @property
    def model(self) -> "Transformer":
        """The `Transformer`."""
        return self._model.value

    @property
    def card(self) -> dict[str, Any]:
        """What an export's model card says of the training; `load` reads it from the run."""
        return self._card.value

    @property
    def default_layer(self) -> int:
        """The decoder layer whose cross-attention aligns best; see `Translator.align`."""
        return max(self.model.decoder.num_layers - 2, self.model.decoder.num_layers // 2)

    def run_eagerly(self, eagerly: bool = True) -> None:
        """Runs without graphs: for a few sentences, tracing takes longer than decoding.

        Args:
            eagerly: False to use graphs again.
        """
        self.compiled = _eager if eagerly else self._graphs

    def clean(self, text: Tensor) -> Tensor:
        """Text `(B,)` in valid UTF-8; a tensor of another rank is refused."""
        text = tf.ensure_shape(text, [None])
        return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")

    def truncate_and_pad(self, ids: tf.RaggedTensor, end: bool = True) -> tuple[Tensor, Tensor]:
        """Ragged ids to `(B, T)`, truncated and padded; and which rows were empty.

        END is appended; without `end` only to empty rows, so that there is something to attend to.
        """
        empty = tf.equal(ids.row_lengths(), 0)
        ids = tf.cast(ids[:, : self.model.max_length - 1], tf.int32)
        ends = tf.fill([ids.nrows(), 1], END)
        if not end:
            ends = tf.ragged.boolean_mask(ends, empty[:, tf.newaxis])
        ids = tf.concat([ids, ends], axis=1)
        return ids.to_tensor(PAD), empty

    def read_source(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Source ids `(B, S)` of text `(B,)`, and which rows are empty; see `truncate_and_pad`."""
        ids = self.add_prefix(self.source_tokenizer(self.clean(text)))
        return self.truncate_and_pad(ids, self.source_end)

    def add_prefix(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Ragged source ids with `source_prefix` before each row that is not empty."""
        if self.source_prefix is None:
            return ids
        rows = tf.fill([ids.nrows(), 1], tf.cast(self.source_prefix, ids.dtype))
        filled = tf.not_equal(ids.row_lengths(), 0)[:, tf.newaxis]
        return tf.concat([tf.ragged.boolean_mask(rows, filled), ids], axis=1)

    def translate_batch(
        self,
        text: Tensor,
        search_fn: Callable[..., SearchOutputs] = greedy_search,
        options: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Translates a batch: what `serve` computes.

        Args:
            text: String tensor `(B,)`.
            search_fn: Function called like `greedy_search`.
            options: Its keyword arguments, tensors `(B, ...)`.

        Returns:
            `{"text": (B,), "log_prob": (B,)}`.
        """
        return self.translate_ids(*self.read_source(text), search_fn, options)[1]

    def translate_ids(
        self,
        source: Tensor,
        empty: Tensor,
        search_fn: Callable[..., SearchOutputs] = greedy_search,
        options: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Translates what `read_source` returns.

        Returns:
            Target ids `(B, T)`, and what `translate_batch` returns.
        """
        tokens, _, log_prob = self._search(search_fn, source, self.max_output_length, options or {})
        log_prob = tf.maximum(log_prob, LEAST_LOG_PROB)
        output = self._detokenize(tokens)
        return tokens, {
            "text": tf.ensure_shape(tf.where(empty, "", output), [None]),
            "log_prob": tf.ensure_shape(tf.where(empty, 0.0, log_prob), [None]),
        }

    def search_batch(
        self,
        text: Tensor,
        seeds: Tensor | None = None,
        prefix: Tensor | None = None,
        search: SearchConfig = GREEDY,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Translations, their log-probabilities and scores, see `Hypothesis`, each `(B, N)`.

        A missing translation is empty, with `LEAST_LOG_PROB`.
        """
        source, empty = self.read_source(text)
        rows, beam_size = tf.shape(source)[0], search.beam_size
        options = {"prefix": prefix, "seeds": seeds}
        options = {name: x for name, x in options.items() if x is not None}
        search_fn = functools.partial(search_tokens, config=search)
        longest = self.length_limit(search)
        tokens, lengths, log_prob = self._search(search_fn, source, longest, options)
        score = log_prob
        if beam_size > 1:
            score = ranking_score(log_prob, lengths, search.length_penalty, search.length_norm)
        output = self._detokenize(tf.reshape(tokens, [rows * beam_size, tf.shape(tokens)[2]]))
        output = tf.reshape(output, [rows, beam_size])
        only = tf.one_hot(tf.zeros([rows], tf.int32), beam_size, 0.0, LEAST_LOG_PROB)
        empty = empty[:, tf.newaxis]
        log_prob, score = (
            tf.where(empty, only, tf.maximum(x, LEAST_LOG_PROB)) for x in (log_prob, score)
        )
        return tf.where(empty | (log_prob == LEAST_LOG_PROB), "", output), log_prob, score

    def score_batch(self, text: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities `(B,)` of target ids `(B, T)`, END included; and their numbers."""
        source, empty = self.read_source(text)
        lengths = tf.math.count_nonzero(tf.not_equal(target, PAD), axis=1, dtype=tf.int32)
        nonempty = tf.logical_not(empty & tf.equal(lengths, 1))
        values = tf.where(nonempty, log_prob(self.model, source, target), 0.0)
        return values, tf.where(nonempty, lengths, 0)

    def align_batch(
        self, text: Tensor, target: Tensor, layers: tuple[int, ...], heads: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """Source ids `(B, S)`, and which position each target token attends to most `(B, T)`."""
        source, _ = self.read_source(text)
        return source, most_attended(self.model, source, target, layers, heads)

    def bound(self, source: Tensor, longest: int) -> int | Tensor:
        """Maximum number of steps for source ids `(B, S)`; `longest`, unless a subclass knows."""
        return longest

    def length_limit(self, search: SearchConfig) -> int:
        """Maximum number of tokens of a translation that is searched for like this."""
        return min(search.max_output_length or self.max_output_length, self.max_output_length)

    def _search(self, search_fn, source, longest, options):
        """Tokens `(B, ..., T)`, lengths and log-probabilities `(B, ...)` for ids `(B, S)`."""

        def search_rows(source, **options):
            state = self.model.initial_state(source)
            rows = tf.shape(source)[0]
            steps = self.bound(source, longest)
            return search_fn(self.model.make_step(), state, rows, steps, **options)

        return search_in_slices(search_rows, {"source": source} | options)

    def _detokenize(self, tokens):
        """Ids `(B, T)` to text `(B,)`."""
        output = self.target_tokenizer.detokenize(tokens)
        # Byte pieces can form invalid UTF-8, which JSON cannot hold.
        return tf.strings.unicode_transcode(output, "UTF-8", "UTF-8", errors="replace")


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


def search_in_slices(
    search_rows: Callable[..., SearchOutputs], inputs: Mapping[str, Tensor]
) -> SearchOutputs:
    """Splits a batch into slices that are searched in parallel threads.

    A decoding loop runs one small operation after another. Where each operation has one core, as is
    recommended for servers (`TF_NUM_INTRAOP_THREADS=1`), one large request would leave the other
    cores idle.

    Args:
        search_rows: Function from some rows of all inputs to tokens `(B, ..., T)`, lengths and
            log-probabilities `(B, ...)`. What it finds for a row must depend on that row only.
            Nothing in it may have side effects, as tokenizers have: TensorFlow would run it part by
            part.
        inputs: {name: tensor with B rows}, its keyword arguments.

    Returns:
        What `search_rows` returns for all rows.
    """
    if tf.executing_eagerly():
        return search_rows(**inputs)
    # Several calls of one function, which the graph holds once. The iterations of a `tf.while_loop`
    # would not run at the same time.
    search_rows = tf.function(
        search_rows,
        autograph=False,
        reduce_retracing=True,
        experimental_attributes={"_noinline": True},
    )
    rows = tf.shape(next(iter(inputs.values())))[0]

    def search_slices(parts):
        bounds = [rows * part // parts for part in range(parts + 1)]
        outputs = [
            search_rows(**{name: _slice_rows(x, i, j) for name, x in inputs.items()})
            for i, j in itertools.pairwise(bounds)
        ]
        tokens, lengths, log_probs = zip(*outputs, strict=True)
        length = tf.reduce_max([tf.shape(x)[-1] for x in tokens])
        tokens = [_pad(x, length) for x in tokens]
        return tf.concat(tokens, 0), tf.concat(lengths, 0), tf.concat(log_probs, 0)

    choice = tf.reduce_sum([tf.cast(rows >= MIN_SLICE_ROWS * n, tf.int32) for n in SLICES[1:]])
    return tf.switch_case(choice, [functools.partial(search_slices, parts) for parts in SLICES])


def _slice_rows(x, start, end):
    """Some rows, with the same static shape for every part: one function serves them all."""
    return tf.ensure_shape(x[start:end], [None] * x.shape.rank)


def _pad(tokens, length):
    missing = length - tf.shape(tokens)[-1]
    return tf.pad(tokens, [*[[0, 0]] * (tokens.shape.rank - 1), [0, missing]], constant_values=PAD)
