"""Fused matrix products: FusedMatMul, TransposeMatMul, FusedMatMulActivation, FusedGemm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.graphs import RawNode, Value
from gpuexec.ir.operator import (
    Array,
    Emitter,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    build,
    count_elements,
    operator,
    upgrade,
)
from gpuexec.ir.spec import TensorSpec, accumulator, dtypes_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.linalg.matmul import Gemm, MatMul, count_widened, multiply, prepare_widened_product, widen_operands
from gpuexec.ops.microsoft.activation import ACTIVATIONS, DOMAIN, activate, check_activation
from gpuexec.ops.microsoft.renamed import EVERY_VERSION
from gpuexec.ops.tensor.layout import window

_FLOATS = dtypes_of("float")


@operator("FusedMatMul", DOMAIN)
@dataclass(frozen=True, slots=True)
class FusedMatMul(Operator):
    """``alpha * A' @ B'``, batch axes as in MatMul.

    ``transA`` exchanges the last two axes; ``transBatchA`` moves the first axis in front of the last. Both together
    show ``[k, batch..., m]`` as ``[batch..., m, k]``. An operand of one axis stays as it is.
    """

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True
    alpha: float = 1.0
    transA: int = 0  # noqa: N815 (the spelling of the file)
    transB: int = 0  # noqa: N815
    transBatchA: int = 0  # noqa: N815
    transBatchB: int = 0  # noqa: N815
    precision: str = ""  # as of MatMul
    keeps_dtype = True
    has_blits = True
    takes_epilogue = True
    multiplied = (0, 1)
    takes_narrow = True

    def infer(self, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the product's spec.

        Raises:
            InputError: Types differ or are not float, or extents do not fit.
        """
        a, b = (check_dtype(self.name, spec, _FLOATS, role) for spec, role in zip((a, b), "AB", strict=True))
        shown = [
            spec.with_shape(tuple(spec.shape[axis] for axis in order))
            for spec, order in zip((a, b), self._orders(a.rank, b.rank), strict=True)
        ]
        return MatMul(self.precision).infer(*shown)

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the product's type, as MatMul does."""
        return MatMul(self.precision).find_dtype(dtypes)

    @property
    def scaled_product(self) -> Mapping[str, Any] | None:
        """Attributes of the product of operands with scales, where batch axes stay in their place."""
        if self.transBatchA or self.transBatchB:
            return None
        return {"alpha": self.alpha, "transA": self.transA, "transB": self.transB}

    def channel_axis(self, factor: int, rank: int) -> int | None:
        """Return the rows of A', the columns of B'."""
        trans = ((self.transA, self.transBatchA), (self.transB, self.transBatchB))[factor]
        return None if rank < 2 else _order(rank, *trans)[rank - 2 + factor]

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count the product as MatMul does."""
        a, *_ = inputs
        depth = 1 if a is None else a.shape[self._orders(a.rank, a.rank)[0][-1]]
        return 2 * count_elements(outputs, 0) * depth

    def compute(self, a: Array, b: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Multiply and scale in the accumulator's type, round once."""
        a, b = widen_operands(self.precision, a, b)
        a_order, b_order = self._orders(a.ndim, b.ndim)
        a, b = a.transpose(a_order), b.transpose(b_order)
        if self.alpha == 1:
            return (multiply(a, b, out[0] if out else None),)
        dtype, acc = a.dtype, accumulator(a.dtype)
        with np.errstate(all="ignore"):
            result = multiply(a.astype(acc, copy=False), b.astype(acc, copy=False)) * acc.type(self.alpha)
            return (np.asarray(result).astype(dtype, copy=False),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count operands and result as floats, where they are narrower."""
        return count_widened(inputs[0], inputs[1], outputs[0])

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Multiply views in the output's memory, or in float, and scale there."""
        (a, b), (y,) = inputs, out
        assert a is not None and b is not None
        a_order, b_order = self._orders(a.ndim, b.ndim)
        made = prepare_widened_product(a.transpose(a_order), b.transpose(b_order), y, constant, scratch)
        if made is None or self.alpha == 1:
            return None if made is None else made.finish()
        alpha = made.result.dtype.type(self.alpha)
        return made.finish([partial(np.multiply, made.result, alpha, out=made.result)])

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the tile kernel of MatMul; transposes are strides."""
        a, b = inputs
        assert a is not None and b is not None
        a_order, b_order = self._orders(a.spec.rank, b.spec.rank)
        MatMul(self.precision).lower_with(emit, (_show(a, a_order), _show(b, b_order)), outputs, alpha=self.alpha)

    def _orders(self, a_rank: int, b_rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the order of the axes of A and B."""
        return _order(a_rank, self.transA, self.transBatchA), _order(b_rank, self.transB, self.transBatchB)


def _order(rank: int, trans: int, trans_batch: int) -> tuple[int, ...]:
    axes = list(range(rank))
    if rank < 2:
        return tuple(axes)
    if trans_batch:
        if rank < 3:
            raise InputError(f"FusedMatMul exchanges batch axes of operands of three axes or more, got rank {rank}.")
        axes.insert(rank - 2, axes.pop(0))
    if trans:
        axes[-2:] = axes[:-3:-1]
    return tuple(axes)


def _show(slot: Slot, order: tuple[int, ...]) -> Slot:
    return window(slot, [slot.shape[axis] for axis in order], [slot.strides[axis] for axis in order])


@upgrade(f"{DOMAIN}.TransposeMatMul", below=EVERY_VERSION)
def _take_as_fused(node: RawNode) -> RawNode:
    """Rewrite as FusedMatMul, its newer name."""
    return replace(node, op_type="FusedMatMul")


@composite("FusedMatMulActivation", DOMAIN)
@dataclass(frozen=True, slots=True)
class FusedMatMulActivation(Composite):
    """``activation(FusedMatMul(A, B))``."""

    inputs: ClassVar[int] = 2
    activation: str
    activation_alpha: float | None = None
    activation_axis: int | None = None
    activation_beta: float | None = None
    activation_gamma: float | None = None
    alpha: float = 1.0
    transA: int = 0  # noqa: N815
    transB: int = 0  # noqa: N815
    transBatchA: int = 0  # noqa: N815
    transBatchB: int = 0  # noqa: N815
    example = "float32[5,7] float32[7,4] activation='Relu'"

    def __post_init__(self) -> None:
        """Check the activation."""
        if self.activation != "Softmax":
            check_activation(self.name, self.activation, _parameters(self))

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Multiply, then activate."""
        product = FusedMatMul(self.alpha, self.transA, self.transB, self.transBatchA, self.transBatchB)
        y = sketch.add(product, *inputs)
        if self.activation == "Softmax":
            return (sketch.add("Softmax", y, axis=-1 if self.activation_axis is None else self.activation_axis),)
        return (activate(sketch, y, y, self.activation, _parameters(self)),)


@composite("FusedGemm", DOMAIN)
@dataclass(frozen=True, slots=True)
class FusedGemm(Composite):
    """``activation(alpha * A' @ B' + beta * C)``."""

    inputs: ClassVar[int] = 3
    activation: str = ""
    activation_alpha: float | None = None
    activation_beta: float | None = None
    activation_gamma: float | None = None
    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0  # noqa: N815
    transB: int = 0  # noqa: N815

    def __post_init__(self) -> None:
        """Check the activation."""
        check_activation(self.name, self.activation, _parameters(self))

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Multiply and add, then activate."""
        y = sketch.add(Gemm(self.alpha, self.beta, self.transA, self.transB), *inputs)
        assert inputs[1] is not None
        return (activate(sketch, y, inputs[1], self.activation, _parameters(self)),)


def _parameters(op: FusedMatMulActivation | FusedGemm) -> tuple[float, ...]:
    """Return the parameters of the activation that are given, in its order."""
    given = (("alpha", op.activation_alpha), ("beta", op.activation_beta), ("gamma", op.activation_gamma))
    by_name = {name: value for name, value in given if value is not None}
    names = ACTIVATIONS.get(op.activation)
    if names is None:
        return tuple(by_name.values())
    defaults = build(op.activation, {})
    return tuple(by_name.get(name, getattr(defaults, name)) for name in names)
