"""A custom operator: importing this module registers com.example.Snake, on every device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Array, Operator, Out, Tolerance, operator
from gpuexec.ir.spec import TensorSpec

KERNEL = Kernel(f"{__name__}:snake.cu", "snake<float>")  # the file beside this module
instantiate(KERNEL.source, [KERNEL.expression])


@operator("Snake", domain="com.example")
@dataclass(frozen=True, slots=True)
class Snake(Operator):
    """Snake: ``y = x + sin(frequency * x)**2 / frequency``, with a frequency for each channel."""

    tolerance = Tolerance.ROUNDING

    def infer(self, x: TensorSpec, frequency: TensorSpec) -> tuple[TensorSpec, ...]:
        if x.dtype != np.float32 or frequency.dtype != x.dtype or frequency.shape != x.shape[1:2] or x.rank != 3:
            raise InputError(f"Snake expects float32[n,channels,width] and float32[channels], got {x}, {frequency}.")
        return (TensorSpec(x.shape, x.dtype),)

    def compute(self, x: Array, frequency: Array, *, out: Out = None) -> tuple[Array, ...]:
        return (x + np.sin(frequency[:, None] * x) ** 2 / frequency[:, None],)

    def lower(self, emit: Any, inputs: Any, outputs: Any) -> None:
        x, frequency = (emit.contiguous(slot) for slot in inputs)
        sizes = (np.int64(size) for size in (x.spec.size, *x.shape[1:]))
        grid = (-(-x.spec.size // 256), 1, 1)
        emit.launch(KERNEL, grid, (256, 1, 1), [x, frequency, outputs[0], *sizes], writes=[2])
