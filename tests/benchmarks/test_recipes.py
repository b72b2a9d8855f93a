"""`benchmarks/recipes.py` takes hours: at least its options are the command line's."""

import gzip
import itertools
import json

import pytest

from benchmarks import recipes
from tests.support.command_line import run

TINY = "--num-layers 1 --d-model 8 --num-heads 2 --d-ff 8 --vocabulary-size 272".split()


@pytest.fixture(scope="module")
def multi30k(tmp_path_factory):
    """A toy corpus, tokenized and raw, in the files of Multi30k."""
    folder = tmp_path_factory.mktemp("multi30k")
    parts, words = ("train", "val", "test_2016_flickr"), [chr(97 + i % 5) * 3 for i in range(20)]
    for text, ending in recipes.ENDINGS.items():
        (folder / text).mkdir()
        for part, language in itertools.product(parts, ("en", "de")):
            with gzip.open(folder / text / f"{part}{ending}.{language}.gz", "wt") as file:
                file.writelines(f"{language} and {word} again\n" for word in words)
    return folder


@pytest.mark.parametrize("recipe", recipes.read_recipes(), ids=lambda recipe: recipe["name"])
def test_every_recipe_is_a_training(recipe, tmp_path):
    """The only thing wrong with it is the corpus."""
    (tmp_path / f"{recipes.slug(recipe)}-{recipe.get('samples')}-samples").mkdir()
    result = run(*recipes.training(recipe, 1, tmp_path / "none", tmp_path))
    missing = "is not a prepared corpus" if "samples" in recipe else "No file matches"
    assert result.returncode == 2 and missing in result.stderr.decode(), result.stderr


def test_a_name_that_no_recipe_has():
    with pytest.raises(SystemExit, match="name that begins with 'no such'"):
        recipes.read_recipes(["no such"])


@pytest.mark.ordeal
def test_recipes_are_trained_and_reported(multi30k, tmp_path, monkeypatch, capfd):
    toy = {"name": "toy", "options": [], "seeds": [1, 2], "text": "raw"}
    sampled = {"name": "sampled", "options": [], "seeds": [1], "samples": 2}
    (tmp_path / "recipes.json").write_text(json.dumps([toy, sampled, {"name": "other"}]))
    monkeypatch.setattr(recipes, "RECIPES", tmp_path / "recipes.json")
    monkeypatch.setattr(recipes, "VOCABULARY_SIZE", "272")
    options = [*TINY, "--epochs", "1", "--steps-per-epoch", "2", "--precision", "float32"]
    recipes.main(multi30k, tmp_path / "runs", ["toy", "sampled"], options)
    rows = capfd.readouterr().out.splitlines()[-3:]
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| toy", "1"],
        ["| toy", "2"],
        ["| sampled", "1"],
    ]
