"""CenterCropPad: a tensor cropped or zero-padded about its centre, as a Pad with negative pads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import normalize_axes
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import STRING, TensorSpec
from gpuexec.ops.lib.checks import require_ints
from gpuexec.ops.tensor.layout import read_ints
from gpuexec.ops.tensor.pad import PadAxis, launch_pad


@operator("CenterCropPad")
@dataclass(frozen=True, slots=True)
class CenterCropPad(Operator):
    """Tensor cropped or padded to ``shape`` on some axes, evenly on both sides; of an odd rest the end gets one more.

    Padding is zero, and of strings empty.
    """

    axes: tuple[int, ...] = ()
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec, shape: TensorSpec) -> tuple[TensorSpec, ...]:
        """Set the extents.

        Raises:
            InputError: Axes and extents do not fit.
            NeedsHostValue: The extents are not known.
        """
        plan = self._resolve(x.shape, require_ints(shape, "shape", 1))
        return (x.with_shape(tuple(axis.output for axis in plan)),)

    def compute(self, x: Array, shape: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Copy the visible part into zeros; a view where nothing is added."""
        plan = self._resolve(x.shape, read_ints(shape))
        cuts = [max(0, -axis.begin) for axis in plan]
        index: Any = (..., *(slice(cut, cut + axis.output) for cut, axis in zip(cuts, plan, strict=True)))
        shown = x[index]
        if all(axis.begin <= 0 for axis in plan) and shown.shape == tuple(axis.output for axis in plan):
            return (shown,)
        y = np.full([axis.output for axis in plan], "" if x.dtype == STRING else x.dtype.type(0), x.dtype)
        starts = [max(0, axis.begin) for axis in plan]
        y[tuple(slice(start, start + count) for start, count in zip(starts, shown.shape, strict=True))] = shown
        return (y,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the copies of Pad."""
        x, shape, y = inputs[0], inputs[1], outputs[0]
        assert x is not None and shape is not None and y is not None
        launch_pad(emit, x, None, y, self._resolve(x.shape, require_ints(shape.spec, "shape", 1)), "constant")

    def _resolve(self, shape: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[PadAxis, ...]:
        axes = normalize_axes(self.axes, len(shape)) if self.axes else tuple(range(len(shape)))
        if len(wanted) != len(axes) or min(wanted, default=0) < 0:
            raise InputError(
                f"CenterCropPad expects an extent of 0 or more for each of {len(axes)} axes, got {list(wanted)}."
            )
        plan = [PadAxis(0, extent, 0, extent) for extent in shape]
        for axis, output in zip(axes, wanted, strict=True):
            extent = shape[axis]
            begin = (output - extent) // 2 if output >= extent else -((extent - output) // 2)
            plan[axis] = PadAxis(0, extent, begin, output)
        return tuple(plan)
