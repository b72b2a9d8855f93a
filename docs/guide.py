"""README and the other pages of the repository, cut and written as pages of the site.

They are the one source of what they say: chapters that they gain become pages by themselves.
"""

import os
import posixpath
import re

from docs.public_objects import names, unmistakable_names

README = "README.md"
HOME = "index.md"
# Files that are pages as they stand.
WHOLE = {
    "export/README.md": "guide/export.md",
    "SECURITY.md": "guide/security.md",
    "CHANGELOG.md": "changelog.md",
    "docs/from-other-libraries.md": "from-other-libraries.md",
    "docs/loading-trials.md": "loading-trials.md",
}
FENCE = re.compile(r"^ *```")
BLOCK = re.compile(r"(^ *```.*?^ *```$|^(?: {7,}[^\n]*\n)+)", flags=re.DOTALL | re.MULTILINE)
ITEM = re.compile(r"^(?:[-*]|\d+\.) +")
LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s]+)\)")
CODE = re.compile(r"(`+)(?:.(?!\1))*.\1", flags=re.DOTALL)


def page_text(text, source, page, headings, root="."):
    """A file of the repository, or a part of it, as a page: arguments of `translate_links`."""

    def change(part):
        return link_names(translate_links(part, source, page, headings, root))

    return outside_code(indent_lists(text), change)


def slug(heading):
    """The anchor of a heading, as Markdown's viewers make it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def outside_code(text, change):
    """Applies a function to what is no block of code."""
    blocks = BLOCK.split(text)
    return "".join(part if place % 2 else change(part) for place, part in enumerate(blocks))


def chapters(readme):
    """README's title with its introduction, then its chapters: pairs of page and text.

    A chapter's headings move up by one.
    """
    parts, fenced = [[]], False
    for line in readme.splitlines():
        fenced ^= bool(FENCE.match(line))
        if line.startswith("## ") and not fenced:
            parts.append([])
        raised = len(parts) > 1 and line.startswith("##") and not fenced
        parts[-1].append(line[1:] if raised else line)
    yield HOME, "\n".join(parts[0]) + "\n"
    for part in parts[1:]:
        yield f"guide/{slug(part[0])}.md", "\n".join(part) + "\n"


def anchors(pages):
    """Which page of README a heading is on, by its anchor there."""
    headings = {}
    for page, text in pages:
        for heading in re.findall(r"^#+ (.*)$", without_code(text), flags=re.MULTILINE):
            headings[slug(heading)] = page
    return headings


def without_code(text):
    """The text without its blocks of code."""
    parts = []
    outside_code(text, lambda part: parts.append(part) or part)
    return "".join(parts)


def indent_lists(text):
    """What belongs to an item of a list stands four columns in, where GitHub wants two or three."""
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


def translate_links(text, source, page, headings, root="."):
    """Links of a file of the repository, for the page that it is on now.

    Args:
        text: Markdown without blocks of code.
        source: Path of the file in the repository.
        page: Path of the page in the site.
        headings: Dict of README's anchors and the pages they are on.
        root: Of the repository.

    Raises:
        ValueError: If a file or heading that is linked to is not there.
    """

    def translated(match):
        image, label, target = match.groups()
        if re.match(r"\w+:", target):
            return match[0]
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else ""
        if path and not os.path.exists(os.path.join(root, path)):
            raise ValueError(f"{source} links to {target}, which is not there.")
        if path in (README, "") and source == README:
            if anchor and anchor not in headings:
                raise ValueError(f"{source} links to #{anchor}, which is no heading there.")
            place = headings.get(anchor, HOME)
        elif path == README:
            place = headings.get(anchor, HOME)
        elif image:
            place = picture(path)
        elif path and not page_of(path):
            return label if label.strip("`") == path else f"{label} (`{path}`)"
        else:
            place = page_of(path) or page
        place = posixpath.relpath(place, posixpath.dirname(page) or ".")
        return f"{image}[{label}]({place}{'#' * bool(anchor)}{anchor})"

    return LINK.sub(translated, text)


def page_of(path):
    """The page that a file of the repository is, or None."""
    is_notebook = path.endswith(".ipynb")
    return path.removesuffix("ipynb") + "md" if is_notebook else WHOLE.get(path)


def picture(path):
    """Where a picture of the repository lies in the site."""
    return path.removeprefix("docs/")


def pictures(text, source):
    """Paths of the pictures that a file of the repository shows."""
    targets = [target for image, _, target in LINK.findall(without_code(text)) if image]
    targets = [target for target in targets if not re.match(r"\w+:", target)]
    return [posixpath.normpath(posixpath.join(posixpath.dirname(source), t)) for t in targets]


def link_names(text):
    """Public names in code become links to the reference: `kt.load`, `Translator(…)`."""

    def linked(match):
        code = re.fullmatch(r"`((?:kt|keras_transformer)\.)?(\w+)(?:\.\w+)*(?:\(.*\))?`", match[0])
        if not code or code[2] not in (names() if code[1] else unmistakable_names()):
            return match[0]
        return f"[{match[0]}][keras_transformer.{code[2]}]"

    headings = re.split(r"(^#.*\n|\[[^\]]*\](?=[(\[]))", text, flags=re.MULTILINE)
    return "".join(h if i % 2 else CODE.sub(linked, h) for i, h in enumerate(headings))
