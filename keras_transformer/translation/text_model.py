"""A model with its tokenizers: what signatures compute, tensors of text in and tensors out.

Shapes: B batch, N hypotheses for each source, S source length, T target length.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.beam import ranking_score
from keras_transformer.decoding.beam import search as search_tokens
from keras_transformer.decoding.logits_processors import make_processors
from keras_transformer.decoding.prefix import begin_with
from keras_transformer.decoding.sampling import sample
from keras_transformer.kernels.backend import require_tensorflow
from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.presets.languages import Language, Languages
from keras_transformer.presets.options import TEXT_SOURCE
from keras_transformer.special_ids import END, PAD, START
from keras_transformer.tokenizers.saved import find_tokens
from keras_transformer.tokenizers.tokenizer import Tokenizer, check_tokenizer
from keras_transformer.translation.ensemble import combine
from keras_transformer.translation.sentences import LEAST_LOG_PROB, as_bytes
from keras_transformer.utils import SearchOutputs, Tensor, Texts

if TYPE_CHECKING:
    from keras_transformer.transformer import Transformer

logger = logging.getLogger(__name__)

TEXT = tf.TensorSpec([None], tf.string, "text")
# The ids of the tokens that choose the languages of a source and of its translation: PAD for none.
LANGUAGES = tf.TensorSpec([None, 2], tf.int32, "languages")
# Minimum rows of a slice of a batch: with fewer, reading the weights costs more than another core
# saves.
MIN_SLICE_ROWS = 12
SLICES = 1, 2, 4  # of a batch
MIN_ROWS, MIN_COLUMNS = 8, 16  # of what XLA compiles


class TextModel(tf.Module):
    """Translates and scores batches of text; for its arguments, see `Translator`."""

    model: "Transformer"
    card: dict[str, Any]  # what an export's model card says of the training
    default_search = GREEDY
    languages = Languages()
    run_eagerly = False  # without graphs: for a few sentences, tracing takes longer than decoding
    # Whether XLA compiles greedy and beam search of `translate`: for each of a few shapes, which
    # takes seconds. None: on a GPU, where they then take a tenth of the time.
    jit_compile: bool | None = None
    # Of tokens of a translation to those of its source, at most, as an untrained model may not
    # generate END.
    length_ratio: float | None = None

    def __init__(
        self,
        model: "Transformer | Sequence[Transformer]",
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        max_output_length: int | None = None,
        source_end: bool = True,
        card: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name="translator")
        require_tensorflow(type(self).__name__)
        combined = combine(model)
        sides = (
            ("source", source_tokenizer, combined.source_vocabulary_size),
            ("target", target_tokenizer, combined.target_vocabulary_size),
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
        SearchConfig(max_output_length=max_output_length)  # raises if it is out of range
        self.max_output_length = min(max_output_length or combined.max_length, combined.max_length)
        self.variables_to_save = [weight.value for weight in combined.weights]
        # Not as attributes of a tf.Module, which would save the model a second time.
        self.__dict__.update(model=combined, card=card or {})
        self._graphs = functools.cache(_compile)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self.__dict__.pop("language_ids", None)
        if graphs := self.__dict__.get("_graphs"):
            graphs.cache_clear()  # they hold the old value

    @property
    def serve(self) -> Any:
        """`tf.function` from text `(B,)` to what an export's `serving_default` returns."""
        languages = tuple(self.language_rows([""])[0].tolist())
        how = {"search": self.default_search, "languages": languages}
        return self._graphs(self._serve, (TEXT,), len(self.model.weights), **how)

    @property
    def default_layer(self) -> int:
        """The decoder layer whose cross-attention aligns best; see `Translator.align`."""
        return max(self.model.decoder.num_layers - 2, self.model.decoder.num_layers // 2)

    def compiled(
        self, function: Callable[..., Any], inputs: Sequence[tf.TensorSpec], **options: Any
    ) -> Callable[..., Any]:
        """The function as a graph, traced once; for `run_eagerly`, the function itself."""
        if not self.run_eagerly:
            # Layers that get LoRA, or are quantized, have other weights.
            return self._graphs(function, inputs, len(self.model.weights), **options)
        return lambda *values: function(
            *map(tf.convert_to_tensor, values, [spec.dtype for spec in inputs]), **options
        )

    @functools.cached_property
    def language_ids(self) -> dict[str, int]:
        """The ids of the tokens of languages, by their codes; the same on both sides."""
        model: Any = self.source_tokenizer
        codes, tokens = self.languages.tokens.keys(), self.languages.tokens.values()
        return dict(zip(codes, find_tokens(model.model, tokens), strict=True))

    def read_rows(
        self, texts: Texts, first: int = 0, **languages: Language
    ) -> tuple[list[bytes], np.ndarray]:
        """Sources as byte strings, and their `language_rows`; warns of those that are truncated."""
        rows = as_bytes(texts)
        ids = self.language_rows(rows, **languages)
        limits = self.model.max_length - 1 - (ids[:, 0] != PAD)
        # Only long texts are tokenized here. NFKC makes at most 11 bytes of one (U+FDFA).
        long = np.flatnonzero([11 * len(row) for row in rows] > limits)
        counts = self.source_tokenizer([rows[i] for i in long]).row_lengths().numpy()
        for number, count, limit in zip(long, counts, limits[long], strict=True):
            if count > limit:
                logger.warning(
                    f"Source {first + number + 1} has {count} tokens, of which the model reads "
                    f"{limit}: split it into sentences."
                )
        return rows, ids

    def language_rows(
        self, texts: Texts, source_language: Language = None, target_language: Language = None
    ) -> np.ndarray:
        """The ids of the tokens of the languages of texts, see `LANGUAGES`.

        Raises:
            ValueError: If a language is missing or unknown, or the model has none.
        """
        languages, rows = self.languages, as_bytes(texts)
        if languages.read_tags(rows, bool(source_language or target_language or languages.target)):
            return np.full([len(rows), 2], PAD, np.int32)
        columns = languages.columns(len(rows), source_language, target_language).values()
        ids = [[self.language_ids[code] for code in codes] for codes in columns]
        return np.array([ids[0], ids[-1]], np.int32).T

    def truncate_and_pad(
        self, ids: tf.RaggedTensor, end: bool = True, languages: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Ragged ids to `(B, T)`, truncated and padded; and which rows were empty.

        END is appended; without `end` only to empty rows, so that there is something to attend to.
        The tokens of `languages`, see `LANGUAGES`, come before a source, or after END.
        """
        limit = self.model.max_length - 1
        lengths = tf.expand_dims(tf.cast(ids.row_lengths(), tf.int32), 1)
        empty = tf.equal(lengths, 0)
        # Dense: concatenating ragged tensors takes several times as many operations.
        rows = tf.cast(ids.to_tensor(PAD, shape=[None, limit + 1]), tf.int32)
        token, is_last = None, self.languages.order == TEXT_SOURCE
        if self.languages.sides and languages is not None:
            token = languages[:, :1]
            has_token = tf.not_equal(token, PAD) & ~empty
            if is_last:
                limit -= 1
            else:
                rows = tf.where(has_token, tf.concat([token, rows[:, :-1]], axis=1), rows)
                lengths += tf.cast(has_token, tf.int32)
        lengths = tf.minimum(lengths, limit)
        columns, has_end = tf.range(rows.shape[1]), end | empty
        rows = tf.where(columns < lengths, rows, tf.where(has_end & (columns == lengths), END, PAD))
        lengths += tf.cast(has_end, tf.int32)
        if is_last and token is not None:
            rows = tf.where(has_token & (columns == lengths), token, rows)
            lengths += tf.cast(has_token, tf.int32)
        return rows[:, : tf.reduce_max(lengths)], empty[:, 0]

    def read_source(self, text: Tensor, languages: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Source ids `(B, S)` of text `(B,)`, and which rows are empty; see `truncate_and_pad`."""
        ids = self.source_tokenizer(make_valid(tf.ensure_shape(text, [None])))
        return self.truncate_and_pad(ids, self.source_end, languages)

    def begin_target(self, target: Tensor, languages: Tensor | None = None) -> Tensor:
        """Target ids `(B, T)`, and before them the token of their language, if they have one."""
        if languages is None or not self.languages.num_forced:
            return target
        return tf.concat([languages[:, 1:], target], axis=1)

    def _serve(self, text, search, languages):
        return self.best(text, search, languages=tf.tile([languages], [tf.size(text), 1]))

    def best(self, text: Tensor, search: SearchConfig, **rows: Tensor) -> dict[str, Tensor]:
        """The translations of greedy search or of sampling, `{"text": (B,), "log_prob": (B,)}`."""
        texts, log_prob, _ = self.translate_batch(text, search=search.greedy, **rows)
        return {"text": texts[:, 0], "log_prob": log_prob[:, 0]}

    def translate_batch(
        self,
        text: Tensor,
        seeds: Tensor | None = None,
        languages: Tensor | None = None,
        prefix: Tensor | None = None,
        search: SearchConfig = GREEDY,
        xla: bool = False,
        **sampling: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Texts, log-probabilities and scores `(B, N)` for text `(B,)`; see `translate_ids`."""
        rows = {"seeds": seeds, "languages": languages, "prefix": prefix} | sampling
        rows = {name: tensor for name, tensor in rows.items() if tensor is not None}
        return self.translate_ids(*self.read_source(text, languages), search, xla, **rows)[1:]

    def translate_ids(
        self,
        source: Tensor,
        empty: Tensor,
        search: SearchConfig = GREEDY,
        xla: bool = False,
        **rows: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Translates what `read_source` returns: source ids `(B, S)`, and which rows are empty.

        `rows` are tensors `(B, …)` named `prefix` and `seeds`, see `decoding.search`; or, to sample
        with other values in each row, all of `seeds`, `temperature`, `top_k` and `top_p`. Targets
        of `languages`, see `LANGUAGES`, may begin with a token that costs no probability.

        Returns:
            Tokens `(B, N, T)`, without that one; and texts, log-probabilities and scores, see
            `Hypothesis`, each `(B, N)`. A missing translation is empty, with `LEAST_LOG_PROB`.
        """
        num_forced = self.languages.num_forced
        limit = self.length_limit(search) + num_forced
        least = search.min_length and search.min_length + num_forced
        search = dataclasses.replace(search, min_length=least, max_output_length=None)

        def search_rows(source, prefix=None, seeds=None, languages=None, **sampling):
            # The token of a language takes a step of its own.
            longest, count = limit, tf.shape(source)[0]
            step = self.model.make_step("xla" if xla else "graph")
            state = self.model.initial_state(source, longest if xla else None)
            if num_forced:
                step, state = begin_with(step, state, languages[:, 1])
                if prefix is not None:
                    prefix = tf.concat([languages[:, 1:], prefix], axis=1)
            if xla:
                return search_tokens(step, state, count, longest, search, prefix, seeds, True)
            if self.length_ratio is not None:
                tokens = self.length_ratio * tf.cast(tf.shape(source)[1], tf.float32)
                longest = tf.minimum(longest, 10 + tf.cast(tf.math.ceil(tokens), tf.int32))
            arguments = step, state, count, longest
            if sampling:
                how = {"prefix": prefix, "logits_processors": make_processors(search)}
                outputs = sample(*arguments, seed=seeds, **how, **sampling)
                return tuple(tf.expand_dims(tensor, 1) for tensor in outputs)
            return search_tokens(*arguments, search, prefix, seeds)

        if not num_forced:
            rows.pop("languages", None)  # they are in the source
        by_xla = functools.partial(search_by_xla, limit=self.model.max_length)
        search_all = by_xla if xla else search_in_slices
        tokens, lengths, log_prob = search_all(search_rows, {"source": source} | rows)
        tokens = tokens[..., num_forced:]
        score, texts = log_prob, self._to_texts(tokens)
        if search.beam_size > 1:
            score = ranking_score(log_prob, lengths, search.length_penalty, search.length_norm)
        only = tf.one_hot(tf.zeros_like(lengths[:, 0]), search.beam_size, 0.0, LEAST_LOG_PROB)
        empty = empty[:, tf.newaxis]
        log_prob, score = (
            tf.where(empty, only, tf.maximum(x, LEAST_LOG_PROB)) for x in (log_prob, score)
        )
        texts = tf.where(empty | (log_prob == LEAST_LOG_PROB), "", texts)
        return tokens, texts, log_prob, score

    def _to_texts(self, tokens):
        """Texts `(B, N)` of tokens `(B, N, T)`."""
        shape = tf.shape(tokens)
        rows = tf.reshape(tokens, [shape[0] * shape[1], shape[2]])
        return tf.reshape(make_valid(self.target_tokenizer.detokenize(rows)), shape[:2])

    def score_batch(
        self, text: Tensor, target: Tensor, languages: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Natural-log probabilities `(B,)` of target ids `(B, T)`, END included; and lengths."""
        source, empty = self.read_source(text, languages)
        logits = self.model((source, decoder_input(self.begin_target(target, languages))))
        logits = self.model.suppress(logits[:, self.languages.num_forced :])
        gains = tf.gather(logits, target, batch_dims=2) - tf.reduce_logsumexp(logits, axis=-1)
        values = tf.reduce_sum(tf.where(tf.equal(target, PAD), 0.0, gains), axis=-1)
        lengths = tf.math.count_nonzero(tf.not_equal(target, PAD), axis=1, dtype=tf.int32)
        nonempty = tf.logical_not(empty & tf.equal(lengths, 1))
        return tf.where(nonempty, values, 0.0), tf.where(nonempty, lengths, 0)

    def align_batch(
        self,
        text: Tensor,
        target: Tensor,
        languages: Tensor,
        layers: Sequence[int],
        heads: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Source ids `(B, S)`, and which of them each target token attends to most `(B, T)`.

        END and tokens of languages become PAD, and are not counted: heads attend to them when a
        token has no counterpart.
        Positions at END, at padding, and in rows without a source token are meaningless.
        """
        source, _ = self.read_source(text, languages)
        inputs = self.begin_target(target, languages)
        mean = attention_to_source(self.model, source, inputs, layers, heads)
        mean = mean[:, self.languages.num_forced :]
        readable = tf.reduce_all([source != PAD, source != END, source != languages[:, :1]], axis=0)
        mean = tf.where(readable[:, tf.newaxis], mean, -1.0)
        chosen = tf.argmax(mean, axis=-1, output_type=tf.int32)
        numbers = tf.cumsum(tf.cast(readable, tf.int32), axis=1) - 1  # without those before them
        return tf.where(readable, source, PAD), tf.gather(numbers, chosen, batch_dims=1)

    def length_limit(self, search: SearchConfig) -> int:
        """Maximum number of tokens of a translation that is searched for like this."""
        return min(search.max_output_length or self.max_output_length, self.max_output_length)


def attention_to_source(
    model: "Transformer",
    source: Tensor,
    target: Tensor,
    layers: Sequence[int],
    heads: Sequence[int],
) -> Tensor:
    """The cross-attention `(B, T, S)` of target tokens while they are predicted.

    It is the mean of some heads, float32, of some decoder layers, by their numbers from 0. Ids are
    int32 `(B, S)` and `(B, T)`, padded.
    """
    _, scores = model((source, decoder_input(target)), return_attention_scores=True)
    chosen = tf.gather(tf.stack([scores["cross"][layer] for layer in layers]), heads, axis=2)
    return tf.reduce_mean(tf.cast(chosen, tf.float32), axis=[0, 2])


def begin_with_languages(tokenizers: Sequence[Any], languages: Languages) -> tuple[Any, Any]:
    """Returns functions from texts to ids, with the tokens of the languages, for a training."""

    def begin(tokenizer, tokens):
        (token,) = find_tokens(tokenizer.model, tokens)

        def tokenize(texts, end=False):
            languages.read_tags(as_bytes(texts), is_chosen=True)
            ids = tokenizer(texts, end)
            counts = tf.cast(ids.row_lengths() > int(end), tf.int64)  # an empty side stays empty
            first = tf.fill([tf.reduce_sum(counts)], token)
            return tf.concat([tf.RaggedTensor.from_row_lengths(first, counts), ids], axis=1)

        return tokenize

    source, target = (
        begin(tokenizer, tokens) if tokens else tokenizer
        for tokenizer, tokens in zip(tokenizers, languages.beginnings(), strict=True)
    )
    return source, target


def decoder_input(target: Tensor) -> Tensor:
    """START, then all but the last token of the target `(B, T)`."""
    # Sliced last: without rows, a target may have no column to remove.
    return tf.pad(target, [[0, 0], [1, 0]], constant_values=START)[:, : tf.shape(target)[1]]


def make_valid(text: Tensor) -> Tensor:
    """Valid UTF-8, which byte pieces need not form: JSON can hold nothing else."""
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")


def _compile(function, inputs, _, **options):
    # Nothing here needs autograph, which takes a third of the time of tracing.
    function = functools.partial(function, **options)
    function = tf.function(function, input_signature=inputs, autograph=False)
    function.get_concrete_function()  # traced before threads share it
    return function


def search_by_xla(
    search_rows: Callable[..., SearchOutputs], inputs: Mapping[str, Tensor], limit: int
) -> SearchOutputs:
    """Searches a batch by a function that XLA compiles for a few shapes: powers of two.

    See `search_in_slices`. There are positions for at most `limit` columns.
    """
    rows = tf.shape(inputs["source"])[0]
    # Copies of the first row fill the batch: they end when it does. Without rows, it is END.
    numbers = tf.range(_round_up(rows, MIN_ROWS))
    numbers = tf.where(numbers < rows, numbers, 0)
    padded = {}
    for name, tensor in inputs.items():
        filler = END if name == "source" else 0
        tensor = tf.pad(
            tensor, [[0, 1], *[[0, 0]] * (len(tensor.shape) - 1)], constant_values=filler
        )
        if len(tensor.shape) == 2:
            length = tf.shape(tensor)[1]
            more = tf.minimum(_round_up(length, MIN_COLUMNS), limit) - length
            tensor = tf.pad(tensor, [[0, 0], [0, tf.maximum(more, 0)]], constant_values=PAD)
        padded[name] = tf.gather(tensor, numbers)
    search_rows = tf.function(search_rows, autograph=False, jit_compile=True)
    tokens, lengths, log_prob = (tensor[:rows] for tensor in search_rows(**padded))
    return tokens[..., : tf.reduce_max(tf.pad(lengths, [[0, 1], [0, 0]]))], lengths, log_prob


def _round_up(size, least):
    """The next power of two, from `least` on."""
    powers = least * 2 ** tf.range(16)
    return tf.maximum(size, tf.reduce_min(tf.where(powers >= size, powers, powers[-1])))


def search_in_slices(
    search_rows: Callable[..., SearchOutputs], inputs: Mapping[str, Tensor]
) -> SearchOutputs:
    """Splits a batch into slices that are searched in parallel threads.

    A decoding loop runs one small operation after another. Where each operation has one core, as is
    recommended for servers (`TF_NUM_INTRAOP_THREADS=1`), one large request would leave the other
    cores idle. `search_rows` maps some rows of all inputs, its keyword arguments, to tokens
    `(B, ..., T)`, lengths and log-probabilities `(B, ...)`. What it finds for a row must depend on
    that row only. Nothing in it may have side effects, as tokenizers have: TensorFlow would run it
    part by part.
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
        if parts == 1:
            return search_rows(**inputs)
        bounds = rows * tf.range(parts + 1) // parts
        sizes = bounds[1:] - bounds[:-1]
        split = {name: tf.split(x, sizes, num=parts) for name, x in inputs.items()}
        outputs = [search_rows(**{name: split[name][i] for name in split}) for i in range(parts)]
        tokens, lengths, log_probs = zip(*outputs, strict=True)
        widths = tf.stack([tf.shape(x) for x in tokens])[:, -1]
        missing = tf.unstack(tf.reduce_max(widths) - widths)
        tokens = [
            tf.pad(x, [*[[0, 0]] * (x.shape.rank - 1), [0, count]], constant_values=PAD)
            for x, count in zip(tokens, missing, strict=True)
        ]
        return tf.concat(tokens, 0), tf.concat(lengths, 0), tf.concat(log_probs, 0)

    enough = rows >= [MIN_SLICE_ROWS * parts for parts in SLICES[1:]]
    choice = tf.math.count_nonzero(enough, dtype=tf.int32)
    return tf.switch_case(choice, [functools.partial(search_slices, parts) for parts in SLICES])
