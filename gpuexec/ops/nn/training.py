"""Optimizers of ai.onnx.preview.training: Adagrad, Adam, Momentum, one launch per tensor.

Inputs are the rate, the count of updates so far, and then groups of as many tensors each: what is optimised, the
gradients, and what the optimizer keeps from update to update. Outputs are the groups but the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype

DOMAIN = "ai.onnx.preview.training"
_SOURCE = "training.cu"
_THREADS = 256
_FLOATS = tuple(np.dtype(t) for t in (np.float32, np.float64))

instantiate(_SOURCE, [f"{kernel}<{dtype_row(t).cuda}>" for kernel in ("adagrad", "adam", "momentum") for t in _FLOATS])


@dataclass(frozen=True, slots=True)
class _Optimizer(Operator):
    """Base of the optimizers; ``groups`` counts the groups of tensors, ``kernel`` names the kernel."""

    groups: ClassVar[int]
    kernel: ClassVar[str]
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    flops_per_output = None
    has_blits = False

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the specs of parameters and optimizer states.

        Raises:
            InputError: Rate or count are not one number, the groups don't have as many tensors, or the tensors of one
                optimised differ.
        """
        rate, updates, *tensors = inputs
        for role, spec, dtypes in (("rate", rate, _FLOATS), ("count of updates", updates, (np.dtype(np.int64),))):
            if check_dtype(self.name, spec, dtypes, role).size != 1:
                raise InputError(f"{self.name} expects one number as {role}, got {spec}.")
        if not tensors or len(tensors) % self.groups:
            raise InputError(
                f"{self.name} expects {self.groups} tensors for each one optimised, behind the rate and the count of "
                f"updates, got {len(tensors)}."
            )
        count = len(tensors) // self.groups
        for place, spec in enumerate(tensors):
            first = tensors[place % count]
            spec = check_dtype(self.name, spec, _FLOATS, f"tensor {place}")
            if spec != first:
                raise InputError(
                    f"{self.name} expects tensor {place} to be as tensor {place % count}, {first}, got {spec}."
                )
        return tuple(spec for place, spec in enumerate(tensors) if place // count != 1 and spec is not None)

    def compute(self, *inputs: Any, out: Out = None) -> tuple[Array, ...]:
        """Update each tensor with NumPy."""
        rate, updates, *tensors = inputs
        count = len(tensors) // self.groups
        with np.errstate(all="ignore"):
            made = [
                self._update(float(rate.reshape(())), int(updates.reshape(())), *tensors[i::count])
                for i in range(count)
            ]
            return tuple(np.asarray(made[i][group]) for group in range(self.groups - 1) for i in range(count))

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once per tensor; inputs without later readers are updated in place."""
        rate, updates, *tensors = inputs
        assert rate is not None
        slots = [slot for slot in tensors if slot is not None]
        count = len(slots) // self.groups
        buffers = [slot.buffer for slot in inputs if slot is not None]  # a rate may be optimised, too
        norm, *numbers = self._numbers()
        for i in range(count):
            x, gradient, *kept = (emit.contiguous(slot) for slot in slots[i::count])
            wanted = [outputs[group * count + i] for group in range(self.groups - 1)]
            made = [emit.temp(x.shape, x.dtype) if y is None else y for y in wanted]
            for y, old in zip(wanted, (x, *kept), strict=True):
                if y is not None and buffers.count(old.buffer) == 1:
                    emit.in_place(y, old)
            sizes = (x.spec.size, rate.dtype.itemsize == 8)
            step = pack_struct("<2q5d", *sizes, norm, *numbers, *(0.0,) * (4 - len(numbers)))
            arguments: list[Argument] = [rate, updates, x, gradient, *kept, *made, step]
            first = 4 + len(kept)
            kernel = Kernel(_SOURCE, f"{self.kernel}<{dtype_row(x.dtype).cuda}>")
            grid = (max(1, ceil_div(x.spec.size, _THREADS)), 1, 1)
            emit.launch(kernel, grid, (_THREADS, 1, 1), arguments, writes=range(first, first + len(made)))

    def _numbers(self) -> tuple[float, ...]:
        """Return the norm coefficient and the other scalars of the kernel, as ONNX keeps them: in float32."""
        raise TypeError(f"{type(self).__name__} lacks _numbers")

    def _update(self, rate: float, updates: int, *tensors: Array) -> Sequence[Array]:
        """Return updated parameters and optimizer states."""
        raise TypeError(f"{type(self).__name__} lacks _update")


@operator("Adagrad", DOMAIN)
@dataclass(frozen=True, slots=True)
class Adagrad(_Optimizer):
    """Steps scaled by the root of the sum of squared gradients so far."""

    decay_factor: float = 0.0
    epsilon: float = 1e-6
    norm_coefficient: float = 0.0
    groups: ClassVar[int] = 3
    kernel: ClassVar[str] = "adagrad"
    example = "float32[] int64[] float32[3] float32[3] float32[3]"

    def _numbers(self) -> tuple[float, ...]:
        return _as_floats(self.norm_coefficient, self.decay_factor, self.epsilon)

    def _update(self, rate: float, updates: int, *tensors: Array) -> Sequence[Array]:
        x, g, h = tensors
        norm, decay, epsilon = self._numbers()
        slope = norm * x + g
        squares = h + slope * slope
        return x - rate / (1 + updates * decay) * slope / (np.sqrt(squares) + epsilon), squares


@operator("Adam", DOMAIN)
@dataclass(frozen=True, slots=True)
class Adam(_Optimizer):
    """Steps along a running mean of gradients, scaled by the root of that of their squares."""

    alpha: float = 0.9
    beta: float = 0.999
    epsilon: float = 1e-6
    norm_coefficient: float = 0.0
    norm_coefficient_post: float = 0.0
    groups: ClassVar[int] = 4
    kernel: ClassVar[str] = "adam"
    example = "float32[] int64[] float32[3] float32[3] float32[3] float32[3]"

    def _numbers(self) -> tuple[float, ...]:
        return _as_floats(self.norm_coefficient, self.alpha, self.beta, self.epsilon, self.norm_coefficient_post)

    def _update(self, rate: float, updates: int, *tensors: Array) -> Sequence[Array]:
        x, g, v, h = tensors
        norm, alpha, beta, epsilon, post = self._numbers()
        slope = norm * x + g
        momentum = alpha * v + (1 - alpha) * slope
        squares = beta * h + (1 - beta) * (slope * slope)
        if updates > 0:  # both means began at 0
            rate *= float(np.sqrt(1 - np.float64(beta) ** updates) / (1 - np.float64(alpha) ** updates))
        return (1 - post) * (x - rate * (momentum / (np.sqrt(squares) + epsilon))), momentum, squares


@operator("Momentum", DOMAIN)
@dataclass(frozen=True, slots=True)
class Momentum(_Optimizer):
    """Steps along a velocity; with mode ``nesterov`` along the gradient and the velocity to come."""

    alpha: float
    beta: float
    mode: str
    norm_coefficient: float
    groups: ClassVar[int] = 3
    kernel: ClassVar[str] = "momentum"
    example = (
        "float32[] int64[] float32[3] float32[3] float32[3] alpha=0.95 beta=0.1 mode='standard' norm_coefficient=0.001"
    )

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the specs of parameters and velocities.

        Raises:
            InputError: The mode is unknown, or the inputs don't fit.
        """
        if self.mode not in ("standard", "nesterov"):
            raise InputError(f"{self.name} expects mode to be standard or nesterov, got {self.mode!r}.")
        return _Optimizer.infer(self, *inputs)

    def _numbers(self) -> tuple[float, ...]:
        return (*_as_floats(self.norm_coefficient, self.alpha, self.beta), float(self.mode == "nesterov"))

    def _update(self, rate: float, updates: int, *tensors: Array) -> Sequence[Array]:
        x, g, v = tensors
        norm, alpha, beta, is_nesterov = self._numbers()
        slope = norm * x + g
        velocity = alpha * v + (beta if updates > 0 else 1.0) * slope
        return x - rate * (slope + alpha * velocity if is_nesterov else velocity), velocity


def _as_floats(*numbers: float) -> tuple[float, ...]:
    return tuple(float(np.float32(number)) for number in numbers)
