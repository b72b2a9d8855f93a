"""Options of the benchmarks: a dataclass, read from the command line."""

import argparse
import inspect
import types
import typing


def read_options(kind):
    """Reads a dataclass: fields without a default are arguments, the others options."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=inspect.getdoc(kind), formatter_class=raw)
    for name, hint in typing.get_type_hints(kind).items():
        several = typing.get_origin(hint) is tuple
        (of_one, *_) = typing.get_args(hint) if several else (hint,)
        if isinstance(of_one, types.UnionType):
            of_one = typing.get_args(of_one)[0]
        choices = typing.get_args(of_one) or None
        how = dict(type=str if choices else of_one, choices=choices, nargs="*" if several else None)
        option = f"--{name.replace('_', '-')}"
        if hint is bool:
            parser.add_argument(option, action="store_true")
        elif hasattr(kind, name):
            parser.add_argument(option, default=getattr(kind, name), **how)
        else:
            parser.add_argument(name, **how)
    found = vars(parser.parse_args())
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})
