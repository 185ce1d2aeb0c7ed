"""Map operators, all on the host: CategoryMapper, CastMap, DictVectorizer, ZipMap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.containers import describe, find_held, hold, make_map, make_sequence, read_map
from gpuexec.ir.host_values import require_const
from gpuexec.ir.operator import Array, Operator, Out, Tolerance, operator
from gpuexec.ir.spec import MAP, SEQUENCE, STRING, TensorSpec, is_container
from gpuexec.ops.elementwise.elementwise_cast import convert
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.ml.table_operator import FLOAT, INT64

_CASTS = {"TO_FLOAT": FLOAT, "TO_STRING": STRING, "TO_INT64": INT64}
_FORMS = ("DENSE", "SPARSE")
_MAPS = "maps are containers on the host"


@operator("CategoryMapper", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class CategoryMapper(Operator):
    """The integer of each string, or the string of each integer, by the type of x; of equal ones the last counts."""

    cats_int64s: tuple[int, ...] | None = None
    cats_strings: tuple[str, ...] | None = None
    default_int64: int = -1
    default_string: str = "_Unused"
    tolerance = Tolerance.EXACT
    host_reason = "strings lie on the host"
    flops_per_output = None

    def __post_init__(self) -> None:
        ints, strings = self.cats_int64s or (), self.cats_strings or ()
        if len(ints) != len(strings):
            raise InputError(
                f"expected as many cats_strings as cats_int64s, got {len(strings)} and {len(ints)} of them."
            )

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Keep the shape."""
        check_dtype(self.name, x, (STRING, INT64))
        return (TensorSpec(x.shape, INT64 if x.dtype == STRING else STRING),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Look up."""
        ints, strings = self.cats_int64s or (), self.cats_strings or ()
        given = x.reshape(-1).tolist()
        if x.dtype == STRING:
            numbers = dict(zip(strings, ints, strict=True))
            return (np.array([numbers.get(text, self.default_int64) for text in given], INT64).reshape(x.shape),)
        texts = dict(zip(ints, strings, strict=True))
        return (np.array([texts.get(number, self.default_string) for number in given], STRING).reshape(x.shape),)


@operator("CastMap", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class CastMap(Operator):
    """A row ``[1, count]`` of a map's values, in the order of its keys, or at its keys if SPARSE, in another type.

    A SPARSE row is ``max_map`` long; where there is no key, it is 0 or an empty string.
    """

    cast_to: str = "TO_FLOAT"
    map_form: str = "DENSE"
    max_map: int = 1
    tolerance = Tolerance.EXACT
    takes_containers = True
    host_reason = _MAPS
    flops_per_output = None

    def __post_init__(self) -> None:
        if self.cast_to not in _CASTS or self.map_form not in _FORMS or self.max_map < 1:
            raise InputError(
                f"expected cast_to of {', '.join(_CASTS)}, map_form of {', '.join(_FORMS)} and max_map of 1 or more, "
                f"got {self.cast_to!r}, {self.map_form!r} and {self.max_map}."
            )

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a row; of a DENSE one, the map must be known."""
        _check_map(self.name, x)
        count = self.max_map if self.map_form == "SPARSE" else len(read_map(require_const(x, "X", 0)))
        return (TensorSpec((1, count), _CASTS[self.cast_to]),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Order, and convert.

        Raises:
            InputError: Keys are no integers, or outside of a SPARSE row.
        """
        items = sorted(read_map(x).items())
        keys = [key for key, _ in items]
        if any(isinstance(key, str) for key in keys):
            raise InputError(f"{self.name} expects a map whose keys are integers, got key {keys[0]!r}.")
        dtype = _CASTS[self.cast_to]
        values = [_take_element(self.name, key, item, dtype) for key, item in items]
        if self.map_form == "DENSE":
            return (np.array(values, dtype).reshape(1, -1),)
        outside = [key for key in keys if not 0 <= key < self.max_map]
        if outside:
            raise InputError(f"{self.name} expects keys from 0 to {self.max_map - 1} (max_map), got {outside[0]}.")
        y = np.full((1, self.max_map), "" if dtype == STRING else 0, dtype)
        for key, value in zip(keys, values, strict=True):
            y[0, key] = value
        return (y,)


@operator("DictVectorizer", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class DictVectorizer(Operator):
    """A row ``[1, words]`` of a map's values, in the order of a vocabulary; 0 or "" where the map lacks a word.

    Keys that are no words are left out, as scikit-learn and ONNX Runtime leave them out. The shape is that of ONNX
    Runtime, which converters declare; ONNX itself says "a 1-D tensor". The type is that of what is held or could be, as
    declared; where it is unknown, float.
    """

    int64_vocabulary: tuple[int, ...] | None = None
    string_vocabulary: tuple[str, ...] | None = None
    tolerance = Tolerance.EXACT
    takes_containers = True
    host_reason = _MAPS
    example = "map int64_vocabulary=(1,)"
    flops_per_output = None

    def __post_init__(self) -> None:
        if bool(self.int64_vocabulary) == bool(self.string_vocabulary):
            raise InputError(
                f"expected int64_vocabulary or string_vocabulary, got {len(self.int64_vocabulary or ())} and "
                f"{len(self.string_vocabulary or ())} words."
            )

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a row of the vocabulary's length; the map must be known, which tells the type."""
        _check_map(self.name, x)
        return (TensorSpec((1, len(self._words)), find_held(require_const(x, "X", 0)) or FLOAT),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Look up.

        Raises:
            InputError: There is more than one element by a word.
        """
        items, dtype = read_map(x), find_held(x) or FLOAT
        blank = "" if dtype == STRING else 0
        found = [_take_element(self.name, word, items[word], dtype) if word in items else blank for word in self._words]
        return (np.array([found], dtype),)

    @property
    def _words(self) -> tuple[Any, ...]:
        return self.int64_vocabulary or self.string_vocabulary or ()


@operator("ZipMap", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class ZipMap(Operator):
    """A sequence of maps, one for each row, of which each column's element is held by the key of the column."""

    classlabels_int64s: tuple[int, ...] | None = None
    classlabels_strings: tuple[str, ...] | None = None
    tolerance = Tolerance.EXACT
    host_reason = _MAPS
    example = "float32[2,1] classlabels_int64s=(1,)"
    flops_per_output = None

    def __post_init__(self) -> None:
        if bool(self.classlabels_int64s) == bool(self.classlabels_strings):
            raise InputError(
                f"expected classlabels_int64s or classlabels_strings, got {len(self.classlabels_int64s or ())} and "
                f"{len(self.classlabels_strings or ())} keys."
            )

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a sequence.

        Raises:
            InputError: There are not as many columns as keys.
        """
        check_dtype(self.name, x, (FLOAT,))
        count = len(self._keys)
        if x.rank not in (1, 2) or x.shape[-1] != count:
            raise InputError(f"{self.name} expects an input [rows, {count}] or [{count}], one column a key, got {x}.")
        return (TensorSpec((), SEQUENCE),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Convert each row into a map."""
        rows = x.reshape(-1, len(self._keys))
        maps = [make_map(dict(zip(self._keys, [hold(np.array(item)) for item in row], strict=True))) for row in rows]
        return (make_sequence(maps),)

    @property
    def _keys(self) -> tuple[Any, ...]:
        return self.classlabels_int64s or self.classlabels_strings or ()


def _check_map(name: str, x: TensorSpec) -> None:
    if x.dtype != MAP:
        raise InputError(f"{name} expects a map, got {x}.")


def _take_element(name: str, key: Any, item: Array, dtype: np.dtype[Any]) -> Any:
    """Return the one element that a map holds by a key, in a type."""
    if is_container(item.dtype) or item.size != 1:
        raise InputError(f"{name} expects a map that holds one element by each key, got {describe(item)} by {key!r}.")
    return convert(item, dtype).reshape(-1)[0]
