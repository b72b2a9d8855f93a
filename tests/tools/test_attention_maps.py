"""Attention maps: what they show, and that all that is written on them can be read."""

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.text import Text

import keras_transformer as kt

WORDS = (
    "the quick Donaudampfschifffahrtsgesellschaft jumps over a lazy internationalization".split()
)
MANY = [WORDS[i % len(WORDS)] for i in range(60)]
DATE = [*"▁samedi▁9▁mai▁1998", "</s>"]


@pytest.fixture(autouse=True)
def no_window():
    """pyplot, which opens windows, knows nothing of our figures."""
    yield
    assert plt.get_fignums() == []


def draw(sources, targets, heads=None, **options):
    """A picture of weights at random; of a single map where `heads` is None."""
    size = (len(targets),) if heads is None else (heads, len(targets))
    scores = np.random.default_rng(0).dirichlet(np.ones(len(sources)), size)
    return kt.plot_attention(scores, sources, targets, **options), scores


def maps_of(figure):
    return [axis for axis in figure.axes[:-1] if axis.images]


def written(figure):
    """Everything that is written on a figure, and where: rows of left, bottom, right, top."""
    figure.draw_without_rendering()
    texts = [x for x in figure.findobj(Text) if x.get_visible() and x.get_text().strip()]
    return texts, np.array([text.get_window_extent().extents for text in texts])


def overlapping(figure):
    """Pairs of texts that stand on one another."""
    texts, boxes = written(figure)
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    both = np.all((low < boxes[None, :, 2:]) & (boxes[None, :, :2] < high), axis=-1)
    return [(texts[i].get_text(), texts[j].get_text()) for i, j in np.argwhere(np.triu(both, 1))]


PICTURES = {
    "a date": (DATE, [*"▁1998-05-09", "</s>"], 4),
    "a single map": (WORDS, list("abcd"), None),
    "one head": (WORDS, WORDS, 1),
    "words": (WORDS, WORDS[::-1], 4),
    "three of them": (WORDS, list("ab"), 3),
    "eight heads": (WORDS * 2, WORDS, 8),
    "a long sentence": (MANY, MANY, None),
    "a long sentence, eight heads": (MANY, MANY, 8),
    "many characters": ([word[0] for word in MANY * 2], [word[0] for word in MANY], 8),
    "next to nothing": (["a"], ["b"], 8),
}


@pytest.mark.parametrize("sources, targets, heads", PICTURES.values(), ids=PICTURES)
def test_what_is_written_can_be_read(sources, targets, heads):
    figure, scores = draw(sources, targets, heads)
    assert overlapping(figure) == []
    texts, boxes = written(figure)
    assert np.all(boxes >= 0) and np.all(boxes[:, 2:] <= figure.bbox.size)
    assert all(text.get_fontsize() >= 6 for text in texts)
    assert np.all(figure.get_size_inches() < 18)
    names = [text.get_text() for text in texts]
    columns = min(len(maps_of(figure)), 2 if len(maps_of(figure)) <= 4 else 4)
    assert names.count("key") == columns and names.count("attention weight") == 1
    assert names.count("query") == -(-len(maps_of(figure)) // columns)
    drawn = [axis.images[0].get_array() for axis in maps_of(figure)]
    np.testing.assert_array_equal(drawn, scores if heads else [scores])


def test_settings_of_ones_own_do_not_make_it_overlap():
    settings = {"font.size": 20, "figure.constrained_layout.use": True, "figure.dpi": 60}
    with matplotlib.rc_context(settings):
        figure, _ = draw(WORDS, WORDS, 4)
        assert overlapping(figure) == []


def test_overlaps_are_found():
    """What the pictures are held to would be seen to fail."""
    figure, _ = draw(WORDS, WORDS)
    figure.axes[0].tick_params(axis="x", rotation=0)
    assert ("quick", "Donaudampfschifffahrtsg…") in overlapping(figure)


def test_map_per_head_with_labels():
    figure, _ = draw(list("abcde"), list("wxyz"), 3)
    maps = maps_of(figure)
    assert [axis.get_title() for axis in maps] == ["head 1", "head 2", "head 3"]
    assert [label.get_text() for label in maps[-1].get_xticklabels()] == list("abcde")
    assert [label.get_text() for label in maps[-1].get_yticklabels()] == list("wxyz")
    assert [axis.get_xlabel() for axis in maps] == ["", "key", "key"]  # the lowest of each column
    assert [axis.get_ylabel() for axis in maps] == ["query", "", "query"]
    bar = figure.axes[-1]
    assert bar.get_ylabel() == "attention weight" and bar.get_ylim() == (0, 1)


def test_a_row_of_maps_for_each_layer():
    scores = np.random.default_rng(0).dirichlet(np.ones(5), (2, 3, 4))
    for given in (scores, list(scores)):  # as the model gives them
        figure = kt.plot_attention(given, list("abcde"), list("wxyz"))
        maps = maps_of(figure)
        titles = [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2, 3)]
        assert [axis.get_title() for axis in maps] == titles
        drawn = np.array([axis.images[0].get_array() for axis in maps])
        np.testing.assert_array_equal(drawn, scores.reshape(6, 4, 5))
        tops = [axis.get_position().y1 for axis in maps]
        assert tops[0] == tops[1] == tops[2] > tops[3] == tops[5]
        assert [axis.get_ylabel() for axis in maps] == ["query", "", ""] * 2
        assert overlapping(figure) == []


def test_notebooks_show_it():
    figure, _ = draw(list("ab"), list("cd"))
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_single_map_needs_no_title():
    for heads in (None, 1):
        figure, _ = draw(list("ab"), list("cd"), heads)
        assert [axis.get_title() for axis in maps_of(figure)] == [""]
    figure, _ = draw(list("ab"), list("cd"), titles=["encoder, layer 1, head 2"])
    assert maps_of(figure)[0].get_title() == "encoder, layer 1, head 2"
    assert overlapping(figure) == []


def test_long_words_are_turned_and_shortened():
    figure, _ = draw(WORDS, list("ab"))
    labels = figure.axes[0].get_xticklabels()
    assert {label.get_rotation() for label in labels} == {90}  # short ones among them too
    assert labels[2].get_text() == "Donaudampfschifffahrtsg…"
    figure, _ = draw(DATE, list("ab"))
    labels = figure.axes[0].get_xticklabels()
    turned = [label.get_text() for label in labels if label.get_rotation() == 90]
    assert turned == ["</s>"]  # characters stay upright


@pytest.mark.parametrize("count, heads, step", [(60, None, 1), (200, None, 2), (60, 8, 2)])
def test_labels_are_thinned(count, heads, step):
    tokens = [f"token {i}" for i in range(count)]
    figure, _ = draw(tokens, tokens, heads)
    corner = figure.axes[4 if heads else 0]  # the lowest one of the first column
    for labels in (corner.get_xticklabels(), corner.get_yticklabels()):
        assert [label.get_text() for label in labels] == tokens[::step]
    assert corner.get_xticks().tolist() == list(range(0, count, step))


def test_attention_of_a_model_with_the_pieces_of_a_tokenizer(tmp_path):
    tokenizer = kt.SubwordTokenizer.train(["ab cd $x_1$"], model_type="char")
    model = kt.Transformer(*[tokenizer.vocabulary_size] * 2, 2, 16, 2, 32)
    ids = tokenizer(["ab $x_1$"], end=True).to_tensor()
    _, scores = model((ids, ids), return_attention_scores=True)
    pieces = tokenizer.pieces(ids[0]).numpy()
    figure = kt.plot_attention(scores["cross"][-1][0], pieces, pieces, ["one", "two"])
    assert [axis.get_title() for axis in maps_of(figure)] == ["one", "two"]
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [*"▁ab▁$x_1$", "</s>"]
    figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_dollars_are_no_formula():
    figure, _ = draw(["$x_1$", "$\\frac"], ["$"], 2, titles=["$a$", "$"])
    assert "$x_1$" in [text.get_text() for text in written(figure)[0]]
    assert not any(text.get_parse_math() for text in figure.axes[0].get_xticklabels())


@pytest.mark.parametrize(
    "shape, tokens, titles, sentence",
    [
        ((2, 3), ("abcd", "xy"), None, r"\(2, 3\) do not fit 2 target and 4 source tokens"),
        ((1, 2, 2, 2, 3), ("abc", "xy"), None, r"\(1, 2, 2, 2, 3\) do not fit 2 target and 3"),
        ((0, 2, 3), ("abc", "xy"), None, r"\(0, 2, 3\) do not fit"),
        ((2, 0), ("", "xy"), None, r"\(2, 0\) do not fit 2 target and 0 source tokens"),
        ((2, 2, 3), ("abc", "xy"), ["one"], r"list of 2 titles, one per map, received \['one'\]"),
        ((2, 3), ("abc", "xy"), "x", "Expected a list of 1 title, one per map, received 'x'"),
    ],
)
def test_what_does_not_fit(shape, tokens, titles, sentence):
    with pytest.raises(ValueError, match=sentence):
        kt.plot_attention(np.ones(shape), *map(list, tokens), titles)
    assert plt.get_fignums() == []
