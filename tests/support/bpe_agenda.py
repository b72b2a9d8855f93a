"""BPE-dropout as sentencepiece's bpe_model.cc does it, a sentence and a merge at a time."""

import heapq

import numpy as np

from keras_transformer.tokenizers.pieces import ModelPieces
from keras_transformer.tokenizers.subword_sampling import random_numbers


def merged_by_agenda(model, ids, key, dropout):
    """The ids of one sentence in other pieces, by the random numbers of our sampler."""
    vocabulary = ModelPieces(model)
    known = {p: id for id, p in enumerate(vocabulary.pieces) if vocabulary.normal[id]}
    symbols = []  # characters, or ids that are taken as they are
    for id in ids:
        piece = vocabulary.pieces[id]
        spelled = vocabulary.normal[id] and all(character in known for character in piece)
        symbols += piece if spelled else [id]
    count = len(symbols)
    ends = list(range(1, count + 1))
    before, after = list(range(-1, count - 1)), [*range(1, count), -1]
    agenda = []

    def add(left, right):
        pair = symbols[max(left, 0)], symbols[max(right, 0)]
        if min(left, right) < 0 or not all(isinstance(symbol, str) for symbol in pair):
            return
        if (piece := "".join(pair)) in known:
            score = float(vocabulary.scores[known[piece]])
            heapq.heappush(agenda, (-score, left, right, len(piece)))

    for right in range(1, count):
        add(right - 1, right)
    while agenda:
        _, left, right, size = heapq.heappop(agenda)
        pair = symbols[left], symbols[right]
        if "" in pair or len("".join(pair)) != size:
            continue  # one of them has been merged with another
        random = random_numbers(
            np.array([key]), *(np.array([x]) for x in (left, right, ends[right]))
        )
        if int(random[0]) / 2**64 < dropout:
            continue
        symbols[left], symbols[right] = "".join(pair), ""
        ends[left], after[left] = ends[right], after[right]
        if after[left] >= 0:
            before[after[left]] = left
        add(before[left], left)
        add(left, after[left])
    return [known.get(symbol, symbol) for symbol in symbols if symbol != ""]
