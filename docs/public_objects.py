"""Where the public names are defined, found in the source: nothing of the package is loaded."""

import ast
import dataclasses
import functools
import pathlib

import keras_transformer

PACKAGE = pathlib.Path(keras_transformer.__file__).parent


@dataclasses.dataclass(frozen=True)
class PublicObject:
    """A public name and what stands behind it."""

    name: str
    module: str  # where it is defined, "layers.decoder_layer"
    node: ast.AST  # its definition: a class, a function or an assignment

    @property
    def subpackage(self):
        """The top-level module or subpackage that it belongs to."""
        return self.module.partition(".")[0]

    @property
    def docstring(self):
        """Of a class or function; empty for a constant."""
        is_constant = not isinstance(self.node, ast.ClassDef | ast.FunctionDef)
        return "" if is_constant else ast.get_docstring(self.node) or ""

    @property
    def methods(self):
        """Public methods and their docstrings."""
        functions = [node for node in ast.iter_child_nodes(self.node)]
        functions = [node for node in functions if isinstance(node, ast.FunctionDef)]
        return {
            function.name: ast.get_docstring(function) or ""
            for function in functions
            if not function.name.startswith("_") and isinstance(self.node, ast.ClassDef)
        }


@functools.cache
def source_of(module):
    """The path of a module of the package."""
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def tree_of(module):
    """Its syntax tree."""
    return ast.parse(source_of(module).read_text(encoding="utf-8"))


def docstring_of(module):
    """The docstring of a module of the package."""
    return ast.get_docstring(tree_of(module)) or ""


def find(module, name):
    """The module that defines a name and its definition there, through whatever hands it on."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign) and name in [ast.unparse(one) for one in node.targets]:
            return module, node
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return find(node.module.removeprefix(f"{PACKAGE.name}."), name)
    raise LookupError(f"{module} does not define {name}.")


@functools.cache
def public_objects():
    """All `PublicObject`s, in the order of the stub."""
    return [
        PublicObject(name, *find(home, name)) for name, home in keras_transformer._HOME_OF.items()
    ]


@functools.cache
def names():
    """The public names."""
    return {public.name for public in public_objects()}


@functools.cache
def unmistakable_names():
    """Those that mean the same wherever they stand: no word of the language, no argument's name."""
    trees = [tree_of(public.module) for public in public_objects()]
    arguments = {node.arg for tree in trees for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return {name for name in names() - arguments if not name.isupper() and not name.isalpha()} | {
        name for name in names() if name[0].isupper() and not name.isupper()
    }
