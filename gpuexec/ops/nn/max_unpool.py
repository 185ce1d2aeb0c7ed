"""MaxUnpool: the inverse of MaxPool, a scatter by its indices."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtypes_of
from gpuexec.ops.lib.checks import check_dtype, require_ints
from gpuexec.ops.lib.strided import join
from gpuexec.ops.tensor.gather import resolve_indices
from gpuexec.ops.tensor.layout import read_ints, window
from gpuexec.ops.tensor.scatter import launch_locate, write_updates

FLOATS = dtypes_of("float")
_INDEX = np.dtype(np.int64)
_Shape = tuple[int, ...]


@operator("MaxUnpool")
@dataclass(frozen=True, slots=True)
class MaxUnpool(Operator):
    """Elements scattered by index among zeros; of several at one place the last one stays.

    Indices count the elements of the tensor that kernel, strides and pads give. With an ``output_shape`` that tensor is
    the beginning of the output along each axis, as ONNX's own tests have it (ONNX Runtime counts elements of the output
    instead). A negative index counts from the back; one out of range is an error on the host, and writes nothing on a
    device.
    """

    kernel_shape: tuple[int, ...]
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    tolerance = Tolerance.EXACT
    example = "float32[1,1,2,2] int64[1,1,2,2] int64[4]=1,1,4,4 kernel_shape=(2,2) strides=(2,2)"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(
        self, x: TensorSpec, indices: TensorSpec, output_shape: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return ``[batch, channels, spatial...]``.

        Raises:
            InputError: Types, shapes or attributes do not fit.
            NeedsHostValue: The output's shape is not known.
        """
        check_dtype(self.name, x, FLOATS)
        check_dtype(self.name, indices, (_INDEX,), "indices")
        if indices.shape != x.shape:
            raise InputError(f"MaxUnpool expects an index for each element of {x}, got {indices}.")
        wanted = None if output_shape is None else require_ints(output_shape, "output_shape", 2)
        return (x.with_shape(self._resolve(x.shape, wanted)[1]),)

    def compute(
        self, x: Array, indices: Array, output_shape: Array | None = None, *, out: Out = None
    ) -> tuple[Array, ...]:
        """Write with NumPy, the last of each place."""
        inner, shape = self._resolve(x.shape, None if output_shape is None else read_ints(output_shape))
        targets = resolve_indices(indices.reshape(-1), prod(inner), 0)
        places, numbers = np.unique(targets[::-1], return_index=True)
        flat = np.zeros(prod(inner), x.dtype)
        flat[places] = x.reshape(-1)[targets.size - 1 - numbers]
        y = flat.reshape(inner)
        if inner != shape:
            y = np.zeros(shape, x.dtype)
            y[tuple(map(slice, inner))] = flat.reshape(inner)
        return (y,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Locate each element, then write; with an output shape into a tensor of its own, which is copied."""
        x, indices, output_shape = (*inputs, None)[:3]
        y = outputs[0]
        assert x is not None and indices is not None and y is not None
        wanted = None if output_shape is None else require_ints(output_shape.spec, "output_shape", 2)
        inner, _ = self._resolve(x.shape, wanted)
        written = y if output_shape is None else emit.temp(inner, x.dtype)
        given, count = emit.contiguous(indices), indices.spec.size
        walk = join((count,), ((0,), (1,)))

        def locate(targets: Slot, latest: Slot | None) -> None:
            scalars = (walk.pack(), _INDEX.type(prod(inner)), _INDEX.type(1))
            launch_locate(emit, "locate_elements", given, targets, latest, count, scalars)

        emit.fill(written, 0)
        write_updates(emit, "none", locate, x, written, prod(inner), 1)
        if output_shape is not None:
            emit.fill(y, 0)
            emit.copy(window(y, inner, contiguous_strides(y.shape)), written)

    def _resolve(self, shape: _Shape, wanted: _Shape | None) -> tuple[_Shape, _Shape]:
        """Return the shape that indices count, and that of the output."""
        axes = len(shape) - 2
        kernel = self.kernel_shape
        strides, pads = self.strides or (1,) * axes, self.pads or (0,) * (2 * axes)
        if axes < 1 or (len(kernel), len(strides), len(pads)) != (axes, axes, 2 * axes) or min(*kernel, *strides) < 1:
            raise InputError(
                f"MaxUnpool expects an input [batch, channels, spatial...], with kernel_shape and strides of 1 or more "
                f"for each spatial axis and two pads, got {list(shape)}, {list(kernel)}, {list(strides)}, {list(pads)}."
            )
        spatial = tuple(
            (extent - 1) * stride + taps - begin - end
            for extent, stride, taps, begin, end in zip(shape[2:], strides, kernel, pads[:axes], pads[axes:])
        )
        inner = (*shape[:2], *spatial)
        if min(spatial) < 0:
            raise InputError(f"MaxUnpool expects pads no larger than the extents they crop, got {list(inner)}.")
        if wanted is None:
            return inner, inner
        if len(wanted) != len(inner) or any(want < have for want, have in zip(wanted, inner, strict=True)):
            raise InputError(f"MaxUnpool expects an output_shape of at least {list(inner)}, got {list(wanted)}.")
        return inner, wanted
