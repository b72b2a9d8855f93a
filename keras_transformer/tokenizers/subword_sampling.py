"""Random segmentations: BPE-dropout and the subword regularization of unigram models.

The sample of a sentence depends only on its key, so that a resumed training samples the same in any
process. sentencepiece's own sampler cannot do that: its seed depends on the thread.
"""

import functools
import itertools
import math
import threading
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from keras_transformer.tokenizers.pieces import ModelPieces, Spelling, Words, concatenated_ranges

# From ids of sentences one after the other, without START and END, int (I,), their lengths (B,) and
# a key for each, uint64 (B,), to ids, int32, and lengths, int64 (B,). Equal keys give equal pieces.
SubwordSampler: TypeAlias = Callable[
    [np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]
]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@functools.lru_cache(maxsize=4)  # takes a few tenths of a second; both sides may share one
def subword_sampler(model: bytes, strength: float) -> SubwordSampler:
    """Returns a function that segments texts at random.

    Args:
        model: A serialized SentencePiece model.
        strength: See `SubwordTokenizer.sampler`.

    Returns:
        `BpeDropout` or `UnigramSampling`; for other types, whose texts have one segmentation, a
        function that returns its arguments.
    """
    if not 0 < strength <= 1:
        raise ValueError(f"strength must be above 0 and at most 1, received {strength}.")
    vocabulary = ModelPieces(model)
    if vocabulary.model_type == "bpe":
        return BpeDropout(vocabulary, strength)
    if vocabulary.model_type == "unigram":
        return UnigramSampling(vocabulary, strength)
    return lambda ids, lengths, keys: (np.asarray(ids, np.int32), np.asarray(lengths, np.int64))


# Random numbers.


def mix_bits(numbers: np.ndarray) -> np.ndarray:
    """Maps numbers to others that look random: the last step of splitmix64, a bijection.

    Steele et al., 2014, "Fast splittable pseudorandom number generators".

    Args:
        numbers: uint64 of rank 1 or more.

    Returns:
        uint64 of the same shape.
    """
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def pair_keys(
    seed: int, pass_number: int, side: int, pairs: np.ndarray, corpus: int = 0
) -> np.ndarray:
    """Returns the keys of the random numbers for pairs of a corpus in one pass.

    The five numbers are folded in one after the other, x → mix_bits((x + φ) ^ number), from 0, in
    the order seed, pass, side, corpus, pair. Integers only: the same on every machine.

    Args:
        seed: Seed of the training.
        pass_number: Which pass over the corpus, from 0.
        side: 0 for the source, 1 for the target.
        pairs: Numbers of the pairs in the corpus, `(B,)`.
        corpus: Number of the corpus in a mix.

    Returns:
        uint64 `(B,)`.
    """
    state = np.zeros(1, np.uint64)
    for number in (seed, pass_number, side, corpus):
        state = mix_bits((state + _GOLDEN) ^ np.uint64(number % (1 << 64)))
    return mix_bits((state + _GOLDEN) ^ np.asarray(pairs).astype(np.uint64))


def random_numbers(keys: np.ndarray, *places: np.ndarray) -> np.ndarray:
    """Returns a random number for each key and place.

    Args:
        keys: uint64 `(C,)`, such as `pair_keys` returns.
        *places: Non-negative integers `(C,)` that identify one of the numbers of a key.

    Returns:
        uint64 `(C,)`.
    """
    numbers = keys
    for place in places:
        numbers = numbers * _GOLDEN + place.astype(np.uint64)
    return mix_bits(numbers * _GOLDEN)


# Byte-pair encoding.

NOTHING = -1  # where no piece begins
_NEVER = np.iinfo(np.int64).max  # the turn of pairs that cannot be merged
_PLACES = 32  # bits of a turn that hold a place in the word


class BpeMerges:
    """Merges characters to pieces as sentencepiece does: the best score first, then the leftmost.

    Each iteration makes the next merge of every word, so that a batch takes as many iterations as
    its longest word has merges.

    Args:
        vocabulary: `ModelPieces` of type bpe.
    """

    def __init__(self, vocabulary: ModelPieces) -> None:
        known = vocabulary.ids()
        self._stride = len(vocabulary) + 1  # one more, for NOTHING
        merges = [
            (known[piece[:i]] * self._stride + known[piece[i:]], id)
            for piece, id in known.items()
            for i in range(1, len(piece))
            if piece[:i] in known and piece[i:] in known
        ]
        table = np.array(sorted(merges), np.int64).reshape(-1, 2)
        self._pairs = np.append(table[:, 0], _NEVER)
        self._merged = np.append(table[:, 1], NOTHING)
        _, ranks = np.unique(-vocabulary.scores, return_inverse=True)
        self._turns = ranks.astype(np.int64)[self._merged] << _PLACES

    def __call__(
        self,
        ids: np.ndarray,
        lengths: np.ndarray,
        is_dropped: Callable[..., np.ndarray] | None = None,
        on_merge: Callable[..., None] | None = None,
    ) -> np.ndarray:
        """Merges the characters of words.

        Args:
            ids: Characters of the words, one after the other, `(N,)`; longer pieces are merged
                further.
            lengths: Number of characters of each word, `(W,)`.
            is_dropped: Function of possible merges: the number of the word, and the places in the
                word's characters where the left part begins, where the right part begins and where
                it ends, each `(C,)`. Returns which merges to skip, bool `(C,)`. None skips none.
            on_merge: Called with the merges that are made, with the same arguments.

        Returns:
            Ids of the merged pieces where they begin, NOTHING elsewhere, `(N,)`.
        """
        merged = np.array(ids, np.int64)
        starts = np.cumsum(lengths) - lengths
        longest = 2
        while (chosen := np.flatnonzero(lengths >= longest)).size:
            # Words of similar length together: all take the room of the longest.
            chosen = chosen[lengths[chosen] < 4 * longest]
            if chosen.size:
                self._merge(merged, starts[chosen], lengths[chosen], chosen, is_dropped, on_merge)
            longest *= 4
        return merged

    def _merge(self, merged, starts, lengths, numbers, is_dropped, on_merge):
        """Merges some of the words, in place."""
        # One column per word, one row per place: row 0 and the rows after a word hold NOTHING.
        width, height = len(starts), int(lengths.max()) + 2
        column = np.repeat(np.arange(width), lengths)
        row = concatenated_ranges(np.zeros(width, np.int64), lengths)
        source, slots = starts[column] + row, (row + 1) * width + column
        symbols = np.full(height * width, NOTHING, np.int64)
        symbols[slots] = merged[source]
        rows = np.repeat(np.arange(height), width)
        after, before = rows + 1, rows - 1
        results = np.full(height * width, NOTHING, np.int64)
        turns = np.full((height, width), _NEVER)

        def find_merges(left, middle, end, columns):
            """Returns the turns of possible merges, `(C,)`, and stores their results."""
            slot = left * width + columns
            pairs = symbols[slot] * self._stride + symbols[middle * width + columns]
            found = np.searchsorted(self._pairs, pairs)
            there = np.flatnonzero(self._pairs[found] == pairs)
            if is_dropped is not None:
                places = (x[there] - 1 for x in (left, middle, end))
                there = there[~is_dropped(numbers[columns[there]], *places)]
            found = found[there]
            results[slot[there]] = self._merged[found]
            turn = np.full(len(left), _NEVER)
            turn[there] = self._turns[found] | left[there]
            return turn

        turns[row + 1, column] = find_merges(row + 1, row + 2, row + 3, column)
        columns = np.arange(width)
        while True:
            best = turns.min(axis=0)
            alive = best < _NEVER
            if not alive.all():
                turns, columns, best = turns[:, alive], columns[alive], best[alive]
            if not len(best):
                break
            left = best & ((1 << _PLACES) - 1)
            slot = left * width + columns
            right = after[slot]
            right_slot = right * width + columns
            end = after[right_slot]
            if on_merge is not None:
                on_merge(numbers[columns], left - 1, right - 1, end - 1)
            symbols[slot], symbols[right_slot] = results[slot], NOTHING
            after[slot], before[end * width + columns] = end, left
            previous, following = before[slot], after[end * width + columns]
            both = np.append(columns, columns)
            turn = find_merges(
                np.append(previous, left), np.append(left, end), np.append(end, following), both
            )
            among = np.arange(len(columns))
            turns[right, among] = _NEVER
            turns[previous, among], turns[left, among] = np.split(turn, 2)
        merged[source] = symbols[slots]


class BpeDropout:
    """`SubwordSampler` that skips some of the merges (Provilkov et al., 2020, §3).

    As in sentencepiece's sampler, each possible merge, identified by where its two parts begin and
    end, is skipped with probability `dropout`, decided once: by a hash of the sentence's key and
    these places, so that neither the order of the merges nor the rest of the batch matters.

    Ids of bytes, UNK and user-defined pieces are kept, and so are pieces with a character that is
    not a piece itself.

    Args:
        vocabulary: `ModelPieces` of type bpe.
        dropout: Probability, from 0 to 1.
    """

    def __init__(self, vocabulary: ModelPieces, dropout: float) -> None:
        if vocabulary.unused.any():
            raise ValueError(
                "Subword sampling takes a model of type bpe without unused pieces, received one "
                f"with {vocabulary.unused.sum()}: train it without restricting its vocabulary."
            )
        self._threshold = np.uint64(round(dropout * (1 << 53)))
        self._merges = BpeMerges(vocabulary)
        known = vocabulary.ids()
        whole = ~vocabulary.normal
        spelled = []
        for id, piece in enumerate(vocabulary.pieces):
            whole[id] = whole[id] or any(character not in known for character in piece)
            spelled.append([id] if whole[id] else [known[character] for character in piece])
        self._spelling = Spelling(vocabulary, whole)
        self._characters = np.array([id for ids in spelled for id in ids], np.int64)
        self._spelled_from = np.cumsum(self._spelling.sizes) - self._spelling.sizes
        self._record_merges()

    def _record_merges(self):
        """Records the merges that make each piece when none is skipped."""
        sizes, traces = self._spelling.sizes, []
        merged = self._merges(
            self._characters, sizes, on_merge=lambda *merge: traces.append(np.stack(merge))
        )
        # The tokenizer never returns a piece that its own characters are not merged to.
        self._unmade = merged[self._spelled_from] != np.arange(len(sizes))
        piece, *places = np.concatenate([np.zeros((4, 0), np.int64), *traces], axis=1)
        order = np.argsort(piece, kind="stable")
        self._made_by = [x[order] for x in places]
        self._made_count = np.bincount(piece, minlength=len(sizes))
        self._made_from = np.cumsum(self._made_count) - self._made_count

    def __call__(
        self, ids: np.ndarray, lengths: np.ndarray, keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        words = Words(self._spelling, ids, lengths)
        keys = keys[words.sentence]  # (I,)
        changed = np.zeros(len(words.firsts), bool)
        changed[words.word[self._loses_merge(words, keys)]] = True
        pieces = np.flatnonzero(changed[words.word])
        sizes = words.sizes[pieces]
        spelled = concatenated_ranges(self._spelled_from[ids[pieces]], sizes)
        firsts = words.firsts[changed]
        keys, places = keys[firsts], words.places[firsts]

        def is_dropped(word, left, middle, end):
            place = places[word]
            return self._is_dropped(keys[word], place + left, place + middle, place + end)

        merged = self._merges(self._characters[spelled], words.word_sizes[changed], is_dropped)
        begins = merged != NOTHING
        starts = concatenated_ranges(words.starts[pieces], sizes)
        return words.replace(changed, starts[begins], merged[begins])

    def _loses_merge(self, words, keys):
        """Returns for each piece whether one of its merges is skipped, bool `(I,)`."""
        counts = self._made_count[words.ids]
        piece = np.repeat(np.arange(len(counts)), counts)
        merges = concatenated_ranges(self._made_from[words.ids], counts)
        place = words.places[piece]
        lost = self._unmade[words.ids]
        merge = (place + x[merges] for x in self._made_by)
        lost[piece[self._is_dropped(keys[piece], *merge)]] = True
        return lost

    def _is_dropped(self, keys, left, middle, end):
        return random_numbers(keys, left, middle, end) >> np.uint64(11) < self._threshold


# Unigram models.

_CACHED = 1 << 20  # maximum number of cached words, and of pieces in them, 24 bytes each
_BITS = 32  # of a random number


class UnigramSampling:
    """`SubwordSampler` that samples from all segmentations (Kudo, 2018, equation 8).

    Each segmentation of a sentence is sampled with its probability to the power `smoothing`, as
    sentencepiece does if it considers all of them rather than the n best: from the end of each
    word, the previous piece is sampled by the probabilities of everything before it. Words are
    sampled separately, since no piece crosses their boundaries.

    Ids of bytes, UNK and user-defined pieces are kept.

    Args:
        vocabulary: `ModelPieces` of type unigram.
        smoothing: Above 0; the smaller, the more uniform the probabilities.
    """

    def __init__(self, vocabulary: ModelPieces, smoothing: float) -> None:
        self._pieces = vocabulary.pieces
        self._spelling = Spelling(vocabulary, ~vocabulary.normal)
        scores = smoothing * vocabulary.scores.astype(np.float64)
        # Also the prefixes of pieces, after which a longer piece may be found.
        self._found: dict[str, tuple[int, float] | None] = {}
        for piece, id in vocabulary.ids().items():
            self._found[piece] = id, float(scores[id])
            for i in range(1, len(piece)):
                self._found.setdefault(piece[:i])
        self._lock = threading.Lock()
        self._clear_cache()

    def _clear_cache(self):
        """Clears the cache, which does not affect the results."""
        self._words = {}  # the number of each word's first place, by a hash
        self._places = 0  # of all words
        # The pieces that end at each place: the place's number, with the sum of the probabilities
        # up to this piece in the lower bits; the piece's id; where in the word it begins.
        self._arrivals = np.zeros((3, 0), np.int64)

    def __call__(
        self, ids: np.ndarray, lengths: np.ndarray, keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        words = Words(self._spelling, ids, lengths)
        with self._lock:  # two datasets may read at once
            home = self._find_words(words)
            sums, into, lefts = self._arrivals
        changed = home >= 0
        first = words.starts[words.firsts]
        place_in_sentence = words.places[words.firsts]
        word = np.flatnonzero(changed)
        end = words.word_sizes[word]
        keys = keys[words.sentence[words.firsts]]
        nothing = np.zeros(0, np.int64)
        places, pieces = [nothing], [nothing]
        while len(word):
            random = random_numbers(keys[word], place_in_sentence[word], end) >> np.uint64(
                64 - _BITS
            )
            place = (home[word] + end) << _BITS
            way = np.searchsorted(sums, place + random.astype(np.int64), side="right")
            end = lefts[way]
            places.append(first[word] + end)
            pieces.append(into[way])
            word, end = word[end > 0], end[end > 0]
        return words.replace(changed, np.concatenate(places), np.concatenate(pieces))

    def _find_words(self, words):
        """Returns the first place of each word in the cache; -1 for words with one segmentation."""
        if not len(words.firsts):
            return np.zeros(0, np.int64)
        turn = (np.arange(len(words.ids)) - words.firsts[words.word]).astype(np.uint64)
        hashes = mix_bits(mix_bits(words.ids.astype(np.uint64)) + turn)
        hashes = np.add.reduceat(hashes, words.firsts)
        distinct, examples, number = np.unique(hashes, return_index=True, return_inverse=True)
        if max(len(self._words), self._arrivals.shape[1]) > _CACHED:
            self._clear_cache()
        keys = distinct.tolist()
        missing = [i for i, key in enumerate(keys) if key not in self._words]
        if missing:
            ends = np.append(words.firsts, len(words.ids))
            self._cache_words(
                (keys[i], words.ids[ends[examples[i]] : ends[examples[i] + 1]].tolist())
                for i in missing
            )
        return np.array([self._words[key] for key in keys])[number]

    def _cache_words(self, words):
        """Caches the segmentations of words, given by their hashes and ids."""
        new = []
        for key, pieces in words:
            whole = self._spelling.whole[pieces[0]]
            ways = (
                None
                if whole
                else self._list_pieces_by_end("".join(self._pieces[id] for id in pieces))
            )
            self._words[key] = -1 if ways is None else self._places
            for end, into in enumerate(ways or ()):
                base = (self._places + end) << _BITS
                new += [(base + sum, id, left) for sum, id, left in into]
            self._places += len(ways or ())
        new = np.array(new, np.int64).reshape(-1, 3).T
        self._arrivals = np.concatenate([self._arrivals, new], axis=1)

    def _list_pieces_by_end(self, text):
        """Lists the pieces that end at each place of a word, from 0 on.

        Returns:
            For each place a list of (sum of the probabilities up to this piece, in units of 2^-32,
            id, where it begins); None if there is one segmentation, or none.
        """
        ways = [[] for _ in range(len(text) + 1)]
        total = 0.0  # logarithm of the sum over all segmentations up to here
        for start in range(len(text)):
            if start:
                if not ways[start]:
                    continue
                total, ways[start] = _cumulate(ways[start])
            for end in range(start + 1, len(text) + 1):
                found = self._found.get(text[start:end], ())
                if found == ():
                    break
                if found:
                    id, score = found
                    ways[end].append((total + score, id, start))
        if not ways[-1] or all(len(into) <= 1 for into in ways):
            return None
        ways[-1] = _cumulate(ways[-1])[1]
        return ways


def _cumulate(ways):
    """Returns the logarithm of the sum of weights, and the pieces with cumulated probabilities."""
    largest = max(weight for weight, _, _ in ways)
    sums = list(itertools.accumulate(math.exp(weight - largest) for weight, _, _ in ways))
    unit = (1 << _BITS) / sums[-1]  # math, not NumPy, whose exp is not the same on all processors
    shares = [(round(x * unit), *way[1:]) for x, way in zip(sums, ways, strict=True)]
    return largest + math.log(sums[-1]), shares
