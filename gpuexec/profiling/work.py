"""Operation counts of operators by formula: floating point (or integer) operations, from shapes alone.

A multiplication and an addition are two. Operators that only move elements count 0; an operator without a formula
counts None. Elementwise functions count one each, however many instructions they take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gpuexec.operator import Operator
from gpuexec.ops.fused import Fused
from gpuexec.ops.narrow import Narrowed
from gpuexec.spec import TensorSpec

_Specs = Sequence[TensorSpec | None]
_Formula = Callable[[Operator, _Specs, _Specs], int]

# Operations on each element of a softmax (maximum, difference, exponential, sum, quotient) and of a normalization
# (sum, difference, square, sum, product, scale, shift).
_SOFTMAX, _NORM = 5, 7
_MOVING_NAMES = (
    "Cast CastLike BitCast Identity Concat EyeLike Tile Constant ConstantOfShape Shape Size DepthToSpace SpaceToDepth"
    " Expand Flatten Reshape Squeeze Transpose Unsqueeze Gather GatherElements GatherND OneHot Pad ReverseSequence"
    " Slice Split Trilu Dropout gpuexec.AlignAxes gpuexec.Append gpuexec.GroupHeads gpuexec.SplitHeads"
)
_REDUCING_NAMES = (
    "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"
    " ReduceSumSquare GlobalAveragePool GlobalLpPool GlobalMaxPool CumSum CumProd"
)
_MOVING, _BY_INPUT = frozenset(_MOVING_NAMES.split()), frozenset(_REDUCING_NAMES.split())
_VARIADIC = frozenset({"Max", "Mean", "Min", "Sum"})
_ELEMENTWISE = "gpuexec.ops.elementwise"


def count_flops(op: Operator, inputs: _Specs, outputs: _Specs) -> int | None:
    """Count the operations of a node; None where there is no formula for it.

    Args:
        op: The operator.
        inputs: Specs; None: absent.
        outputs: Specs; None: not wanted.
    """
    # An operator with a narrow weight does the work of the operator it replaces.
    name = op.form.consumer.name if isinstance(op, Narrowed) else op.name
    if isinstance(op, Fused):
        made = count_flops(op.parts.producer, op.split(inputs), outputs)
        return None if made is None else made + len(op.steps) * _size(outputs, 0)
    if name in _MOVING:
        return 0
    if name in _BY_INPUT:
        return _size(inputs, 0)
    formula = _FORMULAS.get(name)
    if formula is not None:
        return formula(op, inputs, outputs)
    if name in _VARIADIC:
        return _size(outputs, 0) * max(1, len(inputs) - 1)
    return _size(outputs, 0) if type(op).__module__.startswith(_ELEMENTWISE) else None


def _size(specs: _Specs, index: int) -> int:
    spec = specs[index] if index < len(specs) else None
    return 0 if spec is None else spec.size


def _shape(specs: _Specs, index: int) -> tuple[int, ...]:
    spec = specs[index] if index < len(specs) else None
    return () if spec is None else spec.shape


def _matmul(_: Operator, inputs: _Specs, outputs: _Specs) -> int:
    return 2 * _size(outputs, 0) * _shape(inputs, 0)[-1]


def _gemm(op: Operator, inputs: _Specs, outputs: _Specs) -> int:
    depth = _shape(inputs, 0)[0 if getattr(op, "transA", 0) else 1]
    return _size(outputs, 0) * (2 * depth + (len(inputs) > 2 and inputs[2] is not None))


def _conv(_: Operator, inputs: _Specs, outputs: _Specs) -> int:
    """Count the weights of one output channel for each output."""
    per_output = 2 * math.prod(_shape(inputs, 1)[1:]) + (len(inputs) > 2 and inputs[2] is not None)
    return _size(outputs, 0) * per_output


def _conv_transpose(_: Operator, inputs: _Specs, outputs: _Specs) -> int:
    """Count the weights that each input is multiplied by."""
    bias = _size(outputs, 0) if len(inputs) > 2 and inputs[2] is not None else 0
    return 2 * _size(inputs, 0) * math.prod(_shape(inputs, 1)[1:]) + bias


def _pool(op: Operator, _: _Specs, outputs: _Specs) -> int:
    return _size(outputs, 0) * math.prod(getattr(op, "kernel_shape", ()))


def _recurrent(_: Operator, inputs: _Specs, outputs: _Specs) -> int:
    """Count both products of each step: by the weights of the input, and by those of the state."""
    steps = math.prod(_shape(inputs, 0)[:2])
    return 2 * steps * (_size(inputs, 1) + _size(inputs, 2))


def _attend(queries: int, keys: int, outputs: int, scores: int) -> int:
    return 2 * keys * (queries + outputs) + _SOFTMAX * scores


def _attention(op: Operator, inputs: _Specs, outputs: _Specs) -> int:
    """Count scores and the sum of values; Q is ``[batch, heads, rows, size]``, or ``[batch, rows, heads * size]``."""
    q, keys = _shape(inputs, 0), _shape(inputs, 1)[-2]
    past = _shape(inputs, 4)
    if op.name == "Attention" and past:
        keys += past[-2]
    heads = q[1] if len(q) == 4 else getattr(op, "q_num_heads", None) or 1
    return _attend(_size(inputs, 0), keys, _size(outputs, 0), q[0] * heads * q[-2] * keys)


def _each(count: int) -> _Formula:
    return lambda _, inputs, outputs: count * _size(outputs, 0)


_FORMULAS: dict[str, _Formula] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "AveragePool": _pool,
    "LpPool": _pool,
    "MaxPool": _pool,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Attention": _attention,
    "gpuexec.AttentionOverCache": _attention,
    "Softmax": _each(_SOFTMAX),
    "LogSoftmax": _each(_SOFTMAX),
    "LayerNormalization": _each(_NORM),
    "RMSNormalization": _each(_NORM),
    "GroupNormalization": _each(_NORM),
    "InstanceNormalization": _each(_NORM),
    "LpNormalization": _each(_NORM),
    "BatchNormalization": _each(2),  # scale and shift, precomputed
    "RotaryEmbedding": _each(3),
}
