"""What mkdocs does on its way: pages are made of the repository's files and of the public names."""

import pathlib
import sys

from mkdocs.structure.files import File

CHANGELOG = "changelog.md"
ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from docs import guide, notebooks, reference  # noqa: E402


def on_files(files, config):
    """Adds the pages that are made, and the navigation through all of them."""
    made = make_pages()
    for path, content in made.items():
        if path in files.src_uris:
            files.remove(files.src_uris[path])
        files.append(File.generated(config, path, content=content))
    config.nav = navigation(made)
    return files


def make_pages():
    """Dict of paths in the site and what is there: Markdown, or the bytes of a picture."""
    readme = (ROOT / guide.README).read_text(encoding="utf-8")
    chapters = dict(guide.chapters(readme))
    headings = guide.anchors(chapters.items())
    sources = {page: (guide.README, text) for page, text in chapters.items()}
    for source, page in guide.WHOLE.items():
        sources[page] = (source, (ROOT / source).read_text(encoding="utf-8"))
    made = {}
    for page, (source, text) in sources.items():
        for path in guide.pictures(text, source):
            made[guide.picture(path)] = (ROOT / path).read_bytes()
        made[page] = guide.page_text(text, source, page, headings, ROOT)
    for name in notebooks.NAMES:
        made[notebooks.page_of(name)], drawn = notebooks.page(name, headings, ROOT)
        made |= drawn
    for title, publics in reference.pages():
        made[reference.path_of(title)] = reference.text_of(title, publics)
    return made


def navigation(made):
    """The tree on the left: the guide in README's order, the notebooks, the reference."""
    chapters = [page for page in made if page.startswith("guide/") and page.endswith(".md")]
    others = [page for page in guide.WHOLE.values() if page not in chapters and page != CHANGELOG]
    return [
        {"keras_transformer": guide.HOME},
        {"Guide": [*chapters, *others]},
        {"Notebooks": [notebooks.page_of(name) for name in notebooks.NAMES]},
        {"Reference": [page for page in made if page.startswith("reference/")]},
        CHANGELOG,
    ]
