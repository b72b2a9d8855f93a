"""Prints the size of the package and fails above the budget in setup.cfg: `make size`.

Code lines are those that are neither blank nor comments nor docstrings.
"""

import ast
import configparser
import io
import os
import pathlib
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "keras_transformer"
sys.path.insert(0, str(ROOT))  # the package of this checkout counts, whatever is installed
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
NO_CODE |= {tokenize.ENDMARKER, tokenize.ENCODING}


def count_code(text):
    """Returns the number of lines with a token that is no comment and in no docstring."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            docstrings.update(range(first.lineno, first.end_lineno + 1))
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def count_classes():
    """Returns the number of classes between `Transformer` and `keras.Model`."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras

    from keras_transformer import Transformer

    return Transformer.__mro__.index(keras.Model) - 1


def measure():
    """Returns the numbers, by the names of the budget."""
    texts = {path.relative_to(PACKAGE): path.read_text() for path in PACKAGE.rglob("*.py")}
    lines = {path: text.count("\n") for path, text in texts.items()}
    entries = {path.parts[0] for path in texts} - {"__init__.py", "__main__.py"}
    tests = [path for path in (ROOT / "tests").rglob("*.py") if "benchmarks" not in path.parts]
    return {
        "lines": sum(lines.values()),
        "code": sum(map(count_code, texts.values())),
        "files": len(texts),
        "lines_outside_tools": sum(n for path, n in lines.items() if path.parts[0] != "tools"),
        "top_entries": len(entries),
        "classes_to_keras_model": count_classes(),
        "test_lines": sum(path.read_text().count("\n") for path in tests),
    }


def compare(numbers):
    """Prints numbers beside the budget, and exits if one is larger."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    for name, number in numbers.items():
        print(f"{name:24} {number:7,} of {config.getint('budget', name):7,}")
    over = [name for name, number in numbers.items() if number > config.getint("budget", name)]
    if over:
        sys.exit(
            f"Above the budget in setup.cfg: {', '.join(over)}. Remove something, or raise the "
            "number in the same commit and say why in its message."
        )


if __name__ == "__main__":
    compare(measure())
