"""The public face: the names of each class that `gpuexec` exports, and the stub by which type checkers read them.

Run as a program (``python -m tests.interfaces.face``) it writes the stub, ``gpuexec/__init__.pyi``, anew.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import gpuexec as gx

STUB = Path(gx.__file__).with_suffix(".pyi")
_HEAD = '''"""Public names of gpuexec for type checkers.

Made of `gpuexec._HOMES` by ``python -m tests.interfaces.face``.
"""

'''


def list_classes() -> dict[str, type]:
    """Return the classes that the package exports, but for its errors, by name."""
    found = {name: getattr(gx, name) for name in gx.__all__}
    return {
        name: item for name, item in found.items() if isinstance(item, type) and not issubclass(item, BaseException)
    }


def list_names(kind: type) -> list[str]:
    """Return the public names of a class and its bases in this package: methods, properties, attributes."""
    names = set()
    for each in kind.__mro__:
        if each.__module__.startswith("gpuexec"):
            names |= {*vars(each), *vars(each).get("__annotations__", ())}
            for function in _list_functions(each):
                names |= set(_list_attributes(function))
    return sorted(name for name in names if not name.startswith("_"))


def list_methods(kind: type) -> dict[str, Any]:
    """Return the public methods of a class and its bases in this package, by name."""
    members = {name: inspect.getattr_static(kind, name, None) for name in list_names(kind)}
    found = {name: getattr(item, "__func__", item) for name, item in members.items()}
    return {name: item for name, item in found.items() if isinstance(item, FunctionType)}


def make_stub() -> str:
    """Return the stub: each name, imported from where it is defined."""
    rows = sorted((home, name) for home, names in gx._HOMES.items() for name in names)
    lines = [f"from {home} import {name} as {name}\n" for home, name in rows]
    return _HEAD + "".join(lines) + "\n__version__: str\n"


def _list_functions(kind: type) -> Iterator[FunctionType]:
    """Yield the functions that a class is written of, those behind its properties too, but for generated ones."""
    for item in vars(kind).values():
        found = getattr(item, "fget", getattr(item, "__func__", item))
        if isinstance(found, FunctionType) and found.__code__.co_filename == inspect.getfile(
            import_module(kind.__module__)
        ):
            yield found


def _list_attributes(function: FunctionType) -> Iterator[str]:
    """Yield the attributes that a method sets."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


if __name__ == "__main__":
    STUB.write_text(make_stub())
