"""The reference: what its pages are made of is complete, and its examples and sources are there."""

import functools
import inspect
import re

import keras_transformer as kt
from docs import public_objects, reference
from tests.support.command_line import run
from tests.support.paths import ROOT

DOCUMENTED = [public for public in public_objects.public_objects() if public.docstring]
COMPARED = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")


def test_every_public_name_has_an_example():
    """In its own docstring, or in that of its module or subpackage, which is on the page too."""
    for public in DOCUMENTED:
        docstrings = [public.docstring]
        docstrings += map(public_objects.docstring_of, (public.module, public.subpackage))
        examples = [re.findall(r"^ *(?:>>>|\.\.\.) .*$", text, re.MULTILINE) for text in docstrings]
        shared = "\n".join(examples[1] + examples[2])
        assert examples[0] or re.search(rf"\b{public.name}\b", shared), public.name


def test_every_public_name_is_on_one_page():
    listed = [public.name for _, publics in reference.pages() for public in publics]
    assert sorted(listed) == sorted(kt.__all__)
    for title, publics in reference.pages():
        text = reference.text_of(title, publics)
        for public in publics:
            assert text.count(f"::: keras_transformer.{public.name}\n") == 1
        assert ">>>" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (reference/\S+)$", nav, flags=re.MULTILINE)
    assert listed == [reference.path_of(title) for title, _ in reference.pages()]


def code_of(column):
    """What stands as code in a column of the tables."""
    rows = re.findall(r"^\| (.*) \|$", COMPARED, flags=re.MULTILINE)
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row.split(" | ")[column])]


def test_ours_are_there():
    """Names with arguments, as `kt.Encoder(num_layers)`."""
    names = [re.fullmatch(r"kt\.([\w.]+)(?:\((.*)\))?", code) for code in code_of(1)]
    names = [found for found in names if found]
    assert len(names) > 40
    for found in names:
        value = functools.reduce(getattr, found[1].split("."), kt)
        arguments = re.findall(r"(\w+)(?:=[^,]*)?(?:, |$)", found[2] or "")
        assert not arguments or set(arguments) <= set(inspect.signature(value).parameters), found[0]


def test_options_are_there():
    options = run("train", "--help").stdout + run("translate", "--help").stdout
    shown = re.findall(r"--[a-z-]+", "\n".join(code_of(1)))
    assert len(shown) > 10 and not [option for option in shown if option not in options.decode()]
