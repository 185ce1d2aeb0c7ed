"""Attribute type checks against the fields that an operator declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from gpuexec.errors import InputError

# Checks by annotation of a field; attributes with any other annotation are not checked.
_SCALARS: Mapping[str, type] = {"int": Integral, "float": Real, "str": str}
_LISTS: Mapping[str, type] = {f"tuple[{name}, ...]": kind for name, kind in _SCALARS.items()}


def check_attributes(name: str, fields: Iterable[dataclasses.Field[Any]], attributes: Mapping[str, Any]) -> None:
    """Check attributes, lists as tuples, against the fields of an operator.

    ONNX has no schema of operators that it took out, nor of those of other domains, and program files have none at all.

    Raises:
        InputError: One has another type.
    """
    for field in fields:
        if field.name in attributes:
            declared = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
            if not _fits(declared, attributes[field.name]):
                raise InputError(f"{name} expects {field.name} to be {declared}, got {attributes[field.name]!r}.")


def _fits(annotation: str, value: Any) -> bool:
    annotation, _, rest = annotation.partition(" | ")
    if value is None and rest == "None":
        return True
    kind = _LISTS.get(annotation)
    if kind is None:
        return annotation not in _SCALARS or isinstance(value, _SCALARS[annotation])
    # Elements are many and their types few.
    return isinstance(value, tuple) and not [each for each in set(map(type, value)) if not issubclass(each, kind)]
