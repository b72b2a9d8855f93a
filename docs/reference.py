"""The pages of the reference: every public name of the package, by subpackage."""

import ast
import re

from docs.pages import link_names, slug
from docs.public_objects import docstring_of, public_objects

# Subpackages that share a page, by its title; any other has a page of its own name.
TITLES = {
    "Layers": ("layers",),
    "Model": ("transformer",),
    "Tokenizers": ("tokenizers",),
    "Data": ("data",),
    "Training": ("training", "kernels"),
    "Runs": ("runs",),
    "Decoding": ("decoding",),
    "Translation": ("translation",),
    "Serving": ("serving",),
    "Tools": ("tools",),
    "Configuration": ("presets", "special_ids"),
}


def title_of(subpackage):
    """The title of the page that a subpackage is on."""
    shared = [title for title, subpackages in TITLES.items() if subpackage in subpackages]
    return shared[0] if shared else subpackage.replace("_", " ").capitalize()


def pages():
    """Pairs of title and `PublicObject`s, in the order in which one meets them."""
    found = {title: [] for title in TITLES}
    for public in public_objects():
        found.setdefault(title_of(public.subpackage), []).append(public)
    return [(title, publics) for title, publics in found.items() if publics]


def path_of(title):
    """Where a page of that title lies in the site."""
    return f"reference/{slug(title)}.md"


def text_of(title, publics):
    """The page: what each subpackage is for, a table of its names, then each of them."""
    subpackages = dict.fromkeys(public.subpackage for public in publics)
    about = [with_code(docstring_of(subpackage)) for subpackage in subpackages]
    rows = [f"| [`{p.name}`][keras_transformer.{p.name}] | {first_sentence(p)} |" for p in publics]
    items = [f"::: keras_transformer.{public.name}" for public in publics]
    table = "\n".join(["| name | what it is |", "|---|---|", *rows])
    return "\n\n".join([f"# {title}", *about, table, *items]) + "\n"


def with_code(docstring):
    """A module's docstring with its examples in a block of code."""
    blocks = re.compile(r"^>>>(?:.+\n?)+", flags=re.MULTILINE)
    return blocks.sub(r"```pycon\n\g<0>\n```\n", link_names(docstring))


def first_sentence(public):
    """What a name is, in a line."""
    if public.docstring:
        return public.docstring.partition("\n")[0].replace("|", "\\|")
    return f"`{ast.unparse(public.node.value)}`".partition("\n")[0]
