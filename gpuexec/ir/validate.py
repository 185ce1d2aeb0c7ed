"""Validation of decoded data against type annotations.

No dataclass checks the types of what it is made of, so data read from a text is checked here.
"""

from __future__ import annotations

import functools
import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any

_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1


def is_of_type(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type; fields of a dataclass are checked too, to any depth.

    An int, of up to 64 bits, will do for a float, a bool for neither. What an annotation says beyond classes, unions,
    tuples and literals is not looked at.
    """
    if hint is Any or hint is object:
        return True
    if hint is None or hint is type(None):
        return value is None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union or origin is types.UnionType:
        return any(is_of_type(value, each) for each in arguments)
    if origin is typing.Literal:
        return any(value == each and type(value) is type(each) for each in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and _is_tuple_of(value, arguments)
    if isinstance(origin, type):
        return isinstance(value, origin)
    if not isinstance(hint, type):
        return True
    if hint is float and isinstance(value, float):
        return True
    if hint is float or hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and _MIN_INT <= value <= _MAX_INT
    return isinstance(value, hint) and find_invalid_field(value) is None


def find_invalid_field(item: Any) -> str | None:
    """Return the name of the first field of a dataclass object that is not of its annotated type, or None."""
    if not is_dataclass(item) or isinstance(item, type):
        return None
    hints = field_types(type(item))
    return next((f.name for f in fields(item) if not is_of_type(getattr(item, f.name), hints.get(f.name, Any))), None)


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Return the annotations of a dataclass; an empty dict where they can't be resolved.

    They can't where they name what is not imported.
    """
    try:
        return typing.get_type_hints(cls)
    except NameError:
        return {}


def _is_tuple_of(value: tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return all(is_of_type(item, arguments[0]) for item in value)
    return len(value) == len(arguments) and all(is_of_type(v, h) for v, h in zip(value, arguments, strict=True))
