"""Embeddings that begin as word vectors: scaled, reduced, frozen or not."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.presets import check_frozen_vectors

LINES = ["the quick brown fox", "the lazy dogs jump", "zwei 7 fox"] * 9
SIZES = dict(num_layers=1, num_heads=2, d_ff=16, dropout=0.0, max_length=8, positions="learned")
SOURCE = np.array([[5, 6, 7, 3], [8, 9, 3, 0]])
TARGET = np.array([[2, 5, 6], [2, 7, 0]]), np.array([[5, 6, 3], [7, 3, 0]])


@pytest.fixture(scope="module")
def words():
    return kt.SubwordTokenizer.train(LINES, model_type="word")


def write_vectors(path, words, width, seed=7):
    rows = np.random.default_rng(seed).normal(0.1, 0.3, (len(words), width)).astype("float32")
    table = dict(zip(words, rows, strict=True))
    lines = (f"{word} {' '.join(map(repr, row.tolist()))}\n" for word, row in table.items())
    path.write_text("".join(lines))
    return table


def embedding_of(tokenizer, d_model=8):
    embedding = kt.PositionalEmbedding(tokenizer.vocabulary_size, d_model)
    embedding.build()
    return embedding


def test_one_factor_brings_them_to_the_deviation_of_the_embedding(words, tmp_path):
    table = write_vectors(tmp_path / "v", ["fox", "the", "jump", "dogs", "unheard-of"], 8)
    embedding = embedding_of(words)
    before = np.array(embedding.embeddings)
    counts = np.bincount(words(LINES).flat_values, minlength=words.vocabulary_size)
    counts[1] += 5  # what is unknown is part of a text
    coverage = kt.initialize_embeddings(embedding, words, tmp_path / "v", counts)
    after = np.array(embedding.embeddings)
    ids = {word: int(words(word)[0]) for word in ("fox", "the", "jump", "dogs")}
    rows = np.array([table[word] for word in ids])
    ours = after[list(ids.values())]
    factors = ours / rows
    np.testing.assert_allclose(factors, factors[0, 0], rtol=1e-5)
    assert np.sqrt(np.mean(np.square(ours))) == pytest.approx(8**-0.5)
    others = np.delete(np.arange(len(after)), list(ids.values()))
    np.testing.assert_array_equal(after[others], before[others])
    assert (coverage.types, coverage.types_covered) == (words.vocabulary_size - 4, 4)
    assert (coverage.tokens, coverage.tokens_covered) == (9 * 11 + 5, 9 * (2 + 2 + 1 + 1))
    assert coverage.width == 8 and coverage.kept_variance is None
    assert str(coverage) == (
        "4 of 9 (44.4%) of the vocabulary and 54 of 104 (51.9%) of the running tokens have a "
        "vector of 8 numbers"
    )


def test_wide_ones_are_reduced_to_what_varies_most(words, tmp_path):
    """All that these vary in are two of their twelve numbers, mixed."""
    names = ["fox", "the", "jump", "dogs", "lazy", "quick", "brown", "zwei", "7"]
    generator = np.random.default_rng(3)
    mix, low = generator.normal(size=(2, 12)), generator.normal(size=(9, 2))
    rows = low @ mix + 5
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(names, rows, strict=True)]
    (tmp_path / "v").write_text("\n".join(lines) + "\n")
    embedding = embedding_of(words, 4)
    coverage = kt.initialize_embeddings(embedding, words, tmp_path / "v")
    assert coverage.kept_variance == pytest.approx(1) and coverage.tokens is None
    assert "have a vector of 12 numbers, reduced by PCA, which retains 100% of" in str(coverage)
    found = np.array(embedding.embeddings)[[int(words(name)[0]) for name in names]]
    # Distances stay, but for the one factor, and two axes are enough.
    wanted, got = (
        np.linalg.norm(x[:, None] - x[None], axis=-1)[np.triu_indices(9, 1)] for x in (rows, found)
    )
    np.testing.assert_allclose(got / wanted, got[0] / wanted[0], rtol=1e-4)
    assert np.abs(found[:, 2:]).max() < 1e-5 < np.abs(found[:, :2]).min()
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(4**-0.5)
    few = embedding_of(words, 8)
    write_vectors(tmp_path / "few", ["fox", "the"], 12)  # fewer words than numbers
    assert kt.initialize_embeddings(few, words, tmp_path / "few").types_covered == 2
    assert np.isfinite(np.array(few.embeddings)).all()


def test_which_pieces_are_words(words, tmp_path):
    """Pieces from inside of words are none, whatever the file holds."""
    table = write_vectors(tmp_path / "v", ["fox", "ox", "▁fox", "##ox", "x", "<0x41>", "[UNK]"], 4)
    bpe = kt.SubwordTokenizer.train(["fox fox ox"] * 5, 268)
    (tmp_path / "vocab.txt").write_text("\n".join(["[UNK]", "fox", "x", "f", "##ox"]))
    wordpiece = kt.WordPieceTokenizer.from_vocabulary(tmp_path / "vocab.txt", lowercase=False)
    for tokenizer, expected in ((bpe, {"▁fox"}), (wordpiece, {"fox", "x"})):
        pieces = [p.decode() for p in tokenizer.pieces(range(tokenizer.vocabulary_size)).numpy()]
        embedding = embedding_of(tokenizer, 4)
        before = np.array(embedding.embeddings)
        kt.initialize_embeddings(embedding, tokenizer, tmp_path / "v")
        changed = np.flatnonzero((before != np.array(embedding.embeddings)).any(axis=1))
        assert expected <= {pieces[id] for id in changed} <= expected | {"▁ox", "ox"}
        factor = np.array(embedding.embeddings)[changed] / [
            table[pieces[id].removeprefix("▁")] for id in changed
        ]
        np.testing.assert_allclose(factor, factor[0, 0], rtol=1e-5)


def test_vectors_that_are_of_no_use(words, tmp_path):
    write_vectors(tmp_path / "v", ["chat", "renard"], 8)
    with pytest.raises(ValueError, match="has no vector for any of the 13 pieces"):
        kt.initialize_embeddings(embedding_of(words), words, tmp_path / "v")
    with pytest.raises(ValueError, match="vectors of 8 numbers, but the embedding is 10 wide"):
        kt.initialize_embeddings(embedding_of(words, 10), words, tmp_path / "v")
    (tmp_path / "zero").write_text("fox" + " 0.0" * 8 + "\n")
    with pytest.raises(ValueError, match="has only zero vectors"):
        kt.initialize_embeddings(embedding_of(words), words, tmp_path / "zero")


def frozen_model(sides=("source",), share="target", **options):
    keras.utils.set_random_seed(1)
    model = kt.Transformer(20, 20, d_model=8, share_embeddings=share, **SIZES)
    model.build()
    for side in sides:
        getattr(model, f"{side}_embedding").embeddings.trainable = False
    optimizer = kt.EMAAdam(0.1, use_ema=True, ema_momentum=0.9, weight_decay=0.1)
    model.compile(optimizer, kt.SmoothedCrossEntropy(0.1), **options)
    return model


def learn(model):
    model.fit((SOURCE, TARGET[0]), TARGET[1], epochs=2, verbose=0)


@pytest.mark.parametrize("fused, share", [(True, "target"), (False, "none")])
def test_frozen_vectors_stay_and_positions_learn(fused, share):
    """By the fused loss too; files: tests/layers/test_changes.py."""
    sides = ("source", "target")[: 1 + (share == "none")]
    model = frozen_model(sides, share, fused_loss=fused)
    frozen = [getattr(model, f"{side}_embedding").embeddings for side in sides]
    before, all_before = [np.array(table) for table in frozen], model.get_weights()
    learn(model)
    with kt.ema_weights(model):
        for old, new in zip(before, frozen, strict=True):
            np.testing.assert_array_equal(old, new)
    changed = sum(
        not np.array_equal(*pair) for pair in zip(all_before, model.get_weights(), strict=True)
    )
    assert changed == len(all_before) - len(sides)  # the positions among them


@pytest.mark.parametrize(
    "side, share, apart", [("source", "all", "target"), ("target", "target", "none")]
)
def test_the_softmax_is_not_frozen(side, share, apart):
    with pytest.raises(ValueError, match=f"freeze the softmax.* --share-embeddings {apart}"):
        check_frozen_vectors(side, share)
