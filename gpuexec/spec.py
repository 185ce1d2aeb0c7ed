"""What is known of a tensor before it exists: shape, dtype and, when the host knows it, its content.

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

Dim = int | str | None  # an extent, a named free dimension, or a nameless one


@dataclass(frozen=True, slots=True)
class DTypeRow:
    """One element type: ONNX TensorProto code, name, NumPy dtype, CUDA C++ type (``""``: no kernels)."""

    code: int
    name: str
    numpy: np.dtype[Any]
    cuda: str
    kind: str  # "float", "int", "uint", "bool"


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
)
_BY_CODE = {row.code: row for row in DTYPES}
_BY_NUMPY = {row.numpy: row for row in DTYPES}
_BY_NAME = {row.name: row for row in DTYPES}

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


def dtypes_of(*kinds: str) -> tuple[np.dtype[Any], ...]:
    """Return the NumPy dtypes of the given kinds (``"float"``, ``"int"``, ``"uint"``, ``"bool"``), in table order."""
    return tuple(row.numpy for row in DTYPES if row.kind in kinds)


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type sums are kept in: float for half and bfloat16, else the type itself."""
    return np.dtype(np.float32) if dtype in (np.dtype(np.float16), BFLOAT16) else dtype


@dataclass(frozen=True, slots=True, eq=False)
class HostValue:
    """The content of a tensor, known while planning.

    ``log`` is called with the role of every read ("axes"), so that a plan can tell what it depends on. A value that
    follows from the model alone has none.
    """

    array: np.ndarray[Any, Any]
    log: Callable[[str], None] | None = None


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
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    def with_shape(self, shape: tuple[int, ...]) -> TensorSpec:
        """Return a spec of another shape and the same dtype, content unknown."""
        return TensorSpec(shape, self.dtype)

    def with_value(self, array: np.ndarray[Any, Any] | None, log: Callable[[str], None] | None = None) -> TensorSpec:
        """Return this spec with its content known (or, given None, unknown)."""
        return TensorSpec(self.shape, self.dtype, None if array is None else HostValue(array, log))

    @staticmethod
    def of(array: np.ndarray[Any, Any]) -> TensorSpec:
        """Return the spec of an array with its content known."""
        return TensorSpec(array.shape, array.dtype, HostValue(array))


# What NumPy and 64-bit offsets can address: axes, and bytes where an extent of 0 counts as 1.
MOST_AXES = 64
MOST_BYTES = 2**63 - 1


def check_size(shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Check that a tensor of this shape can exist.

    Raises:
        InputError: It has a negative extent, or more axes or bytes than can be addressed.
    """
    nbytes = dtype.itemsize
    for extent in shape:
        nbytes *= extent or 1
    if len(shape) > MOST_AXES:
        raise InputError(f"a {dtype.name} tensor of {len(shape)} axes can't exist: expected at most {MOST_AXES}.")
    if nbytes > MOST_BYTES or min(shape, default=0) < 0:
        listed = ",".join(map(str, shape))
        raise InputError(
            f"{dtype.name}[{listed}] can't exist: expected extents of 0 or more, and at most 2**63 - 1 bytes."
        )


@dataclass(frozen=True, slots=True)
class DeclaredSpec:
    """What a model declares of an input or output: dtype, and dims that may be free (a name, or None).

    ``dims`` is None where even the rank is not declared.
    """

    dtype: np.dtype[Any]
    dims: tuple[Dim, ...] | None

    def __str__(self) -> str:
        if self.dims is None:
            return f"{self.dtype.name}[...]"
        return f"{self.dtype.name}[{','.join('?' if dim is None else str(dim) for dim in self.dims)}]"
