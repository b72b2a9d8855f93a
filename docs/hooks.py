"""Hooks of mkdocs: add the generated pages, and adapt links of the pages that GitHub shows too."""

import pathlib
import sys

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from docs import notebooks, pages, reference  # noqa: E402


def on_files(files, config):
    """Adds what does not lie in docs/: the repository's own pages, notebooks and the reference."""
    for path, content in generated_pages().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown, page, **_):
    """Adapts a page of docs/; generated ones are ready."""
    if page.file.generated_by:
        return markdown
    return pages.site_text(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def generated_pages():
    """Dict of paths in the site and their content: Markdown, or the bytes of a picture."""
    generated = {}
    for source, page in pages.REPOSITORY_PAGES.items():
        text = pages.indent_lists((ROOT / source).read_text(encoding="utf-8"))
        generated[page] = pages.site_text(text, source, page)
    for name in notebooks.NAMES:
        generated[notebooks.page_of(name)], pictures = notebooks.page(name, ROOT)
        generated |= pictures
    for title, publics in reference.pages():
        generated[reference.path_of(title)] = reference.text_of(title, publics)
    return generated
