"""Records: dataclasses that are read as JSON data too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np


class Record:
    """Base of dataclasses that users read, with their content as JSON data.

    ``_FOUND`` names properties that the data has beside the fields.
    """

    __slots__ = ()
    _FOUND: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the content as JSON data, by name: what ``--json`` of the command line prints.

        Records within it are dicts too, tuples lists, enumerations and dtypes their names. A number that JSON has none
        for is ``"inf"``, ``"-inf"`` or ``"nan"``, which `float` reads.
        """
        return encode_fields(self)


def encode_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, and properties that a `Record` names, as JSON data."""
    names = [field.name for field in fields(record) if not field.name.startswith("_")]
    return {name: encode(getattr(record, name)) for name in (*names, *getattr(record, "_FOUND", ()))}


def encode(value: Any) -> Any:
    """Return a value as JSON data; see `Record.to_dict`. An array is its dtype and shape."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Enum):
        return encode(value.value)
    if isinstance(value, Mapping):
        return {str(key): encode(each) for key, each in value.items()}
    if isinstance(value, AbstractSet):
        return sorted(encode(each) for each in value)
    if isinstance(value, (list, tuple)):
        return [encode(each) for each in value]
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": list(value.shape)}
    return encode_fields(value) if is_dataclass(value) else str(value)
