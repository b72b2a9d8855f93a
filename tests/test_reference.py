"""The reference: what its pages are made of is complete, and its examples and sources are there."""

import importlib
import inspect
import re

import pytest

import keras_transformer as kt
from docs import pages, public_objects, reference
from tests.support.command_line import run
from tests.support.paths import ROOT

PUBLIC = {public.name: public for public in public_objects.public_objects()}
DOCUMENTED = {name: public for name, public in PUBLIC.items() if public.docstring}
MODULES = {"kt": "keras_transformer", "tf": "tensorflow"}
COMPARED = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")


# Docstrings.


def test_every_public_name_is_found_where_it_is_defined():
    assert set(PUBLIC) == set(kt.__all__)
    for name, public in DOCUMENTED.items():
        assert getattr(kt, name).__module__ == f"keras_transformer.{public.module}"
        assert inspect.getdoc(getattr(kt, name)) == public.docstring


@pytest.mark.parametrize("name", DOCUMENTED)
def test_example(name):
    """In its own docstring, or in that of its module or subpackage, which is on the page too."""
    public = DOCUMENTED[name]
    docstrings = [public.docstring]
    docstrings += [
        public_objects.docstring_of(where) for where in (public.module, public.subpackage)
    ]
    examples = [re.findall(r"^ *(?:>>>|\.\.\.) .*$", text, re.MULTILINE) for text in docstrings]
    assert examples[0] or re.search(rf"\b{name}\b", "\n".join(examples[1] + examples[2]))


# Pages.


def test_every_public_name_is_on_one_page():
    listed = [public.name for _, publics in reference.pages() for public in publics]
    assert sorted(listed) == sorted(kt.__all__)
    for title, publics in reference.pages():
        text = reference.text_of(title, publics)
        for public in publics:
            assert text.count(f"::: keras_transformer.{public.name}\n") == 1
        assert ">>>" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def test_navigation_lists_every_page_of_the_reference():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (reference/\S+)$", nav, flags=re.MULTILINE)
    assert listed == [reference.path_of(title) for title, _ in reference.pages()]


def test_links_are_those_of_the_site():
    def translate(text, source="docs/layers.md", page="layers.md"):
        return pages.site_text(text, source, page)

    assert translate("[x](training.md#options)") == "[x](training.md#options)"
    assert translate("[x](#masks), [y](https://a.b/c)") == "[x](#masks), [y](https://a.b/c)"
    assert translate("[x](../SECURITY.md)") == "[x](security-policy.md)"
    assert translate("[x](../README.md)") == "[x](index.md)"
    assert translate("[x](../notebooks/attention.ipynb)") == "[x](notebooks/attention.md)"
    assert translate("[x](../export/config)") == "x (`export/config`)"
    assert translate("[config/](../export/config)") == "`export/config`"
    assert translate("![x](images/steps.png)") == "![x](images/steps.png)"
    readme = "[x](../docs/serving.md)", "export/README.md", "export.md"
    assert translate(*readme) == "[x](serving.md)"


def test_code_is_left_as_it_is():
    text = "```\n[x](../README.md)\n```\n"
    assert pages.site_text(text, "docs/a.md", "a.md") == text


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
        c, d: Of each.
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
        c: Of each.
        d: Of each.
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


def calls(column):
    """Names in a column with their arguments: ("torch.nn.Transformer", ["d_model", "nhead"])."""
    for code in code_of(column):
        if found := re.fullmatch(r"([a-z_]+(?:\.\w+)+)(?:\((.*)\))?", code):
            yield found[1], re.findall(r"(\w+)(?:=[^,]*)?(?:, |$)", found[2] or "")


def check_call(path, arguments):
    """Imports a name and looks whether it takes the arguments."""
    parts = path.split(".")
    value = importlib.import_module(MODULES.get(parts[0], parts[0]))
    for part in parts[1:]:
        value = getattr(value, part)
    if arguments:
        assert set(arguments) <= set(inspect.signature(value).parameters), path


def test_ours_are_there():
    ours = list(calls(1))
    assert len(ours) > 40 and all(path.startswith("kt.") for path, _ in ours)
    for path, arguments in ours:
        check_call(path, arguments)


@pytest.mark.filterwarnings("default")  # other libraries'
@pytest.mark.parametrize("package", ["keras_hub", "torch", "keras", "tf"])
def test_theirs_are_there(package):
    pytest.importorskip(MODULES.get(package, package))
    theirs = [call for call in calls(0) if call[0].startswith(f"{package}.")]
    assert theirs
    for path, arguments in theirs:
        check_call(path, arguments)


def test_options_and_commands_are_there():
    known = run("--help").stdout.decode()
    commands = re.findall(r"keras-transformer (\w+)", "\n".join(code_of(1)))
    assert commands and all(f"\n  {command} " in known for command in commands)
    options = run("train", "--help").stdout + run("translate", "--help").stdout
    shown = re.findall(r"--[a-z-]+", "\n".join(code_of(1)))
    assert len(shown) > 10 and not [option for option in shown if option not in options.decode()]
