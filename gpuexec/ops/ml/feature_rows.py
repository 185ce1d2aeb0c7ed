"""Normalizer and FeatureVectorizer: feature rows normalised or concatenated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.symbolic_int import distinct
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.lib.team import BLOCK_THREADS, choose_team
from gpuexec.ops.ml.features import SOURCE
from gpuexec.ops.ml.table_operator import FLOAT, NUMBERS, THREADS, as_rows, count_rows, show_as

_NORMS = ("MAX", "L1", "L2")  # as Norm of features.cu numbers them
instantiate(SOURCE, ["normalize_features", "place_features"])


@operator("Normalizer", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class Normalizer(Operator):
    """Rows divided by their largest element, the sum of magnitudes (L1), or the root of the sum of squares (L2).

    A row whose divisor is 0 stays as it is. The result is float.
    """

    norm: str = "MAX"
    tolerance = Tolerance.REDUCTION
    flops_per_output = None
    has_blits = False

    def __post_init__(self) -> None:
        if self.norm not in _NORMS:
            raise InputError(f"norm expects {', '.join(_NORMS)}, got {self.norm!r}.")

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Keep the shape.

        Raises:
            InputError: It is neither rows nor one row.
        """
        count_rows(self.name, check_dtype(self.name, x, NUMBERS))
        return (TensorSpec(x.shape, FLOAT),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Divide in float."""
        with np.errstate(all="ignore"):
            wide = x.astype(FLOAT, copy=False)
            if self.norm == "MAX":
                divisor = np.max(wide, -1, keepdims=True, initial=-np.inf)
            elif self.norm == "L1":
                divisor = np.abs(wide).sum(-1, keepdims=True)
            else:
                divisor = np.sqrt(np.square(wide).sum(-1, keepdims=True))
            return (np.where(divisor == 0, wide, wide / divisor),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count magnitudes or squares, divisors, and which of these are 0."""
        x = inputs[0]
        assert x is not None
        rows, columns = count_rows(self.name, x)
        return (rows * columns * FLOAT.itemsize, rows * FLOAT.itemsize, rows)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Divide floats by a row's divisor, then write the rows again that have none."""
        x, y = inputs[0], out[0]
        if x is None or x.dtype != FLOAT or not x.size or y is None:
            return None
        if not has_scratch(scratch, self.count_scratch([TensorSpec(x.shape, x.dtype)], ())):
            return None
        shape = (*x.shape[:-1], 1)
        parts, divisor = view_bytes(scratch[0], x.shape, FLOAT), view_bytes(scratch[1], shape, FLOAT)
        is_zero = view_bytes(scratch[2], shape, np.dtype(np.bool_))
        calls: list[Callable[[], object]] = []
        if self.norm == "MAX":
            calls.append(partial(np.maximum.reduce, x, -1, None, divisor, True, -np.inf))
        else:
            calls.append(partial(np.abs if self.norm == "L1" else np.square, x, out=parts))
            calls.append(partial(np.add.reduce, parts, -1, None, divisor, True))
        if self.norm == "L2":
            calls.append(partial(np.sqrt, divisor, out=divisor))
        return [
            *calls,
            partial(np.equal, divisor, 0, out=is_zero),
            partial(np.divide, x, divisor, out=y),
            partial(np.copyto, y, x, where=is_zero),
        ]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a team of threads per row."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        rows, columns = count_rows(self.name, x.spec)
        team = choose_team(columns, rows)
        arguments: list[Argument] = [show_as(emit, x, FLOAT), y, int64(rows), int64(columns), *team.arguments()]
        arguments.append(int32(_NORMS.index(self.norm)))
        kernel = Kernel(SOURCE, "normalize_features")
        emit.launch(kernel, team.grid(rows), (BLOCK_THREADS, 1, 1), arguments, writes=[1])


@operator("FeatureVectorizer", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class FeatureVectorizer(Operator):
    """Concatenation of inputs as float columns, each of as many as ``inputdimensions`` says.

    Extra elements of an input are dropped, missing ones 0. An input of one axis is a row; of more than two, the first
    counts rows and what lies behind it is one row of features.
    """

    inputdimensions: tuple[int, ...] | None = None
    tolerance = Tolerance.EXACT
    flops_per_output = None
    has_blits = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Add up the columns.

        Raises:
            InputError: Inputs are of several types or numbers of rows, or not as many as the dimensions.
        """
        found = [count_rows(self.name, _flatten(check_dtype(self.name, x, NUMBERS)))[0] for x in inputs]
        if len(distinct(found)) != 1 or len({x.dtype for x in inputs}) != 1:
            raise InputError(
                f"{self.name} expects inputs of one type and number of rows, got {', '.join(map(str, inputs))}."
            )
        return (TensorSpec((found[0], sum(self._columns(inputs))), FLOAT),)

    def compute(self, *inputs: Array, out: Out = None) -> tuple[Array, ...]:
        """Cast and copy."""
        specs = [TensorSpec.of(x) for x in inputs]
        columns = self._columns(specs)
        rows = [as_rows(x.reshape(_flatten(spec).shape)) for x, spec in zip(inputs, specs, strict=True)]
        y, first = np.zeros((len(rows[0]), sum(columns)), FLOAT), 0
        for x, taken in zip(rows, columns, strict=True):
            with np.errstate(over="ignore"):
                y[:, first : first + min(taken, x.shape[1])] = x[:, :taken]
            first += taken
        return (y,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element of each input's columns."""
        given, y = [x for x in inputs if x is not None], outputs[0]
        assert y is not None
        first = 0
        for x, taken in zip(given, self._columns([x.spec for x in given]), strict=True):
            count = y.shape[0] * taken
            extents: list[Argument] = [int64(_flatten(x.spec).shape[-1]), int64(y.shape[1]), int64(first)]
            emit.launch(
                Kernel(SOURCE, "place_features"),
                (max(1, ceil_div(count, THREADS)), 1, 1),
                (THREADS, 1, 1),
                [show_as(emit, x, FLOAT), y, int64(count), pack_fast_div64(max(1, taken)), *extents],
                writes=[1],
            )
            first += taken

    def _columns(self, specs: Sequence[TensorSpec]) -> tuple[int, ...]:
        """Return how many columns of the result each input has."""
        given = self.inputdimensions
        columns = tuple([_flatten(spec).shape[-1] for spec in specs]) if given is None else given
        if len(columns) != len(specs) or min(columns, default=0) < 0:
            raise InputError(f"{self.name} expects inputdimensions for {len(specs)} inputs, got {list(columns)}.")
        return columns


def _flatten(spec: TensorSpec) -> TensorSpec:
    """Return a spec of at most two axes: the first, and all behind it as one."""
    return spec if spec.rank <= 2 else spec.with_shape((spec.shape[0], prod(spec.shape[1:])))
