"""BPE-dropout: words cut into other pieces each time, by leaving merges out."""

import numpy as np

from keras_transformer.tokenizers.bpe_merges import NOTHING, BpeMerges
from keras_transformer.tokenizers.model_pieces import ModelPieces
from keras_transformer.tokenizers.random_keys import drawn
from keras_transformer.tokenizers.words_of_pieces import Spelling, Words, flat, spread


class BpeDropout:
    """Cuts sentences into other pieces, leaving out merges (Provilkov et al., 2020, §3).

    As in sentencepiece's sampler each possible merge, given by where its two parts begin and end,
    is left out with a probability of `dropout`, decided once. Decided by a hash of the sentence's
    key and those places, so that nothing depends on the order of the merges or on what else there
    is in a batch.

    Ids of bytes, of UNK and of what users have defined stay, and so do pieces with characters that
    are no pieces themselves.

    Args:
        vocabulary: `ModelPieces` of the type bpe.
        dropout: Probability, from 0 to 1.

    Call arguments:
        ids: int `(I,)`, those of the sentences one after the other, without START and END, as the
            tokenizer gives them.
        lengths: Number of ids of each sentence, `(B,)`.
        keys: uint64 `(B,)`: equal ones give equal pieces.

    Returns:
        ids, int32, and lengths, int64 `(B,)`.

    Raises:
        ValueError: If pieces of the vocabulary are marked as unused.
    """

    def __init__(self, vocabulary: ModelPieces, dropout: float) -> None:
        if vocabulary.unused.any():
            raise ValueError(
                "Subword sampling takes a model of type bpe without unused pieces, received one "
                f"with {vocabulary.unused.sum()}: train it without restricting its vocabulary."
            )
        self._threshold = np.uint64(round(dropout * (1 << 53)))
        self._merges = BpeMerges(vocabulary)
        normal = vocabulary.normal
        known = {piece: id for id, piece in enumerate(vocabulary.pieces) if normal[id]}
        whole = ~normal
        spelled = []
        for id, piece in enumerate(vocabulary.pieces):
            whole[id] = whole[id] or any(character not in known for character in piece)
            spelled.append([id] if whole[id] else [known[character] for character in piece])
        self._spelling = Spelling(vocabulary, whole)
        self._characters, self._spelled_from = flat(spelled)
        self._trace()

    def _trace(self):
        """Notes the merges that make each piece where nothing is left out."""
        sizes, traces = self._spelling.sizes, []
        merged = self._merges(
            self._characters, sizes, made=lambda *merge: traces.append(np.stack(merge))
        )
        # What its own characters are not merged to was never one of the tokenizer's ids.
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
        changed[words.word[self._lose_one(words, keys)]] = True
        pieces = np.flatnonzero(changed[words.word])
        sizes = words.sizes[pieces]
        characters = self._characters[spread(self._spelled_from[ids[pieces]], sizes)]
        firsts = words.firsts[changed]
        keys, places = keys[firsts], words.places[firsts]

        def dropped(word, left, middle, end):
            place = places[word]
            return self._dropped(keys[word], place + left, place + middle, place + end)

        merged = self._merges(characters, words.word_sizes[changed], dropped)
        begins = merged != NOTHING
        starts = spread(words.starts[pieces], sizes)
        return words.respelled(changed, starts[begins], merged[begins])

    def _lose_one(self, words, keys):
        """Whether each piece loses one of the merges that made it: few do, all others stay."""
        counts = self._made_count[words.ids]
        piece = np.repeat(np.arange(len(counts)), counts)
        merges = spread(self._made_from[words.ids], counts)
        place = words.places[piece]
        lost = self._unmade[words.ids]
        merge = (place + x[merges] for x in self._made_by)
        lost[piece[self._dropped(keys[piece], *merge)]] = True
        return lost

    def _dropped(self, keys, left, middle, end):
        return drawn(keys, left, middle, end) >> np.uint64(11) < self._threshold
