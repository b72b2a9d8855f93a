"""The reference: what its pages are made of is complete, and its examples and sources are there."""

import functools
import inspect
import re

import pytest

import keras_transformer as kt
from docs import pages, public_objects, reference
from tests.support.command_line import run
from tests.support.paths import ROOT

PUBLIC = {public.name: public for public in public_objects.public_objects()}
DOCUMENTED = {name: public for name, public in PUBLIC.items() if public.docstring}
COMPARED = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")


# Docstrings.


def test_every_public_name_is_found_where_it_is_defined():
    assert set(PUBLIC) == set(kt.__all__)
    for name, public in DOCUMENTED.items():
        assert getattr(kt, name).__module__ == f"keras_transformer.{public.module}"
        assert inspect.getdoc(getattr(kt, name)) == public.docstring


def test_every_public_name_has_an_example():
    """In its own docstring, or in that of its module or subpackage, which is on the page too."""
    for name, public in DOCUMENTED.items():
        docstrings = [public.docstring]
        docstrings += map(public_objects.docstring_of, (public.module, public.subpackage))
        examples = [re.findall(r"^ *(?:>>>|\.\.\.) .*$", text, re.MULTILINE) for text in docstrings]
        shared = "\n".join(examples[1] + examples[2])
        assert examples[0] or re.search(rf"\b{name}\b", shared), name


# Pages.


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


@pytest.mark.parametrize(
    "text, expected",
    [
        ("[x](training.md#options), [y](https://a.b/c)", None),  # as it is
        ("```\n[x](../README.md)\n```\n", None),
        ("[x](../README.md)", "[x](index.md)"),
        ("[x](../notebooks/attention.ipynb)", "[x](notebooks/attention.md)"),
        ("[x](../export/config)", "x (`export/config`)"),
    ],
)
def test_links_are_those_of_the_site(text, expected):
    assert pages.site_text(text, "docs/layers.md", "layers.md") == (expected or text)


def test_names_become_links():
    linked = "[`kt.load`][keras_transformer.load]"
    assert pages.link_names("`kt.load`, `load`, `unknown`") == f"{linked}, `load`, `unknown`"
    assert pages.link_names("`Encoder`") == "[`Encoder`][keras_transformer.Encoder]"
    assert pages.link_names("[`Encoder`](x.md)") == "[`Encoder`](x.md)"


def test_lists_are_indented_for_markdown():
    text = "What:\n- one\n  two\n\n  | a |\n- three\n- four\n\nEnd\n```\n- code\n  code\n```\n"
    wanted = "What:\n\n- one\n    two\n\n    | a |\n\n- three\n\n- four\n\n"
    assert pages.indent_lists(text) == f"{wanted}End\n```\n- code\n  code\n```\n"


def test_docstrings_are_rewritten_for_griffe():
    pytest.importorskip("griffe", reason="is in the extra docs, which CI installs for make docs")
    from docs.docstrings import rewrite

    written = """One `Encoder`.

    Args:
        a, b: Of
            each.
        *e: Rest.

    Call arguments:
        x: Ids `(B, T)`.

    Example:

    >>> f(`Encoder`)

    And:

    >>> g()
    """
    wanted = """One [`Encoder`][keras_transformer.Encoder].

    Args:
        a: Of
            each.
        b: See `a`.
        *e: Rest.

    Keyword Args: Call arguments
        x: Ids `(B, T)`.

    Examples:
        >>> f(`Encoder`)

        And:

        >>> g()
    """
    assert rewrite(inspect.cleandoc(written)) == inspect.cleandoc(wanted)


# What is called how elsewhere.


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


def test_options_and_commands_are_there():
    known = run("--help").stdout.decode()
    commands = re.findall(r"keras-transformer (\w+)", "\n".join(code_of(1)))
    assert commands and all(f"\n  {command} " in known for command in commands)
    options = run("train", "--help").stdout + run("translate", "--help").stdout
    shown = re.findall(r"--[a-z-]+", "\n".join(code_of(1)))
    assert len(shown) > 10 and not [option for option in shown if option not in options.decode()]
