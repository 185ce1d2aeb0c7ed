"""Operators with a narrow weight: MatMul, Gemm, Conv, ConvTranspose, Gather that widen it where they read it.

Each has the fields and inputs of the operator it stands for, the weight narrow, and behind them the weight's scale and
zero point. The result is that of DequantizeLinear (or Cast) and that operator, but the wide weight never
is: on a device it is widened in registers, on the host a block of it at a time. A file has the two operators;
`gpuexec.passes.narrow_weights` makes one of them. Where a precision has rounded the other operand of a product, the
weight is not, and the result is float.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import normalize_axis
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import has_scratch, prepare_calls, view_bytes
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.linalg.matmul import Gemm, MatMul, find_narrow
from gpuexec.ops.nn.conv import Conv, ConvTranspose
from gpuexec.ops.quant.narrow_weight import PAIRS, NarrowWeight, widen
from gpuexec.ops.quant.quantize import find_places
from gpuexec.ops.tensor.gather import Gather, resolve_indices

DOMAIN = "gpuexec"
# Of the wide weight, this much is on the host at a time.
BLOCK_NBYTES = 4 << 20
# A wide weight that prepared calls keep from run to run is no larger than a table.
_KEPT_NBYTES = 1 << 14
_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class WeightOperand:
    """Signature of an operator with a weight: position of the weight, number of inputs, and position of a bias.

    ``has_blits`` and ``rounded``: see `Operator`; an operand that is rounded may be stored so.
    """

    consumer: type[Any]
    weight: int
    inputs: int
    bias: int | None = None
    has_blits: bool = True
    rounded: tuple[int, ...] = ()


FORMS = {
    form.consumer.name: form
    for form in (
        WeightOperand(MatMul, 1, 2, rounded=(0,)),
        WeightOperand(Gemm, 1, 3, 2, rounded=(0,)),
        WeightOperand(Conv, 1, 3, 2),
        WeightOperand(ConvTranspose, 1, 3, 2),
        WeightOperand(Gather, 0, 2, has_blits=False),
    )
}


class Narrowed(Operator):
    """Base of the operators here. Subclasses add ``to``, the ONNX code of the wide type, and ``scale_axis``.

    ``scale_axis`` is the axis of the weight that scales run along, counted from the front; None: there is one scale, or
    none.
    """

    __slots__ = ()
    form: ClassVar[WeightOperand]
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    to: int
    scale_axis: int | None

    @property
    def consumer(self) -> Any:
        """Return the operator this one stands for."""
        names = [f.name for f in dataclasses.fields(self.form.consumer)]
        return self.form.consumer(**{name: getattr(self, name) for name in names})

    @property
    def wide(self) -> np.dtype[Any]:
        """Return the type that is computed in."""
        return dtype_row(self.to).numpy

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return that type."""
        return self.wide

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Infer as with the wide weight.

        Raises:
            InputError: It is not narrow, or its scales don't fit it.
        """
        given, scale, zero = self._split(inputs)
        weight = given[self.form.weight]
        if weight is None:
            raise InputError(f"{self.name} expects a weight.")
        self._check(weight, scale, zero)
        # The other operand may be stored narrow; the weight never is rounded.
        operand = find_narrow(self.consumer.precision) if self.takes_narrow else None
        given[self.form.weight] = TensorSpec(weight.shape, operand or self.wide)
        inferred: tuple[TensorSpec, ...] = self.consumer.infer(*_trim(given))
        return inferred

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int | None:
        """Count what the operator does that it stands for."""
        counted: int | None = self.consumer.count_flops(self._split(inputs)[0], outputs)
        return counted

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array, ...]:
        """Compute with a block of the weight at a time."""
        given, scale, zero = self._split(inputs)
        weight = given[self.form.weight]
        assert weight is not None
        if self.form.consumer is Gather:
            return (self._pick(weight, given[1], scale, zero),)
        (spec,) = self.infer(*(None if array is None else TensorSpec.of(array).with_value(None) for array in inputs))
        y, consumer = np.empty(spec.shape, spec.dtype), self.consumer
        for part, place in self._blocks(weight, spec.rank):
            block, parts = list(given), [_cut(array, self.scale_axis, part) for array in (scale, zero)]
            axis, (low, high) = part
            narrow = weight[(slice(None),) * axis + (slice(low, high),)]
            block[self.form.weight] = widen(narrow, parts[0], parts[1], self.scale_axis, self.wide)
            if self.form.bias is not None:
                block[self.form.bias] = _cut_last(block[self.form.bias], weight.shape[axis], (low, high))
            y[place] = consumer.compute(*_trim(block))[0]
        return (y,)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count the wide weight where it is one block of floats, and what the operator works in that has it."""
        given, _, _ = self._split(inputs)
        weight = given[self.form.weight]
        if not self._is_prepared(weight.shape):
            return ()
        given[self.form.weight] = TensorSpec(weight.shape, _FLOAT)
        return (weight.size * _FLOAT.itemsize, *self.consumer.count_scratch(_trim(given), outputs))

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Widen the weight in scratch, or once where it is small and constant, and prepare the operator with it."""
        given, scale, zero = self._split(inputs)
        place, weight = self.form.weight, given[self.form.weight]
        if not self._is_prepared(weight.shape) or not has_scratch(scratch, (weight.size * _FLOAT.itemsize,)):
            return None
        is_kept = weight.size * _FLOAT.itemsize <= _KEPT_NBYTES and all((constant[place], *constant[len(given) :]))
        wide = np.empty(weight.shape, _FLOAT) if is_kept else view_bytes(scratch[0], weight.shape, _FLOAT)
        calls = self._prepare_widening(weight, scale, zero, wide)
        if is_kept:
            for call in calls:
                call()
            calls = []
        given[place] = wide
        taken = _trim(given)
        known = [is_kept if position == place else constant[position] for position in range(len(taken))]
        return [*calls, *prepare_calls(self.consumer, taken, out, known, scratch[1:])]

    def _is_prepared(self, shape: tuple[int, ...]) -> bool:
        is_block = 0 < prod(shape) * _FLOAT.itemsize <= BLOCK_NBYTES
        return is_block and self.wide == _FLOAT and self.form.consumer is not Gather

    def _prepare_widening(
        self, weight: Array, scale: Array | None, zero: Array | None, wide: Array
    ) -> list[Callable[[], object]]:
        """Return calls that widen the weight as `widen` does; integers and their differences are exact in float."""
        calls: list[Callable[[], object]] = [partial(np.copyto, wide, weight)]
        if scale is not None:
            places = find_places(self.name, weight.shape, scale.shape, self.scale_axis or 0, 0)
            if zero is not None:
                calls.append(partial(np.subtract, wide, places.spread(zero), out=wide, dtype=_FLOAT))
            calls.append(partial(np.multiply, wide, places.spread(scale), out=wide))
        return calls

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the operator's kernel in its form for narrow weights."""
        if emit.leaves_to_host():
            return
        given, scale, zero = self._split(inputs)
        weight, other = given[self.form.weight], given[1 - self.form.weight]
        if self.takes_narrow and weight.dtype == other.dtype:  # as the precision has both
            self.consumer.lower(emit, _trim(given), outputs)
            return
        self.consumer.lower_with(emit, _trim(given), outputs, NarrowWeight(scale, zero, self.scale_axis))

    def _split(self, inputs: Sequence[Any]) -> tuple[list[Any], Any, Any]:
        """Return the inputs of the operator, the scale and the zero point."""
        count = self.form.inputs
        padded = [*inputs, *(None,) * (count + 2 - len(inputs))]
        return padded[:count], padded[count], padded[count + 1]

    def _check(self, weight: TensorSpec, scale: TensorSpec | None, zero: TensorSpec | None) -> None:
        if (self.wide, weight.dtype) not in PAIRS:
            pairs = ", ".join(f"{narrow.name} for {wide.name}" for wide, narrow in PAIRS)
            raise InputError(f"{self.name} expects a weight of {pairs}; got {weight} for {self.wide.name}.")
        if (scale is None) != (weight.dtype.kind == "f") or (scale is None and zero is not None):
            raise InputError(f"{self.name} expects scales of an int8 weight and none of a float16 one, got {scale}.")
        if scale is None:
            return
        axis = self.scale_axis
        if axis is not None and axis not in self.scaled_axes(weight.rank):
            raise InputError(f"{self.name} expects scales along {self.scaled_axes(weight.rank)}, got axis {axis}.")
        fits = scale.size == 1 if axis is None else scale.shape == (weight.shape[axis],)
        if scale.dtype != self.wide or not fits:
            wanted = 1 if axis is None else weight.shape[axis]
            raise InputError(f"{self.name} expects {wanted} scales of {self.wide.name}, got {scale}.")
        if zero is not None and (zero.dtype != weight.dtype or zero.size != scale.size):
            raise InputError(f"{self.name} expects zero points of {weight.dtype.name} for {scale}, got {zero}.")

    @classmethod
    def scaled_axes(cls, rank: int) -> tuple[int, ...]:
        """Return the axes of a weight that its scales may run along."""
        if cls.form.consumer in (Conv, ConvTranspose):
            axis = 0 if cls.form.consumer is Conv else 1
            return (axis,) if axis < rank else ()
        return tuple(range(rank) if cls.form.consumer is Gather else range(max(rank - 2, 0), rank))

    def _out_axis(self, rank: int) -> int | None:
        """Return the axis of the weight that is an axis of the output; None where there is none."""
        consumer = self.form.consumer
        if consumer in (Conv, ConvTranspose):
            is_whole = getattr(self, "group") != 1  # noqa: B009  (a field of the generated class)
            return None if is_whole else 0 if consumer is Conv else 1
        if consumer is Gemm:
            return 0 if getattr(self, "transB") else 1  # noqa: B009
        return rank - 1 if rank > 1 else None

    def _blocks(self, weight: Array, rank: int) -> Iterator[tuple[tuple[int, tuple[int, int]], tuple[Any, ...]]]:
        """Yield an axis of the weight with a range of it, and the part of the output that this range makes."""
        axis = self._out_axis(weight.ndim)
        if axis is None or not weight.size:
            yield (0, (0, weight.shape[0])), (Ellipsis,)
            return
        extent = weight.shape[axis]
        step = max(1, extent * BLOCK_NBYTES // (weight.size * self.wide.itemsize))
        at = 1 if self.form.consumer in (Conv, ConvTranspose) else rank - 1
        for low in range(0, extent, step):
            high = min(low + step, extent)
            yield (axis, (low, high)), (slice(None),) * at + (slice(low, high),)

    def _pick(self, weight: Array, indices: Array, scale: Array | None, zero: Array | None) -> Array:
        """Pick narrow elements, then widen them."""
        gather = self.consumer
        axis = normalize_axis(gather.axis, weight.ndim)
        (picked,) = gather.compute(weight, indices)
        if scale is None or self.scale_axis is None:
            return widen(picked, scale, zero, None, self.wide)
        if self.scale_axis != axis:
            moved = self.scale_axis + (indices.ndim - 1 if self.scale_axis > axis else 0)
            return widen(picked, scale, zero, moved, self.wide)
        rows = resolve_indices(indices, weight.shape[axis], axis).reshape(-1)
        flat = picked.reshape(*weight.shape[:axis], rows.size, *weight.shape[axis + 1 :])
        wide = widen(flat, scale[rows], None if zero is None else zero.reshape(-1)[rows], axis, self.wide)
        return wide.reshape(picked.shape)


def _trim(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return inputs without absent ones at the end, as a graph has them."""
    last = max((i for i, given in enumerate(inputs) if given is not None), default=-1)
    return tuple(inputs[: last + 1])


def _cut(scales: Array | None, scale_axis: int | None, part: tuple[int, tuple[int, int]]) -> Array | None:
    axis, (low, high) = part
    return scales[low:high] if scales is not None and scale_axis == axis else scales


def _cut_last(bias: Array | None, extent: int, span: tuple[int, int]) -> Array | None:
    is_along = bias is not None and bias.ndim > 0 and bias.shape[-1] == extent
    return bias[..., slice(*span)] if bias is not None and is_along else bias


def _make(form: WeightOperand) -> None:
    """Register the operator for a consumer: its fields, the wide type, and the axis of the scales."""
    consumer = form.consumer
    fields: list[Any] = [(f.name, f.type, dataclasses.field(default=f.default)) for f in dataclasses.fields(consumer)]
    fields += [("to", int, dataclasses.field(default=1)), ("scale_axis", int | None, dataclasses.field(default=None))]
    namespace = {
        "__doc__": f"{consumer.__name__} with a narrow weight; see `gpuexec.ops.quant.narrow`.",
        "__module__": __name__,
        "form": form,
        "uses_all_cores": consumer.uses_all_cores,
        "keeps_dtype": consumer.keeps_dtype and form.weight > 0,
        "has_blits": form.has_blits,
        "rounded": form.rounded,
        "takes_narrow": bool(form.rounded),
        "takes_epilogue": consumer.takes_epilogue and form.weight > 0,
        "padded_factors": (form.weight, form.inputs) if form.weight in consumer.padded_factors else (),  # and scales
    }
    made = dataclasses.make_dataclass(
        f"Narrow{consumer.__name__}", fields, bases=(Narrowed,), namespace=namespace, frozen=True, slots=True
    )
    globals()[made.__name__] = operator(made.__name__, DOMAIN)(made)


for _form in FORMS.values():
    _make(_form)
