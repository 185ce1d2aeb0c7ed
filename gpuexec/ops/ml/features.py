"""Scaler, Imputer, Binarizer: elementwise preparation of features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.ml.table_operator import DOUBLE, FLOAT, NUMBERS, THREADS, show_as

SOURCE = "features.cu"
instantiate(SOURCE, [f"scale_features<{real}>" for real in ("float", "double")])
instantiate(
    SOURCE,
    [f"{kernel}<{dtype_row(dtype).cuda}>" for kernel in ("impute_features", "binarize") for dtype in NUMBERS],
)


def launch_elements(emit: Emitter, kernel: str, arguments: list[Argument], y: Slot, writes: int) -> None:
    """Launch a thread per element of ``y``."""
    grid = (max(1, ceil_div(y.spec.size, THREADS)), 1, 1)
    emit.launch(Kernel(SOURCE, kernel), grid, (THREADS, 1, 1), arguments, writes=[writes])


def _check_columns(name: str, x: TensorSpec, **lists: tuple[Any, ...]) -> None:
    """Check that lists have a number for each column, or one for all.

    Raises:
        InputError: They have not, or there are no columns.
    """
    for role, numbers in lists.items():
        if not x.rank or len(numbers) not in (1, x.shape[-1]):
            raise InputError(
                f"{name} expects {role} to have 1 number or one for each column, got {len(numbers)} for {x}."
            )


def _divisor(x: Slot) -> bytes:
    return pack_fast_div64(max(1, x.shape[-1]))


@operator("Scaler", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class Scaler(Operator):
    """``(x - offset) * scale`` in float, or in double if x is that, by column; the result is float."""

    offset: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    flops_per_output = None
    has_blits = False

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Keep the shape.

        Raises:
            InputError: There is another number of columns.
        """
        check_dtype(self.name, x, NUMBERS)
        _check_columns(self.name, x, offset=self._offset, scale=self._scale)
        return (TensorSpec(x.shape, FLOAT),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Subtract, multiply."""
        wide = DOUBLE if x.dtype == DOUBLE else FLOAT
        offset, scale = (np.array(numbers, FLOAT).astype(wide) for numbers in (self._offset, self._scale))
        with np.errstate(all="ignore"):
            return (((x.astype(wide, copy=False) - offset) * scale).astype(FLOAT, copy=False),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        wide = DOUBLE if x.dtype == DOUBLE else FLOAT
        tables = [np.array(numbers, FLOAT).astype(wide) for numbers in (self._offset, self._scale)]
        arguments: list[Argument] = [show_as(emit, x, wide), *map(emit.constant, tables), y]
        arguments += [int64(y.spec.size), _divisor(x), *(int32(table.size > 1) for table in tables)]
        launch_elements(emit, f"scale_features<{dtype_row(wide).cuda}>", arguments, y, 3)

    @property
    def _offset(self) -> tuple[float, ...]:
        return self.offset or (0.0,)

    @property
    def _scale(self) -> tuple[float, ...]:
        return self.scale or (1.0,)


@operator("Imputer", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class Imputer(Operator):
    """x, but the imputed value of its column where it is the replaced one; any NaN is, if that is one."""

    imputed_value_floats: tuple[float, ...] | None = None
    imputed_value_int64s: tuple[int, ...] | None = None
    replaced_value_float: float = 0.0
    replaced_value_int64: int = 0
    tolerance = Tolerance.EXACT
    example = "float32[2,1] imputed_value_floats=(1.0,) | int64[2,1] imputed_value_int64s=(1,)"
    flops_per_output = None
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Keep the spec.

        Raises:
            InputError: There are no values of the input's kind, or not one for each column, or they don't fit its type.
        """
        check_dtype(self.name, x, NUMBERS)
        values, _ = self._read(x.dtype)
        _check_columns(self.name, x, values=tuple(values))
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Choose."""
        values, replaced = self._read(x.dtype)
        is_replaced = np.isnan(x) if replaced is not None and replaced != replaced else np.equal(x, replaced)
        return (np.where(is_replaced, values, x) if replaced is not None else x.copy(),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element; a view where nothing can be replaced."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        values, replaced = self._read(x.dtype)
        if replaced is None:
            emit.alias(y, x)
            return
        arguments: list[Argument] = [emit.contiguous(x), emit.constant(values), y, int64(y.spec.size), _divisor(x)]
        arguments += [replaced, int32(values.size > 1)]
        launch_elements(emit, f"impute_features<{dtype_row(x.dtype).cuda}>", arguments, y, 2)

    def _read(self, dtype: np.dtype[Any]) -> tuple[Array, Any]:
        """Return the imputed values and the replaced one in a type; None where the type lacks it."""
        if dtype.kind == "f":
            values, replaced = self.imputed_value_floats, self.replaced_value_float
            kind = "floats"
        else:
            values, replaced = self.imputed_value_int64s, self.replaced_value_int64
            kind = "int64s"
        if not values:
            raise InputError(f"{self.name} expects imputed_value_{kind} for an input of {dtype.name}, got none.")
        if dtype.kind == "f":
            return np.array(values, FLOAT).astype(dtype), dtype.type(np.float32(replaced))
        limits = np.iinfo(dtype)
        if not limits.min <= min(values) <= max(values) <= limits.max:
            raise InputError(f"{self.name} expects values that {dtype.name} holds, got {list(values)}.")
        return np.array(values, dtype), dtype.type(replaced) if limits.min <= replaced <= limits.max else None


@operator("Binarizer", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class Binarizer(Operator):
    """1 where x is above the threshold, else 0."""

    threshold: float = 0.0
    tolerance = Tolerance.EXACT
    flops_per_output = None
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Keep the spec."""
        check_dtype(self.name, x, NUMBERS)
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Compare."""
        threshold = self._read(x.dtype)
        return (
            np.full(x.shape, threshold, x.dtype) if isinstance(threshold, int) else np.asarray(x > threshold, x.dtype),
        )

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element, or fill where all are the same."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        threshold = self._read(x.dtype)
        if isinstance(threshold, int):
            emit.fill(y, threshold)
            return
        arguments: list[Argument] = [emit.contiguous(x), y, int64(y.spec.size), threshold]
        launch_elements(emit, f"binarize<{dtype_row(x.dtype).cuda}>", arguments, y, 1)

    def _read(self, dtype: np.dtype[Any]) -> Any:
        """Return the threshold in a type, floored for integers; an int: the result of all elements."""
        threshold = np.float32(self.threshold)
        if dtype.kind == "f":
            return dtype.type(threshold)
        limits = np.iinfo(dtype)
        if not threshold < float(limits.max):  # NaN too: nothing is above
            return 0
        return dtype.type(np.floor(threshold)) if threshold >= float(limits.min) else 1
