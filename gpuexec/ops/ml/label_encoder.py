"""LabelEncoder: table lookup of elements; numbers on the device, strings on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import STRING, TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.ml.table_operator import DOUBLE, FLOAT, INT32, INT64, THREADS, TableOperator, freeze_arrays
from gpuexec.ops.reduce.sort import sort_keys
from gpuexec.ops.tensor.shape import Literal, from_literal

SOURCE = "label_encoder.cu"
_INT16 = np.dtype(np.int16)
_NUMBERS = (FLOAT, DOUBLE, INT64, INT32, _INT16)
instantiate(SOURCE, [f"encode_labels<{dtype_row(dtype).cuda}>" for dtype in _NUMBERS])


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """Key and value tables of a LabelEncoder.

    Attributes:
        keys: Each once, numbers in the order of `sort_keys`.
        values: By key, and behind them the default.
        numbers: By key, of strings, its place.
    """

    keys: Array
    values: Array
    numbers: dict[str, int]

    def find(self, x: Array) -> Array:
        """Return the index of each element among the keys; the number of keys for other elements."""
        count = len(self.keys)
        if self.keys.dtype == STRING:
            found = [self.numbers.get(item, count) for item in x.reshape(-1)]
            return np.array(found, np.int64).reshape(x.shape)
        known, wanted = sort_keys(self.keys), sort_keys(x)
        places = np.searchsorted(known, wanted)
        inside = np.minimum(places, max(0, count - 1))
        return np.where(known[inside] == wanted, inside, count) if count else np.zeros(x.shape, np.int64)


@operator("LabelEncoder", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class LabelEncoder(TableOperator[dict[Any, Encoding]]):
    """Element lookup: a key becomes its value, anything else the default. Of equal keys the last counts.

    Before opset 2 there were only ``classes_strings``: a string becomes its place among them, and a place the string.
    """

    default_float: float = -0.0
    default_int64: int = -1
    default_string: str = "_Unused"
    default_tensor: Literal | None = None
    keys_floats: tuple[float, ...] | None = None
    keys_int64s: tuple[int, ...] | None = None
    keys_strings: tuple[str, ...] | None = None
    keys_tensor: Literal | None = None
    values_floats: tuple[float, ...] | None = None
    values_int64s: tuple[int, ...] | None = None
    values_strings: tuple[str, ...] | None = None
    values_tensor: Literal | None = None
    classes_strings: tuple[str, ...] | None = None
    tolerance = Tolerance.EXACT
    example = (
        "int64[1] keys_int64s=(1,) values_int64s=(2,) | "
        "float32[1] keys_floats=(1.0,) values_int64s=(2,) | "
        "string[1] keys_strings=('a',) values_int64s=(2,) | "
        "int16[1] keys_tensor=('int16',(1,),'0100') values_int64s=(2,) | "
        "int32[1] keys_tensor=('int32',(1,),'01000000') values_int64s=(2,) | "
        "float64[1] keys_tensor=('float64',(1,),'000000000000f03f') values_int64s=(2,)"
    )
    flops_per_output = None
    has_blits = False

    def __post_init__(self) -> None:
        freeze_arrays(self, "default_tensor", "keys_tensor", "values_tensor")
        TableOperator.__post_init__(self)

    def make_tables(self) -> dict[Any, Encoding]:
        """Return the encoding by the type of the input."""
        if self.classes_strings is not None:
            names, places = np.array(self.classes_strings, STRING), np.arange(len(self.classes_strings))
            encodings = (
                _encode(names, np.append(places, self.default_int64).astype(INT64)),
                _encode(places, np.append(names, self.default_string).astype(STRING)),
            )
            return {encoding.keys.dtype: encoding for encoding in encodings}
        keys = _choose("keys", self.keys_floats, self.keys_int64s, self.keys_strings, self.keys_tensor)
        values = _choose("values", self.values_floats, self.values_int64s, self.values_strings, self.values_tensor)
        if len(keys) != len(values):
            raise InputError(f"expected as many values as keys, got {len(values)} and {len(keys)}.")
        encoding = _encode(keys, np.append(values, self._choose_default(values.dtype)).astype(values.dtype))
        return {keys.dtype: encoding}

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Keep the shape.

        Raises:
            InputError: The elements are not of the type of the keys.
        """
        check_dtype(self.name, x, tuple(self.tables))
        return (TensorSpec(x.shape, self.tables[x.dtype].values.dtype),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Look up."""
        encoding = self.tables[x.dtype]
        return (np.asarray(encoding.values[encoding.find(x)], encoding.values.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element, which searches the sorted keys."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        encoding = self.tables[x.dtype]
        keys = sort_keys(encoding.keys)
        emit.launch(
            Kernel(SOURCE, f"encode_labels<{dtype_row(x.dtype).cuda}>"),
            (max(1, ceil_div(y.spec.size, THREADS)), 1, 1),
            (THREADS, 1, 1),
            [
                emit.contiguous(x),
                emit.constant(keys if keys.size else np.zeros(1, keys.dtype)),
                emit.constant(encoding.values),
                y,
                int64(y.spec.size),
                int64(keys.size),
                int32(y.dtype.itemsize),
            ],
            writes=[3],
        )

    def _choose_default(self, dtype: np.dtype[Any]) -> Array:
        """Return the default for elements that are no keys, in the type of the values.

        Raises:
            InputError: ``default_tensor`` is of another type, or not one element.
        """
        if self.default_tensor is not None:
            default = from_literal(self.default_tensor)
            if default.size != 1 or default.dtype != dtype:
                given = TensorSpec(default.shape, default.dtype)
                raise InputError(f"default_tensor expects one element of type {dtype_row(dtype).name}, got {given}.")
            return default.reshape(1)
        if dtype == STRING:
            return np.array([self.default_string], STRING)
        return np.array([self.default_int64 if dtype.kind == "i" else self.default_float], dtype)


def _choose(
    role: str,
    floats: tuple[float, ...] | None,
    ints: tuple[int, ...] | None,
    strings: tuple[str, ...] | None,
    tensor: Literal | None,
) -> Array:
    """Return the keys or values from whichever attribute is given.

    Raises:
        InputError: There is none or more than one, or a tensor is not one list of a type for labels.
    """
    lists = ((floats, FLOAT), (ints, INT64), (strings, STRING))
    found = [np.array(given, dtype) for given, dtype in lists if given is not None]
    found += [] if tensor is None else [from_literal(tensor)]
    if len(found) != 1:
        raise InputError(f"expected {role} in one attribute {role}_*, got {len(found)}.")
    array = found[0]
    if array.ndim != 1 or array.dtype not in (*_NUMBERS, STRING):
        raise InputError(f"{role}_tensor expects a list of labels, got {TensorSpec(array.shape, array.dtype)}.")
    return array


def _encode(keys: Array, values: Array) -> Encoding:
    """Return an encoding in which each key is once, with the value of its last place."""
    if keys.dtype == STRING:
        last = {key: place for place, key in enumerate(keys.tolist())}
        kept = list(last.values())
        return Encoding(keys[kept], values[[*kept, -1]], {key: number for number, key in enumerate(last)})
    # Backwards, so that the first of equals is the last.
    _, backward = np.unique(sort_keys(keys)[::-1], return_index=True)
    order = len(keys) - 1 - backward
    return Encoding(keys[order], values[[*order, -1]], {})
