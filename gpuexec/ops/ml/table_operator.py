"""Shared base of ai.onnx.ml operators: tables prepared from attributes, inputs as floats."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.operator import Array, Emitter, Operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.elementwise.elementwise_cast import Cast
from gpuexec.ops.tensor.shape import Literal, from_literal, to_literal

FLOAT, DOUBLE, INT32, INT64 = (np.dtype(t) for t in (np.float32, np.float64, np.int32, np.int64))
NUMBERS = (FLOAT, DOUBLE, INT64, INT32)  # what nearly all of these operators take
THREADS = 256  # kThreads of their kernels

Tables = TypeVar("Tables")


class TableOperator(Operator, Generic[Tables]):
    """Operator with tables prepared once from long attributes, when it is made; errors in them are raised then.

    A subclass says how in ``make_tables``.
    """

    __slots__ = ("_tables",)
    _tables: Tables

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tables", self.make_tables())

    def make_tables(self) -> Tables:
        """Return the tables.

        Raises:
            InputError: The attributes don't fit each other.
        """
        raise TypeError(f"{type(self).__name__} lacks make_tables")

    @property
    def tables(self) -> Tables:
        """Return the result of ``make_tables``, made again for an operator that was unpickled."""
        if not hasattr(self, "_tables"):
            object.__setattr__(self, "_tables", self.make_tables())
        return self._tables


def freeze_arrays(op: Operator, *names: str) -> None:
    """Convert attributes of a frozen operator that were given as arrays into literals."""
    for name in names:
        value = getattr(op, name)
        if isinstance(value, np.ndarray):
            object.__setattr__(op, name, to_literal(value))


def choose_floats(name: str, floats: tuple[float, ...] | None, tensor: Literal | None) -> Array | None:
    """Return a list of floats, or the tensor of doubles given in its place; None where neither is given.

    Raises:
        InputError: Both are, or the tensor holds no floats.
    """
    if floats and tensor is not None:
        raise InputError(f"expected {name} or {name}_as_tensor, got both.")
    if tensor is None:
        return None if floats is None else np.array(floats, np.float32)
    array = from_literal(tensor).reshape(-1)
    if dtype_row(array.dtype).kind != "float":
        raise InputError(f"{name}_as_tensor expects floats, got {TensorSpec(array.shape, array.dtype)}.")
    return array.astype(np.float64 if array.dtype == DOUBLE else np.float32)


def read_numbers(name: str, numbers: tuple[float, ...] | None, count: int) -> Array:
    """Return the first ``count`` of a list of floats.

    Raises:
        InputError: There are fewer.
    """
    if len(numbers or ()) < count:
        raise InputError(f"{name} expects {count} numbers, got {len(numbers or ())}.")
    return np.array((numbers or ())[:count], np.float32)


def count_rows(name: str, x: TensorSpec, features: int | None = None) -> tuple[int, int]:
    """Return the rows and features of an input ``[rows, features]``, or ``[features]`` of one row.

    Raises:
        InputError: It has another rank, or another number of features than expected.
    """
    if x.rank not in (1, 2) or (features is not None and x.shape[-1] != features):
        extent = "features" if features is None else features
        raise InputError(f"{name} expects an input [rows, {extent}] or [{extent}], got {x}.")
    return (1, x.shape[0]) if x.rank == 1 else (x.shape[0], x.shape[1])


def as_rows(x: Array) -> Array:
    """Return an array of one axis as a row, another one as it is."""
    return x[None] if x.ndim == 1 else x


def show_as(emit: Emitter, x: Slot, dtype: np.dtype[Any]) -> Slot:
    """Return a dense slot of the elements in another type, converted if they are not of it."""
    if x.dtype != dtype:
        converted = emit.temp(x.shape, dtype)
        Cast(dtype_row(dtype).code).lower(emit, (x,), (converted,))
        return converted
    return emit.contiguous(x)
