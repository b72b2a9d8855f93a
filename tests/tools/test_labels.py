"""Labels in the characters of any script."""

import numpy as np

from keras_transformer.tools.plots import new_figure, text_style, text_width, to_labels


def test_labels_are_short_and_can_be_drawn():
    texts = ["the", "über", "▁день", "</s>", "", "😀", "a\u0301"]
    assert to_labels(texts) == to_labels([text.encode() for text in texts]) == texts
    assert to_labels(["x" * 24, "x" * 25]) == ["x" * 24, "x" * 23 + "…"]


def test_what_is_no_character_is_a_number():
    texts = ["a\nb", "\x00", "\ud800", "\ue123", "\u0378", "x\u202ey"]
    expected = ["aU+000Ab", "U+0000", "U+D800", "U+E123", "U+0378", "xU+202Ey"]
    assert to_labels(texts) == expected


def test_arabic_is_joined_and_runs_from_right_to_left():
    beh = "\u0628"
    assert text_width([beh * 3], 10) < 0.8 * 3 * text_width([beh], 10)
    joined = f"{beh}\u200c{beh}"  # kept apart by a joiner, which stays
    assert to_labels([joined]) == [joined]
    assert text_width([joined], 10) > text_width([beh * 2], 10)
    figure = new_figure(2, 1)
    text = "\u0627\u0628\u0628\u0628"  # alef, a stroke, is written first
    figure.text(0.1, 0.4, text, fontsize=30, **text_style())
    figure.canvas.draw()
    ink = np.asarray(figure.canvas.buffer_rgba())[..., :3].mean(axis=-1) < 128
    columns = np.flatnonzero(ink.any(axis=0))
    left, right = np.array_split(ink[:, columns[0] : columns[-1] + 1], 2, axis=1)
    tops = [np.flatnonzero(half.any(axis=1))[0] for half in (left, right)]
    assert tops[1] < tops[0] - 5, "the tall letter stands on the right"
