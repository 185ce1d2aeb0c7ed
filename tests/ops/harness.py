"""One operator case, five checks.

1. ``infer`` equals the specs of what ``compute`` returned.
2. ``compute`` equals the oracle: onnx.reference, onnxruntime, or arrays worked out by hand.
3. The lowering's plan passes ``verify``, and the CPU device gives what ``compute`` gave.
4. The simulator (and the GPU, where there is one) is within the operator's tolerance of ``compute``.
5. Check mode is clean on a small shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from gpuexec import operator as gx_operator
from gpuexec.operator import Operator, Tolerance
from gpuexec.spec import BFLOAT16, TensorSpec, accumulator, dtype_row

Array = np.ndarray[Any, Any]
NEWEST_OPSET = 24


@dataclass(frozen=True)
class Case:
    """An operator applied to arrays.

    ``const`` lists the inputs given as constants (what ``require_const`` asks for); ``outputs`` says which outputs are wanted;
    ``opset`` below the newest sends the case through the upgrades; ``expected`` replaces the oracle; ``oracle`` is
    ``"reference"``, ``"onnxruntime"`` or ``"expected"``; ``terms`` is the number of elements that enter one output (REDUCTION).
    """

    id: str
    op: str
    inputs: tuple[Array | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    const: tuple[int, ...] = ()
    outputs: tuple[bool, ...] = (True,)
    opset: int = NEWEST_OPSET
    expected: tuple[Array, ...] | None = None
    oracle: str = "reference"
    terms: int = 1


def build_operator(case: Case) -> tuple[Operator, tuple[Array | None, ...]]:
    """Return the case's operator in its newest form, and the inputs that form takes."""
    from gpuexec.graph import RawNode

    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(case.inputs))
    raw = RawNode(case.op, "", "node", names, tuple(f"y{i}" for i in range(len(case.outputs))), dict(case.attributes), case.opset)
    for function in gx_operator.upgrades_for(case.op, case.opset):
        raw = function(raw)
    arrays = dict(zip(names, case.inputs, strict=True)) | dict(raw.constants)
    inputs = tuple(arrays[name] if name else None for name in raw.inputs)
    return gx_operator.build(raw.op_type, raw.attributes), inputs


def const_positions(case: Case, inputs: tuple[Array | None, ...]) -> set[int]:
    """Return the positions whose content planning knows: those of the case, and those an upgrade made constant."""
    return set(case.const) | set(range(len(case.inputs), len(inputs))) | {
        i for i, x in enumerate(inputs) if i < len(case.inputs) and x is not case.inputs[i]
    }


def run_case(case: Case) -> None:
    """Run all checks of a case."""
    op, inputs = build_operator(case)
    known = const_positions(case, inputs)
    specs = [
        None if x is None else (TensorSpec.of(x) if i in known else TensorSpec(x.shape, x.dtype)) for i, x in enumerate(inputs)
    ]
    inferred = op.infer(*specs)
    computed = op.compute(*inputs)
    for index, wanted in enumerate(case.outputs):
        if wanted:
            got = computed[index]
            assert isinstance(got, np.ndarray), f"{case.id}: output {index} is {type(got).__name__}, not an array"
            assert (inferred[index].shape, inferred[index].dtype) == (got.shape, got.dtype), (
                f"{case.id}: output {index} inferred {inferred[index]}, computed {TensorSpec(got.shape, got.dtype)}"
            )
    for index, (want, expected) in enumerate(zip(case.outputs, expect(case), strict=True)):
        if want:
            compare(case, op, index, computed[index], expected, inputs)
    into_strided_memory(case, op, inputs, computed)


def into_strided_memory(case: Case, op: Operator, inputs: tuple[Array | None, ...], computed: tuple[Array | None, ...]) -> None:
    """Check that ``compute(out=)`` with strided outputs gives the same bits."""
    out: list[Array | None] = []
    for index, wanted in enumerate(case.outputs):
        array = computed[index]
        if not wanted or array is None:
            out.append(None)
            continue
        roomy = np.zeros((*array.shape[:-1], 2 * array.shape[-1]) if array.ndim else (2,), array.dtype)
        out.append(roomy[..., ::2] if array.ndim else roomy[:1].reshape(()))
    again = op.compute(*inputs, out=out)
    for index, wanted in enumerate(case.outputs):
        if wanted:
            first, second = computed[index], again[index]
            assert first is not None and second is not None
            np.testing.assert_array_equal(_bits(second), _bits(first), err_msg=f"{case.id}: compute(out=) differs")


def expect(case: Case) -> tuple[Array, ...]:
    """Return the oracle's outputs."""
    if case.expected is not None:
        return case.expected
    model = make_model(case)
    feeds = {f"x{i}": x for i, x in enumerate(case.inputs) if x is not None}
    if case.oracle == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return tuple(session.run(None, feeds))
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        return tuple(np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds))


def make_model(case: Case) -> onnx.ModelProto:
    """Return the case as a one-node ONNX model."""
    def info(name: str, x: Array) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype_row(x.dtype).code, x.shape)

    names = ["" if x is None else f"x{i}" for i, x in enumerate(case.inputs)]
    outputs = [f"y{i}" for i in range(len(case.outputs))]
    node = helper.make_node(case.op, names, outputs, **case.attributes)
    graph = helper.make_graph(
        [node],
        "case",
        [info(name, x) for name, x in zip(names, case.inputs, strict=True) if x is not None],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=10)


def compare(
    case: Case, op: Operator, index: int, got: Array | None, expected: Array, inputs: tuple[Array | None, ...]
) -> None:
    """Compare by the operator's tolerance class; dtype and shape are exact."""
    assert got is not None
    label = f"{case.id}: output {index}"
    assert got.dtype == expected.dtype and got.shape == expected.shape, (
        f"{label} is {TensorSpec(got.shape, got.dtype)}, expected {TensorSpec(expected.shape, expected.dtype)}"
    )
    if op.tolerance is Tolerance.EXACT or got.dtype.kind in "biu":
        np.testing.assert_array_equal(_bits(got), _bits(expected), err_msg=label)
        return
    a, b = got.astype(np.float64), expected.astype(np.float64)
    special = ~np.isfinite(b) | ~np.isfinite(a)
    np.testing.assert_array_equal(a[special], b[special], err_msg=label)
    allowed = allowance(case, op, got.dtype, b, inputs)
    excess = np.where(special, 0, np.abs(np.where(special, 0, a) - np.where(special, 0, b)) - allowed)
    worst = int(np.argmax(excess)) if excess.size else 0
    assert not excess.size or excess.flat[worst] <= 0, (
        f"{label}: element {worst} is {a.flat[worst]!r}, expected {b.flat[worst]!r}, allowed difference {np.broadcast_to(allowed, a.shape).flat[worst]:.3g}"
    )


def allowance(case: Case, op: Operator, dtype: np.dtype[Any], expected: Array, inputs: tuple[Array | None, ...]) -> Array:
    """Return how far each element may be from ``expected``."""
    eps = 2.0**-7 if dtype == BFLOAT16 else float(np.finfo(dtype).eps)
    tiny = 2.0**-133 if dtype == BFLOAT16 else float(np.finfo(dtype).smallest_subnormal)
    magnitude = np.where(np.isfinite(expected), np.abs(expected), 0)
    if op.tolerance is Tolerance.ROUNDING:
        return 4 * (eps * magnitude + tiny)
    acc = accumulator(dtype)
    largest = max((float(np.max(np.abs(x.astype(np.float64)), initial=0, where=np.isfinite(x.astype(np.float64)))) for x in inputs if x is not None and x.dtype.kind not in "b"), default=1.0)
    total = case.terms * max(largest, 1.0) ** 2
    return case.terms * float(np.finfo(acc).eps) * total + eps * magnitude + tiny


def _bits(array: Array) -> Array:
    """Return the array with every NaN made the same, as integers of its width where it is a float."""
    if array.dtype.kind in "biu":
        return array
    plain = np.ascontiguousarray(array)
    plain = np.where(plain != plain, np.array(np.nan, plain.dtype), plain).astype(plain.dtype)
    return plain.view(np.dtype(f"u{plain.dtype.itemsize}"))
