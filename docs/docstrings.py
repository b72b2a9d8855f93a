"""Our docstrings as griffe, which mkdocstrings reads them with, has them: an extension of it.

They are Google's, but for Keras' "Call arguments:", an "Example:" that is not indented, and several
arguments of one description. Fields of dataclasses have comments, which `--help` shows.
"""

import re
import textwrap

import griffe

from docs.pages import link_names

HEADING = re.compile(r"^(Args|Call arguments|Returns|Raises|Attributes|Example|Examples):$")
NAMES = re.compile(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*): ")


class Docstrings(griffe.Extension):
    """Rewrites the docstrings of a package, once all of it has been read."""

    def on_object(self, *, obj, **_):
        """Of one object."""
        if obj.is_class and "dataclass" in obj.labels and "Attributes:" not in obj.docstring.value:
            obj.docstring.value += describe_fields(obj)
        if obj.is_class and obj.docstring and "__init__" in obj.members:
            show_handed_on(obj)
        if obj.docstring:
            obj.docstring.value = rewrite(obj.docstring.value, call_of(obj))


def call_of(obj):
    """The method that "Call arguments" are of."""
    if not obj.is_class:
        return None
    names = ("call", "__call__", "update_state")
    return next((obj.members[name] for name in names if name in obj.members), None)


def show_handed_on(obj):
    """Adds to a class' signature what it describes and hands on to a base by `**kwargs`."""
    init = obj.members["__init__"]
    *named, last = init.parameters
    if last.kind is not griffe.ParameterKind.var_keyword:
        return
    described = set(re.findall(r"\w+(?=(?:, \w+)*: )", obj.docstring.value))
    for base in obj.mro():
        of_base = base.members["__init__"].parameters if "__init__" in base.members else []
        known = {parameter.name for parameter in [*named, last]}
        named += [one for one in of_base if one.name in described - known]
    init.parameters = griffe.Parameters(*named, last)


def describe_fields(dataclass):
    """A section of the fields of a dataclass, by the comments behind them."""
    lines = []
    for name, field in dataclass.members.items():
        if field.is_attribute and "instance-attribute" in field.labels:
            comment = re.search(r"  # (.*)$", field.source.splitlines()[-1])
            comment = comment or re.search(r"^ *# ([^-].*)$", above(field))
            lines.append(f"    {name}: {comment[1] if comment else ''}")
    return "\n\nArgs:\n" + "\n".join(lines)


def above(field):
    """The line above a field."""
    return field.lines_collection[field.filepath][field.lineno - 2]


def rewrite(text, call=None):
    """A docstring as griffe wants it; `call` is the method whose arguments it may describe."""
    sections, heading = [], None
    for line in text.splitlines():
        if match := HEADING.match(line):
            heading = match[1]
            sections.append([heading])
        elif not sections or heading not in (None, "Example") and line[:1].strip():
            heading = None
            sections.append([None, line])
        else:
            sections[-1].append(line)
    lines = [line for heading, *lines in sections for line in section(heading, lines, call)]
    return "\n".join(lines).strip()


def section(heading, lines, call):
    """The lines of one section: prose where there is no heading."""
    text = "\n".join(lines)
    if heading in ("Example", "Examples"):
        code = textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")
        return ["", "Examples:", *code.splitlines(), ""]
    lines = link_names(text).splitlines()
    if not heading:
        return ["", *lines]
    if heading == "Returns" and call and call.returns and lines:
        lines[0] = f"    ({call.returns}): {lines[0].strip()}"
    if heading in ("Args", "Call arguments", "Attributes"):
        lines = arguments(lines, call if heading == "Call arguments" else None)
    title = "Keyword Args: Call arguments" if heading == "Call arguments" else f"{heading}:"
    return ["", title, *lines]


def arguments(lines, call):
    """One item for each name where several share a description, with its type in a call.

    Of more than a line, it is said once.
    """
    for item in re.split(r"\n(?=    \S)", "\n".join(lines)):
        match = NAMES.match(item)
        first, *others = match[1].split(", ") if match else [None]
        description = item[match.end() :] if match else item
        yield from (named(first, description, call) if match else item).splitlines()
        for name in others:
            once = f"See `{first}`." if "\n" in description else description
            yield from named(name, once, call).splitlines()


def named(name, description, call):
    """An item of a section: the type is that of the call, if it has such an argument."""
    known = call and name in call.parameters and call.parameters[name].annotation
    return f"    {name} ({known}): {description}" if known else f"    {name}: {description}"
