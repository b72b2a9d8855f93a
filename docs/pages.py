"""What the site changes in Markdown that GitHub shows as it is: links, names in code, lists."""

import posixpath
import re

from docs.public_objects import names, unmistakable_names

# Files outside docs/ that are pages of the site.
REPOSITORY_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "export/README.md": "export.md",
}
BLOCK = re.compile(r"(^ *```.*?^ *```$|^(?: {7,}[^\n]*\n)+)", flags=re.DOTALL | re.MULTILINE)
ITEM = re.compile(r"^(?:[-*]|\d+\.) +")
LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s]+)\)")
CODE = re.compile(r"(`+)(?:.(?!\1))*.\1", flags=re.DOTALL)


def site_text(text, source, page):
    """A Markdown file of the repository as a page of the site: arguments of `site_links`."""
    return outside_code(text, lambda part: link_names(site_links(part, source, page)))


def outside_code(text, change):
    """Applies a function to the text between the blocks of code."""
    blocks = BLOCK.split(text)
    return "".join(part if place % 2 else change(part) for place, part in enumerate(blocks))


def site_links(text, source, page):
    """Turns links between files of the repository into links between pages of the site.

    Args:
        text: Markdown.
        source: Path of the file in the repository, "docs/layers.md".
        page: Path of its page in the site, "layers.md".

    Returns:
        The text. A file that is not in the site is named instead of linked.
    """

    def translate(match):
        image, label, target = match.groups()
        if re.match(r"\w+:|#", target):
            return match[0]
        path, hash_sign, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        place = site_path(path)
        if place is None:
            return f"`{path}`" if path.endswith(label.strip("`/")) else f"{label} (`{path}`)"
        place = posixpath.relpath(place, posixpath.dirname(page) or ".")
        return f"{image}[{label}]({place}{hash_sign}{anchor})"

    return LINK.sub(translate, text)


def site_path(path):
    """Where the site has a file of the repository, or None."""
    if path.startswith("docs/") and path.endswith((".md", ".png")):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "index.md"
    if path.endswith(".ipynb"):
        return path.removesuffix("ipynb") + "md"
    return REPOSITORY_PAGES.get(path)


def slug(heading):
    """The anchor of a heading, as Markdown's viewers make it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def indent_lists(text):
    """Indents list items by four columns, as Python-Markdown wants, where GitHub wants two."""
    lines, inside, fenced = [], 0, False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        item = ITEM.match(line)
        leading = len(line) - len(line.lstrip())
        if fenced:
            inside = 0
        elif item:
            if lines and lines[-1]:
                lines.append("")
            inside = len(item[0])
        elif line and leading < inside:
            inside = 0
        elif line and inside:
            line = " " * (4 - inside) + line
        lines.append(line)
    return "\n".join(lines) + "\n"


def link_names(text):
    """Links public names in code to the reference: `kt.load`, `Translator(…)`."""

    def linked(match):
        code = re.fullmatch(r"`((?:kt|keras_transformer)\.)?(\w+)(?:\.\w+)*(?:\(.*\))?`", match[0])
        if not code or code[2] not in (names() if code[1] else unmistakable_names()):
            return match[0]
        return f"[{match[0]}][keras_transformer.{code[2]}]"

    headings = re.split(r"(^#.*\n|\[[^\]]*\](?=[(\[]))", text, flags=re.MULTILINE)
    return "".join(h if i % 2 else CODE.sub(linked, h) for i, h in enumerate(headings))
