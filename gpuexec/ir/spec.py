"""Tensor specs: shape, dtype and, when the host knows it, content; and the dtype table.

The one dtype table stands here: ONNX code, name, NumPy dtype and CUDA type of every element type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.symbolic_int import SymbolicInt

Dim = int | str | None  # an extent, a named free dimension, or a nameless one


@dataclass(frozen=True, slots=True)
class DTypeRow:
    """One element type: ONNX TensorProto code, name, NumPy dtype, the CUDA C++ type it is stored as.

    Types narrower than 8 bits, and floats of 8, have kinds of their own: only conversions compute with them
    (`gpuexec.ops.quant.narrow_types`). An element is a byte of storage, of which the low bits count and the others
    are 0.
    """

    code: int
    name: str
    numpy: np.dtype[Any]
    cuda: str
    kind: str  # "float", "int", "uint", "bool", "narrow float", "narrow int", "narrow uint"
    bits: int = 0  # of its value where the storage has more; 0: all of them

    @property
    def is_narrow(self) -> bool:
        """True if only conversions compute with the type."""
        return self.kind.startswith("narrow")

    @property
    def is_float(self) -> bool:
        """True if elements are floats, of any width."""
        return self.kind in ("float", "narrow float")

    @property
    def width(self) -> int:
        """Bits of an element's value."""
        return self.bits or 8 * self.numpy.itemsize


DTYPES: tuple[DTypeRow, ...] = (
    DTypeRow(1, "float32", np.dtype(np.float32), "float", "float"),
    DTypeRow(2, "uint8", np.dtype(np.uint8), "u8", "uint"),
    DTypeRow(3, "int8", np.dtype(np.int8), "i8", "int"),
    DTypeRow(4, "uint16", np.dtype(np.uint16), "u16", "uint"),
    DTypeRow(5, "int16", np.dtype(np.int16), "i16", "int"),
    DTypeRow(6, "int32", np.dtype(np.int32), "i32", "int"),
    DTypeRow(7, "int64", np.dtype(np.int64), "i64", "int"),
    DTypeRow(9, "bool", np.dtype(np.bool_), "bool", "bool"),
    DTypeRow(10, "float16", np.dtype(np.float16), "half", "float"),
    DTypeRow(11, "float64", np.dtype(np.float64), "double", "float"),
    DTypeRow(12, "uint32", np.dtype(np.uint32), "u32", "uint"),
    DTypeRow(13, "uint64", np.dtype(np.uint64), "u64", "uint"),
    DTypeRow(16, "bfloat16", np.dtype(ml_dtypes.bfloat16), "bf16", "float"),
    DTypeRow(17, "float8e4m3fn", np.dtype(ml_dtypes.float8_e4m3fn), "u8", "narrow float"),
    DTypeRow(18, "float8e4m3fnuz", np.dtype(ml_dtypes.float8_e4m3fnuz), "u8", "narrow float"),
    DTypeRow(19, "float8e5m2", np.dtype(ml_dtypes.float8_e5m2), "u8", "narrow float"),
    DTypeRow(20, "float8e5m2fnuz", np.dtype(ml_dtypes.float8_e5m2fnuz), "u8", "narrow float"),
    DTypeRow(21, "uint4", np.dtype(ml_dtypes.uint4), "u8", "narrow uint", 4),
    DTypeRow(22, "int4", np.dtype(ml_dtypes.int4), "u8", "narrow int", 4),
    DTypeRow(23, "float4e2m1", np.dtype(ml_dtypes.float4_e2m1fn), "u8", "narrow float", 4),
    DTypeRow(24, "float8e8m0", np.dtype(ml_dtypes.float8_e8m0fnu), "u8", "narrow float"),
    DTypeRow(25, "uint2", np.dtype(ml_dtypes.uint2), "u8", "narrow uint", 2),
    DTypeRow(26, "int2", np.dtype(ml_dtypes.int2), "u8", "narrow int", 2),
    DTypeRow(27, "float6e2m3", np.dtype(ml_dtypes.float6_e2m3fn), "u8", "narrow float", 6),
    DTypeRow(28, "float6e3m2", np.dtype(ml_dtypes.float6_e3m2fn), "u8", "narrow float", 6),
)
# Dtypes that kernels compute with; the others they move and convert.
COMPUTED: tuple[DTypeRow, ...] = tuple(row for row in DTYPES if not row.is_narrow)
# Dtypes that no device can hold: their values are NumPy arrays on the host, and never in a plan. A tensor of strings
# has elements of type str; a container is a 0-d array whose one field holds it (see `gpuexec.ir.containers`).
STRING = np.dtype(object)
SEQUENCE = np.dtype([("sequence", object)])
OPTIONAL = np.dtype([("optional", object)])
MAP = np.dtype([("map", object)])
# The element type of an output whose type nothing declares or implies before a run.
UNKNOWN = np.dtype(np.void)
HOST_OBJECTS: tuple[DTypeRow, ...] = (
    DTypeRow(8, "string", STRING, "", "string"),
    DTypeRow(0, "sequence", SEQUENCE, "", "container"),
    DTypeRow(0, "optional", OPTIONAL, "", "container"),
    DTypeRow(0, "map", MAP, "", "container"),
)
_BY_CODE = {row.code: row for row in (*DTYPES, *HOST_OBJECTS) if row.code}
_BY_NUMPY = {row.numpy: row for row in (*DTYPES, *HOST_OBJECTS)}
_BY_NAME = {row.name: row for row in (*DTYPES, *HOST_OBJECTS)}

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def dtype_row(dtype: Any) -> DTypeRow:
    """Return the table row of a NumPy dtype, of a name such as ``"bfloat16"``, or of an ONNX code.

    Raises:
        InputError: The type is not in the table.
    """
    if isinstance(dtype, int):
        row = _BY_CODE.get(dtype)
    elif isinstance(dtype, str):
        row = _BY_NAME.get(dtype)
    else:
        row = _BY_NUMPY.get(np.dtype(dtype))
    if row is None:
        raise InputError(f"Element type {dtype!r} is not supported; known are {', '.join(r.name for r in DTYPES)}.")
    return row


def eps_of(dtype: np.dtype[Any]) -> float:
    """Return the distance of a float type's 1 from the next number."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def smallest_of(dtype: np.dtype[Any]) -> float:
    """Return the smallest number of a float type above 0."""
    return float(ml_dtypes.finfo(dtype).smallest_subnormal)  # type: ignore[no-untyped-call]


def is_host_object(dtype: np.dtype[Any]) -> bool:
    """Return whether no device can hold values of this dtype: strings, sequences, optionals, maps."""
    return dtype.hasobject


def is_container(dtype: np.dtype[Any]) -> bool:
    """Return whether values of this dtype are sequences, optionals or maps."""
    return dtype.hasobject and dtype != STRING


def name_dtype(dtype: np.dtype[Any]) -> str:
    """Return the display name of a dtype: the table's, or NumPy's for one that is not in it."""
    row = _BY_NUMPY.get(STRING if dtype.kind in "UST" else dtype)
    return row.name if row is not None else "unknown" if dtype == UNKNOWN else dtype.name


def holds_numbers(dtype: np.dtype[Any], numbers: np.ndarray[Any, Any]) -> bool:
    """Return whether Python numbers convert to a dtype without loss, but for a float's precision.

    What is beyond an integer type NumPy refuses by itself; of narrow ones it would keep the low bits.
    """
    row, kind = _BY_NUMPY.get(dtype), numbers.dtype.kind
    if row is not None and row.is_narrow and kind in "iuf":
        lowest = -(1 << (row.width - 1)) if row.kind == "narrow int" else 0
        is_inside = (numbers >= lowest) & (numbers < lowest + (1 << row.width))
        return row.is_float or (kind in "iu" and bool(is_inside.all()))
    return dtype.kind == "b" if kind == "b" else dtype.kind != "b" if kind in "iuO" else dtype.kind not in "biu"


def convert_numbers(numbers: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Convert an array of Python numbers to a dtype; return one of other kinds as it is.

    Raises:
        InputError: A number is beyond that dtype.
    """
    if numbers.dtype.kind in "biuf":
        is_of_kind = holds_numbers(dtype, numbers) or numbers.size == 0
    else:
        is_of_kind = np.can_cast(numbers.dtype, dtype, "same_kind")
    if not is_of_kind:
        return numbers
    with np.errstate(all="ignore"):
        made = numbers.astype(dtype)
        if dtype_row(dtype).is_float:
            is_lost = np.isfinite(numbers) & ~np.isfinite(made.astype(np.float64))
        else:
            is_lost = (made.astype(numbers.dtype) != numbers) | ((made.astype(np.float64) < 0) != (numbers < 0))
    if is_lost.any():
        raise InputError(f"expected {name_dtype(dtype)}, got {numbers[is_lost][0]}, which is beyond that.")
    return made


def dtypes_of(*kinds: str) -> tuple[np.dtype[Any], ...]:
    """Return the NumPy dtypes of the given kinds, in table order."""
    return tuple(row.numpy for row in DTYPES if row.kind in kinds)


_SMALL_FLOATS = frozenset((np.dtype(np.float16), BFLOAT16, *dtypes_of("narrow float")))


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type sums are kept in: float for half, bfloat16 and narrower types, else the type itself."""
    return np.dtype(np.float32) if dtype in _SMALL_FLOATS else dtype


# Called on a read with its role, and with the bound below which values share a plan.
ReadLog = Callable[[str, int | None], None]


@dataclass(frozen=True, slots=True, eq=False)
class HostValue:
    """The content of a tensor, known while planning.

    ``log`` is called with the role of every read ("axes"), so that a plan knows what it depends on; and, where all
    numbers up to a bound have the same effect, with that bound. A value that follows from the model alone has no log.
    """

    array: np.ndarray[Any, Any]
    log: ReadLog | None = None


class SymbolicValue(HostValue):
    """Content of an integer tensor of which some elements are symbolic.

    Attributes:
        symbols: The elements, as an array of objects.
        dtype: What they are elements of.
    """

    __slots__ = ("dtype", "symbols")
    symbols: np.ndarray[Any, Any]
    dtype: np.dtype[Any]

    def __init__(self, symbols: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
        for name, value in (("symbols", symbols), ("dtype", dtype), ("log", None)):
            object.__setattr__(self, name, value)

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The digits, which tie the trace to the extents at hand."""
        return np.array([int(each) for each in self.symbols.reshape(-1)], self.dtype).reshape(self.symbols.shape)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a tensor; ``value`` is its content where the host knows it, outside equality."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    value: HostValue | None = field(default=None, compare=False, repr=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        if is_container(self.dtype):
            return name_dtype(self.dtype)
        return f"{name_dtype(self.dtype)}[{','.join(map(str, self.shape))}]"

    def with_shape(self, shape: tuple[int, ...]) -> TensorSpec:
        """Return a spec of another shape and the same dtype, content unknown."""
        return TensorSpec(shape, self.dtype)

    def with_value(self, array: np.ndarray[Any, Any] | None, log: ReadLog | None = None) -> TensorSpec:
        """Return this spec with its content known (or, given None, unknown).

        Of an integer tensor it may be an array of objects, some of them symbolic.
        """
        if array is not None and array.dtype == STRING != self.dtype:
            if any(isinstance(each, SymbolicInt) for each in array.reshape(-1)):
                return TensorSpec(self.shape, self.dtype, SymbolicValue(array, self.dtype))
            array = array.astype(self.dtype)
        return TensorSpec(self.shape, self.dtype, None if array is None else HostValue(array, log))

    @staticmethod
    def of(array: np.ndarray[Any, Any]) -> TensorSpec:
        """Return the spec of an array with its content known."""
        return TensorSpec(array.shape, array.dtype, HostValue(array))


# Limits of NumPy and of 64-bit offsets: number of axes, and bytes, an extent of 0 counted as 1.
MAX_AXES = 64
MAX_BYTES = 2**63 - 1


def check_size(shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Check that a tensor of this shape can exist.

    Raises:
        InputError: It has a negative extent, or more axes or bytes than can be addressed.
    """
    nbytes = dtype.itemsize
    for extent in shape:
        nbytes *= extent or 1
    if len(shape) > MAX_AXES:
        name = name_dtype(dtype)
        raise InputError(f"a {name} tensor of {len(shape)} axes can't exist: expected at most {MAX_AXES}.")
    if nbytes > MAX_BYTES or min(shape, default=0) < 0:
        listed = ",".join(map(str, shape))
        raise InputError(
            f"{name_dtype(dtype)}[{listed}] can't exist: expected extents of 0 or more, and at most 2**63 - 1 bytes."
        )


@dataclass(frozen=True, slots=True)
class DeclaredSpec:
    """Declared spec of a model's input or output: dtype, and dims that may be free (a name, or None).

    ``dims`` is None where even the rank is not declared, and empty for containers. ``item`` is what a container holds,
    where that is declared, ``key`` the dtype of a map's keys.
    """

    dtype: np.dtype[Any]
    dims: tuple[Dim, ...] | None
    item: DeclaredSpec | None = None
    key: np.dtype[Any] | None = None

    def __str__(self) -> str:
        if is_container(self.dtype):
            held = [*([] if self.key is None else [name_dtype(self.key)]), *([] if self.item is None else [self.item])]
            return f"{name_dtype(self.dtype)}({', '.join(map(str, held))})"
        name = name_dtype(self.dtype)
        if self.dims is None:
            return f"{name}[...]"
        return f"{name}[{','.join('?' if dim is None else str(dim) for dim in self.dims)}]"
