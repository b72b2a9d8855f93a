"""Text to text: tokenizers, model and decoding in one graph.

Shapes: B batch, N hypotheses for each source, S source length, T target length.
"""

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.beam import check_beam_size, rank_by
from keras_transformer.decoding.sampling import greedy_search
from keras_transformer.decoding.search import search as search_tokens
from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.special_ids import PAD
from keras_transformer.tokenizers.tokenizer import Tokenizer
from keras_transformer.translation.hypotheses import (
    LEAST_LOG_PROB,
    Hypothesis,
    check_n_best,
    draw_seed,
)
from keras_transformer.translation.request_parts import in_parts
from keras_transformer.translation.sentence_batches import as_bytes, in_batches
from keras_transformer.translation.string_tensors import translate_tensor, with_options
from keras_transformer.translation.text_model import TARGET, TEXT, TextModel
from keras_transformer.typing import SearchOutputs, Tensor, Texts

if TYPE_CHECKING:
    from keras_transformer.transformer import Transformer

SEEDS = tf.TensorSpec([None], tf.int64, "seeds")


class Translator(TextModel):
    """Translates text with a trained model; what `export` writes and TF Serving runs.

    `serve` is the `serving_default` signature: `text`, string `[B]`, to `text`, string `[B]`, and
    `log_prob`, float32 `[B]`, the sum of the natural-log probabilities of the generated tokens,
    END included. It takes any batch, an empty one too, and any content: bytes that are no UTF-8
    count as U+FFFD, a source is cut at the model's `max_length` tokens, decoding stops after as
    many, and an empty line gives an empty line with log_prob 0.

    Args:
        model: A built `Transformer`.
        source_tokenizer, target_tokenizer: `SubwordTokenizer`s or others (`Tokenizer`), the same
            object when shared.
        longest_output: Tokens that a translation may have; the model's `max_length` when left out
            or larger.

    Raises:
        ValueError: If what should be a tokenizer is none, a vocabulary is not of the size that the
            model was built for, or `longest_output` is not positive.

    Example:

    >>> translator = Translator(model, tokenizer, tokenizer)
    >>> translator("samedi 9 mai 1998", beam_size=5)
    '1998-05-09'
    """

    def __init__(
        self,
        model: "Transformer",
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        longest_output: int | None = None,
    ) -> None:
        super().__init__(
            model, source_tokenizer, target_tokenizer, longest_output, name="translator"
        )
        self.serve = tf.function(self.translate_batch, input_signature=[TEXT], autograph=False)

    @overload
    def __call__(self, texts: str | bytes, **options: Any) -> str: ...

    @overload
    def __call__(self, texts: Texts, **options: Any) -> list[str]: ...

    def __call__(
        self,
        texts: Any,
        *,
        batch_size: int = 256,
        search: SearchConfig = GREEDY,
        prefixes: Any = None,
        **options: Any,
    ) -> Any:
        """Translates text of whatever kind.

        Args:
            texts: A string; several, as `translate` has them; or a string tensor, `()` or `(B,)`,
                also in a `tf.function` or the `map` of a dataset.
            batch_size, search: As `translate` has them; in a graph, all texts are one batch.
            prefixes: What the translations begin with: a string, strings, or a string tensor of
                the same shape, of which a graph cuts off what is too long.
            **options: Fields of `SearchConfig`, instead of those of `search`: `beam_size=5`.

        Returns:
            Of a string, a string; of several, a list of strings; of a tensor, a string tensor of
            the same shape.

        Raises:
            ValueError: As `translate` does, if there is no such option, or if a tensor is no
                string tensor of rank 0 or 1.
        """
        search = with_options(search, options)
        if tf.is_tensor(texts):
            return translate_tensor(self, texts, batch_size, search, prefixes)
        if not isinstance(texts, (str, bytes)):
            return self.translate(texts, batch_size, search, prefixes)
        prefixes = [prefixes] if isinstance(prefixes, (str, bytes)) else prefixes
        return self.translate([texts], batch_size, search, prefixes)[0]

    def in_precision(self, policy: str) -> "Translator":
        """The same translator, computing in another precision.

        Args:
            policy: Name of a Keras dtype policy, such as `"float32"` or `"mixed_bfloat16"`.

        Returns:
            `Translator` with equal weights; itself, if it computes so already.
        """
        model = self.model
        if model.dtype_policy.name == policy:
            return self
        twin = type(model).from_config(model.get_config() | {"dtype": policy})
        twin.build()
        twin.set_weights(model.get_weights())
        tokenizers = self.source_tokenizer, self.target_tokenizer
        return Translator(twin, *tokenizers, self.longest_output)

    def translate(
        self,
        texts: Texts,
        batch_size: int = 256,
        search: SearchConfig = GREEDY,
        prefixes: Texts | None = None,
        first: int = 0,
    ) -> list[str]:
        """Translates a list of sentences.

        Args:
            texts: Strings, in any order and of any content.
            batch_size: Number of sentences translated at once, those of similar length together;
                a beam search of N beams takes an N-th of it.
            search: `SearchConfig`: greedily unless said otherwise. What is drawn for a sentence
                depends on the seed and its number, not on `batch_size`.
            prefixes: Strings, one for each text, that the translations begin with.
            first: Number of the first text, where these are some of many; the others follow it.

        Returns:
            List of as many strings, in the same order.

        Raises:
            ValueError: If `texts` is one string, the beam is wider than the vocabulary, or a
                prefix has more tokens than the translation may have.
        """
        n_best = self.translate_n_best(texts, batch_size, search, prefixes, 1, first)
        return [hypotheses[0].text for hypotheses in n_best]

    def translate_n_best(
        self,
        texts: Texts,
        batch_size: int = 256,
        search: SearchConfig = GREEDY,
        prefixes: Texts | None = None,
        n_best: int | None = None,
        first: int = 0,
    ) -> list[list[Hypothesis]]:
        """Translates a list of sentences, each in several ways.

        Args:
            texts, batch_size, search, prefixes, first: As `translate` has them.
            n_best: How many translations of each; as many as the beam is wide when left out.
                Samples are drawn so many times, the k-th as `search.seed + k` draws the first.

        Returns:
            For each text, a list of `n_best` times `Hypothesis`: (text, log_prob, score). Those
            of a beam come best first. Where it has fewer, as of an empty line, which has one, the
            rest are empty, with log_prob and score -1e9: as the signature `beam` answers.

        Raises:
            ValueError: As `translate` does, or if the beam is not so wide.
        """
        n_best = check_n_best(n_best, search)
        draws = n_best if search.sample else 1
        rows = as_bytes(texts)
        check_beam_size(search.beam_size, self.model.target_vocabulary_size)
        if prefixes is not None:
            options = dict(longest=self._longest(search), first=first)
            prefixes = self.read_targets("prefix", prefixes, len(rows), **options)
        inputs = (TEXT, SEEDS) if prefixes is None else (TEXT, SEEDS, TARGET)
        translate = self.compiled(self.search_batch, inputs, search=search)

        def translate_batch(chosen):
            numbers, draw = np.divmod(chosen, draws)
            pairs = zip(numbers + first, draw, strict=True)
            seeds = [draw_seed(search, *pair) for pair in pairs]
            batch = [[rows[i] for i in numbers], np.array(seeds, np.int64)]
            if prefixes is not None:
                batch.append(tf.gather(prefixes, numbers).to_tensor(PAD))
            outputs = (tensor.numpy() for tensor in translate(*batch))
            return [
                [
                    Hypothesis(text.decode("utf-8"), float(log_prob), float(score))
                    for text, log_prob, score in zip(*row, strict=True)
                ]
                for row in zip(*outputs, strict=True)
            ]

        sentences = max(1, batch_size // search.beam_size)
        lengths = [len(row) for row in rows for _ in range(draws)]
        found = in_batches(translate_batch, lengths, sentences)
        return [
            list(itertools.chain(*found[i : i + draws]))[:n_best]
            for i in range(0, len(found), draws)
        ]

    def translate_batch(
        self,
        text: Tensor,
        search_fn: Callable[..., SearchOutputs] = greedy_search,
        options: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Does what `serve` does.

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
        """The same from ids `(B, S)`, as `close` makes them: target ids `(B, T)`, and what
        `translate_batch` returns."""
        tokens, _, log_prob = self._search(search_fn, source, self.longest_output, options or {})
        output = self._write(tokens)
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
        """Translations, their log-probabilities and scores, as `Hypothesis` has them, `(B, N)`
        each; empty and `LEAST_LOG_PROB` where there is none."""
        source, empty = self.read_source(text)
        rows, beam_size = tf.shape(source)[0], search.beam_size
        options = {"prefix": prefix, "seeds": seeds}
        options = {name: x for name, x in options.items() if x is not None}
        search_fn = functools.partial(search_tokens, config=search)
        tokens, lengths, log_prob = self._search(search_fn, source, self._longest(search), options)
        ranked = beam_size > 1
        score = rank_by(log_prob, lengths, search.length_penalty) if ranked else log_prob
        output = self._write(tf.reshape(tokens, [rows * beam_size, tf.shape(tokens)[2]]))
        output = tf.reshape(output, [rows, beam_size])
        only = tf.one_hot(tf.zeros([rows], tf.int32), beam_size, 0.0, LEAST_LOG_PROB)
        empty = empty[:, tf.newaxis]
        log_prob, score = (
            tf.where(empty, only, tf.maximum(x, LEAST_LOG_PROB)) for x in (log_prob, score)
        )
        return tf.where(empty | (log_prob == LEAST_LOG_PROB), "", output), log_prob, score

    def bound(self, source: Tensor, longest: int) -> int | Tensor:
        """Steps that a search may take for ids `(B, S)`; here `longest`, whatever these are."""
        return longest

    def _search(self, search_fn, source, longest, options):
        """Tokens `(B, ..., T)`, lengths and log-probabilities `(B, ...)` for ids `(B, S)`."""

        def search_rows(source, **options):
            state = self.model.initial_state(source)
            rows = tf.shape(source)[0]
            steps = self.bound(source, longest)
            return search_fn(self.model.make_step(), state, rows, steps, **options)

        return in_parts(search_rows, {"source": source} | options)

    def _longest(self, search):
        """Tokens that a translation may have when searched for like this."""
        return min(search.longest_output or self.longest_output, self.longest_output)

    def _write(self, tokens):
        """Ids `(B, T)` to text `(B,)`."""
        output = self.target_tokenizer.detokenize(tokens)
        # Byte pieces may spell anything, and JSON takes only UTF-8.
        return tf.strings.unicode_transcode(output, "UTF-8", "UTF-8", errors="replace")
