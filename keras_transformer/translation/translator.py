"""Text to text: translates, scores and aligns lists of sentences.

Shapes: B batch.
"""

import concurrent.futures
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from keras_transformer.kernels.tensorflow.machine import has_gpu, inter_op_threads
from keras_transformer.presets import SearchConfig, resolve_search
from keras_transformer.presets.languages import Language
from keras_transformer.special_ids import PAD
from keras_transformer.translation.ensemble import in_precision
from keras_transformer.translation.sentences import (
    Hypothesis,
    as_bytes,
    check_count,
    check_n_best,
    in_batches,
    sample_seeds,
)
from keras_transformer.translation.text_model import LANGUAGES, TEXT, TextModel, make_valid
from keras_transformer.utils import Texts

T = TypeVar("T")

SEEDS = tf.TensorSpec([None], tf.int64, "seeds")
TARGET = tf.TensorSpec([None, None], tf.int32, "target")


class Translator(TextModel):
    """Translates text with a trained model; what `export` writes and TF Serving runs.

    `serve` is the `serving_default` signature: `text`, string `[B]`, to `text`, string `[B]`, and
    `log_prob`, float32 `[B]`, the sum of the natural-log probabilities of the generated tokens,
    END included. It takes any batch, an empty one too, and any content: invalid UTF-8 is read as
    U+FFFD, a source is truncated to the model's `max_length` tokens, decoding stops after as
    many, and an empty line gives an empty line with log_prob 0.

    Args:
        model: A built `Transformer`; or a list of several, an ensemble, by the mean of their
            probabilities.
        source_tokenizer, target_tokenizer: `SubwordTokenizer`s or others (`Tokenizer`), the same
            object when shared.
        max_output_length: Maximum number of tokens of a translation; the model's `max_length` when
            left out or larger.
        source_end: Whether END is appended to sources, as in the training of the model.
        card: Dict of plain Python objects that `export` adds to the model card.

    Attributes:
        default_search: `SearchConfig` of calls without search options: greedy search, or that of an
            imported model.
        languages: `Languages` of the model, for one that translates between several.
        jit_compile: Whether XLA compiles greedy and beam search of `translate`: bool, or None for
            on a GPU only. Compiling takes seconds for each of a few shapes.

    Raises:
        ValueError: If a tokenizer is invalid, a vocabulary is not of the size that the model was
            built for, or `max_output_length` is not positive.

    Example:

    >>> translator = Translator(model, tokenizer, tokenizer)
    >>> translator("samedi 9 mai 1998", beam_size=5)
    '1998-05-09'
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # Keras pickles the model as a `.keras` file; graphs are traced again.
        tokenizers = self.source_tokenizer, self.target_tokenizer
        arguments = self.model, *tokenizers, self.max_output_length, self.source_end, self.card
        names = "default_search", "languages", "jit_compile"
        return type(self), arguments, {name: getattr(self, name) for name in names}

    def __call__(
        self,
        texts: Any,
        *,
        batch_size: int = 256,
        search: SearchConfig | None = None,
        prefixes: Any = None,
        source_language: Language = None,
        target_language: Language = None,
        **options: Any,
    ) -> Any:
        """Translates text of any kind.

        Args:
            texts: A string; several, see `translate`; or a string tensor, `()` or `(B,)`, also in a
                `tf.function` or the `map` of a dataset.
            batch_size, search, **options: See `translate`; in a graph, all texts are one batch.
            prefixes: What the translations begin with: a string, strings, or a string tensor of
                the same shape. In a graph, a prefix that is too long is truncated.
            source_language, target_language: See `translate`; in a graph, one for all texts.

        Returns:
            For a string, a string; for several, a list of strings; for a tensor, a string tensor of
            the same shape.

        Raises:
            ValueError: See `translate`; or if a tensor is not a string tensor of rank 0 or 1.
        """
        search = resolve_search(search, options, self.default_search)
        languages = source_language, target_language
        if tf.is_tensor(texts):
            return self._translate_tensor(texts, batch_size, search, prefixes, *languages)
        if not isinstance(texts, (str, bytes)):
            return self.translate(texts, batch_size, search, prefixes, 0, *languages)
        prefixes = [prefixes] if isinstance(prefixes, (str, bytes)) else prefixes
        return self.translate([texts], batch_size, search, prefixes, 0, *languages)[0]

    def in_precision(self, policy: str) -> "Translator":
        """The same translator with another dtype policy.

        Args:
            policy: Name of a Keras dtype policy, such as `"float32"` or `"mixed_bfloat16"`.

        Returns:
            `Translator` with equal weights; itself if it has this policy already.
        """
        model = in_precision(self.model, policy)
        return self if model is self.model else copied(self, model, self.max_output_length)

    def translate(
        self,
        texts: Texts,
        batch_size: int = 256,
        search: SearchConfig | None = None,
        prefixes: Texts | None = None,
        first: int = 0,
        source_language: Language = None,
        target_language: Language = None,
        **options: Any,
    ) -> list[str]:
        """Translates a list of sentences.

        Args:
            texts: Strings, in any order and of any content. Of those that are longer than the
                model's `max_length`, only the beginning is translated, with a warning.
            batch_size: Number of sentences translated at once, those of similar length together;
                for a beam search of N beams, divided by N.
            search: `SearchConfig`; `default_search` if None. What is sampled for a sentence depends
                on the seed and its index, not on `batch_size`.
            prefixes: Strings, one for each text, that the translations begin with.
            first: Index of the first text if `texts` are a slice of a longer list.
            source_language, target_language: Codes of languages, such as `"de"`: one for all
                texts, or a list with one for each. By default those of `languages`.
            **options: Fields of `SearchConfig`, such as `beam_size=5`, instead of `search`.

        Returns:
            List of strings, in the same order.

        Raises:
            ValueError: If `texts` is one string, a search option is unknown or given twice, the
                beam is wider than the vocabulary, or a prefix has more tokens than the translation
                may have.

        Example:

        >>> translator.translate(["samedi 9 mai 1998"], beam_size=5)
        ['1998-05-09']
        """
        arguments = texts, batch_size, search, prefixes, 1, first, source_language, target_language
        return [hypotheses[0].text for hypotheses in self.translate_n_best(*arguments, **options)]

    def translate_n_best(
        self,
        texts: Texts,
        batch_size: int = 256,
        search: SearchConfig | None = None,
        prefixes: Texts | None = None,
        n_best: int | None = None,
        first: int = 0,
        source_language: Language = None,
        target_language: Language = None,
        **options: Any,
    ) -> list[list[Hypothesis]]:
        """Finds several translations of each sentence of a list.

        Args:
            texts, batch_size, search, prefixes, first, source_language, target_language, **options:
                See `translate`.
            n_best: Number of translations of each text; by default the beam size. When sampling,
                the k-th sample equals the first sample of the seed `search.seed + k`.

        Returns:
            For each text, a list of `n_best` times `Hypothesis`: (text, log_prob, score). A beam's
            come best first. Where it has fewer, such as one for an empty line, the rest are empty,
            with log_prob and score -1e9, as in the signature `beam`.

        Raises:
            ValueError: See `translate`; or if `n_best` is larger than the beam.

        Example:

        >>> translator.translate_n_best(["samedi 9 mai 1998"], beam_size=5, n_best=2)[0][0].text
        '1998-05-09'
        """
        search = resolve_search(search, options, self.default_search)
        n_best = check_n_best(n_best, search)
        draws = n_best if search.sample else 1
        codes = {"source_language": source_language, "target_language": target_language}
        rows, languages = self.read_rows(texts, first, **codes)
        if prefixes is not None:
            limit = self.length_limit(search)
            prefixes = self.read_targets("prefix", prefixes, len(rows), False, limit, first)
        inputs = (TEXT, SEEDS, LANGUAGES, *(() if prefixes is None else (TARGET,)))
        how = {"search": search, "xla": self._is_compiled_by_xla(search)}
        translate_batch = self.compiled(self.translate_batch, inputs, **how)
        seeds = np.array(sample_seeds(search, first, len(rows), draws), np.int64)

        def run(chosen):
            numbers = [i // draws for i in chosen]
            batch = [[rows[i] for i in numbers], seeds[chosen], languages[numbers]]
            if prefixes is not None:
                batch.append(tf.gather(prefixes, numbers).to_tensor(PAD))
            return _list_hypotheses(*translate_batch(*batch))

        lengths = [len(row) for row in rows for _ in range(draws)]
        found = in_threads(run, lengths, batch_size // search.beam_size)
        starts = range(0, len(found), draws)
        return [list(itertools.chain(*found[i : i + draws]))[:n_best] for i in starts]

    def _is_compiled_by_xla(self, search):
        """Whether XLA compiles a search: it needs a fixed maximum, and draws other numbers."""
        if self.run_eagerly or search.sample or self.length_ratio:
            return False
        return has_gpu() if self.jit_compile is None else self.jit_compile

    def score(
        self, sources: Texts, targets: Texts, batch_size: int = 64, **languages: Language
    ) -> list[tuple[float, int]]:
        """Computes how probable given translations are.

        Args:
            sources: Strings; truncated as in `translate`.
            targets: As many strings, the translations.
            batch_size: Number of pairs scored at once.
            **languages: `source_language` and `target_language`, see `translate`.

        Returns:
            For each pair (log_prob, number of tokens), END included in both: natural logarithm,
            not normalised by length, of the target as the tokenizer splits it into pieces. (0.0, 0)
            for an empty line with an empty translation, for which the model is not run.

        Raises:
            ValueError: If the numbers of sources and targets differ, or a target has more tokens
                than the model's `max_length`.
        """
        rows, language_rows = self.read_rows(sources, 0, **languages)
        ids = self.read_targets("target", targets, len(rows), end=True)
        score_batch = self.compiled(self.score_batch, (TEXT, TARGET, LANGUAGES))

        def run(chosen):
            target, texts = tf.gather(ids, chosen).to_tensor(PAD), [rows[i] for i in chosen]
            values, counts = score_batch(texts, target, language_rows[chosen])
            return list(zip(values.numpy().tolist(), counts.numpy().tolist(), strict=True))

        return in_threads(run, ids.row_lengths().numpy(), batch_size)

    def align(
        self,
        sources: Texts,
        targets: Texts,
        layers: Iterable[int] | None = None,
        heads: Iterable[int] | None = None,
        batch_size: int = 64,
        **languages: Language,
    ) -> list[tuple[list[str], list[str], list[int]]]:
        """Finds the source token that each target token attends to most.

        Args:
            sources, targets, batch_size, **languages: See `score`.
            layers: Numbers of the decoder layers, from 1, whose cross-attention is averaged. By
                default the second-to-last, whose attention comes closest to alignments made by hand
                (Garg et al., 2019, "Jointly Learning to Align and Translate with Transformer
                Models", six layers); with fewer than three layers, the last.
            heads: Numbers of the heads, from 1; all by default.

        Returns:
            For each pair (source pieces, target pieces, positions): lists of strings, without
            END and tokens of languages, and for each target piece the position of a source piece.
            No positions when there is no source piece.

        Raises:
            ValueError: See `score`; or if a layer or head does not exist.
        """
        if layers is not None:
            layers = to_indices("layer", layers, self.model.decoder.num_layers)
        if heads is not None:
            heads = to_indices("head", heads, self.model.num_heads)
        rows, language_rows = self.read_rows(sources, 0, **languages)
        ids = self.read_targets("target", targets, len(rows), end=True)
        options = {
            "layers": layers or (self.default_layer,),
            "heads": heads or tuple(range(self.model.num_heads)),
        }
        align_batch = self.compiled(self.align_batch, (TEXT, TARGET, LANGUAGES), **options)

        def pieces(tokenizer, ids):
            return [[x.decode("utf-8") for x in row] for row in tokenizer.pieces(ids).to_list()]

        def run(chosen):
            target, texts = tf.gather(ids, chosen), [rows[i] for i in chosen]
            source, positions = align_batch(texts, target.to_tensor(PAD), language_rows[chosen])
            source = tf.ragged.boolean_mask(source, source != PAD)
            sources = pieces(self.source_tokenizer, source)
            targets = pieces(self.target_tokenizer, target[:, :-1])
            return [
                (a, b, row[: len(b)] if a else [])
                for a, b, row in zip(sources, targets, positions.numpy().tolist(), strict=True)
            ]

        return in_threads(run, ids.row_lengths().numpy() - 1, batch_size)

    def read_targets(
        self,
        name: str,
        texts: Texts,
        count: int,
        end: bool = False,
        max_tokens: int | None = None,
        first: int = 0,
    ) -> tf.RaggedTensor:
        """Tokenizes targets, which are called `name` in errors: ragged int32 `(B, None)`.

        Raises:
            ValueError: If their number is not `count`, or one has more tokens than `max_tokens`, by
                default the model's `max_length`. `first` is the number of the first one.
        """
        texts, limit = as_bytes(texts), max_tokens or self.model.max_length
        bound = "max_output_length" if limit < self.model.max_length else "the model's max_length"
        check_count(name, texts, count)
        ids = tf.cast(self.target_tokenizer(texts, end), tf.int32)
        for number, length in enumerate(ids.row_lengths().numpy(), first + 1):
            if length > limit:
                raise ValueError(
                    f"{name.capitalize()} {number} has {length} tokens, but {bound} is {limit}."
                )
        return ids

    def _translate_tensor(self, text, batch_size, search, prefix, *languages):
        """Translates a string tensor `()` or `(B,)`, eagerly or as part of a graph."""
        if text.dtype != tf.string or text.shape.rank not in (0, 1):
            raise ValueError(
                f"Expected a string tensor () or (B,), received {text.dtype.name} {text.shape}."
            )
        if prefix is not None:
            prefix = tf.convert_to_tensor(prefix, tf.string)
            if not prefix.shape.is_compatible_with(text.shape):
                raise ValueError(
                    f"Expected prefixes of the shape {text.shape}, received {prefix.shape}."
                )
        rows, prefixes = (x if x is None else tf.reshape(x, [-1]) for x in (text, prefix))
        if tf.executing_eagerly():
            given = None if prefixes is None else prefixes.numpy().tolist()
            texts = rows.numpy().tolist()
            found = self.translate(texts, batch_size, search, given, 0, *languages)
            found = tf.constant(found, tf.string, [len(found)])
        else:
            seeds = (search.seed << 32) + tf.range(tf.size(rows, tf.int64))
            if prefixes is not None:
                message = "There must be one prefix for each source."
                check = tf.debugging.assert_equal(tf.size(prefixes), tf.size(rows), message)
                with tf.control_dependencies([check]):
                    prefixes = tf.identity(prefixes)
                prefixes = self.target_tokenizer(make_valid(prefixes)).to_tensor(PAD)
            languages = tf.tile(self.language_rows([""], *languages), [tf.size(rows), 1])
            found = self.translate_batch(rows, seeds, languages, prefixes, search)[0][:, 0]
        return tf.reshape(found, tf.shape(text))


def _list_hypotheses(*outputs):
    """The hypotheses of each text, from texts, log-probabilities and scores `(B, N)`."""
    columns = (tensor.numpy().tolist() for tensor in outputs)
    return [
        [Hypothesis(text.decode(), *numbers) for text, *numbers in zip(*row, strict=True)]
        for row in zip(*columns, strict=True)
    ]


def in_threads(
    function: Callable[[list[int]], Sequence[T]],
    lengths: Sequence[int] | np.ndarray,
    batch_size: int,
) -> list[T]:
    """Returns the results of items, which a function computes in batches of similar length.

    `function` maps the indices of some items to a list of as many results. Several threads call it
    where TensorFlow runs each operation on one core (`configure_threads`).
    """
    at_once = inter_op_threads()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        map_batches: Any = pool.map if at_once > 1 else map
        return in_batches(functools.partial(map_batches, function), lengths, batch_size, at_once)


def to_indices(name: str, numbers: Iterable[int], count: int) -> tuple[int, ...]:
    """Converts the numbers of layers or heads, from 1 to `count`, to indices."""
    numbers = tuple(numbers)
    if not numbers:
        raise ValueError(f"Expected at least one {name} from 1 to {count}, received none.")
    for number in numbers:
        if number not in range(1, count + 1):
            raise ValueError(f"Unknown {name} {number}: choose from 1 to {count}.")
    return tuple(number - 1 for number in numbers)


def copied(translator: Translator, model: Any, max_output_length: int) -> Translator:
    """A translator of the same class and attributes, with another model and limit."""
    create, (_, source, target, _, *others), state = translator.__reduce__()
    copy = create(model, source, target, max_output_length, *others)
    vars(copy).update(state)
    return copy
