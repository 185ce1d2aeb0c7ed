"""Cases of composite operators, as one-node models that are loaded, planned and run.

1. ``infer`` equals the specs of what ``compute`` returned.
2. ``compute`` is close to the oracle: onnxruntime, in float where it has no kernel of a narrower type, or arrays.
3. The loaded graph holds none of the operator; its plan is verified, and the CPU device is close to the oracle.
4. On the simulator, in check mode, it is, too, and nothing is found in its kernels.

How close: as many float roundings as ``terms`` says, and one rounding to the type of the output for each part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from gpuexec.importer.load import load_graph
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.operator import Operator, build, find_operator, qualified, upgrades_for
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.passes import AT_LOAD, run_passes
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template
from tests.devices.opening import open_living

Array = np.ndarray[Any, Any]
DOMAIN = "com.microsoft"
DEVICES = ("cpu", "check")
OPSET = 21
_NARROW = (np.dtype(np.float16), BFLOAT16)


@dataclass(frozen=True)
class Composed:
    """An operator of one domain applied to arrays.

    ``const`` are inputs that stand in the model; ``outputs`` says which are wanted; ``expected`` replaces onnxruntime;
    ``terms`` is the number of roundings in float that enter one output.
    """

    id: str
    op: str
    inputs: tuple[Array | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    const: tuple[int, ...] = ()
    outputs: tuple[bool, ...] = (True,)
    expected: tuple[Array, ...] | None = None
    terms: int = 64
    domain: str = DOMAIN


def run_composed(case: Composed, devices: Sequence[str] = DEVICES) -> None:
    """Run the checks of a case."""
    expected = expect(case)
    model = make_model(case, expected)
    op = _build(case)
    if op is not None:
        _check_host(case, op, expected)
    graph = run_passes(load_graph(model.SerializeToString()).graph, AT_LOAD)
    name = qualified(case.op, case.domain)
    assert op is None or not _is_taken_apart(op) or all(node.operator.name != name for node in graph.nodes)
    arrays = feeds(case)
    specs = {key: TensorSpec.of(x) for key, x in arrays.items()}
    parts = len(graph.nodes)
    for name in devices:
        device = open_living(name)
        template = plan_graph(graph, specs, device.target)
        for index, (got, wanted) in enumerate(
            zip(run_template(template, graph, arrays, device), expected, strict=True)
        ):
            compare(f"{case.id} on {name}: output {index}", case, got, wanted, parts)


def expect(case: Composed) -> tuple[Array, ...]:
    """Return the wanted outputs: given ones, or those of onnxruntime, which works in float."""
    if case.expected is not None:
        return case.expected
    import onnxruntime

    narrow = {x.dtype for x in case.inputs if x is not None and x.dtype in _NARROW}
    wide = [x.astype(np.float32) if x is not None and x.dtype in _NARROW else x for x in case.inputs]
    widened = dataclasses.replace(case, inputs=tuple(wide), const=())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = make_model(widened, None).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    results = session.run(None, feeds(widened))
    back = next(iter(narrow), None)
    return tuple(y.astype(back) if back is not None and y.dtype == np.float32 else y for y in results)


def feeds(case: Composed) -> dict[str, Array]:
    """Return the inputs that a run is given, by name."""
    return {f"x{i}": x for i, x in enumerate(case.inputs) if x is not None and i not in case.const}


def make_model(case: Composed, results: Sequence[Array] | None) -> onnx.ModelProto:
    """Return the case as a model of one node; of ``results`` the types are declared."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(case.inputs)]
    outputs = [f"y{i}" if wanted else "" for i, wanted in enumerate(case.outputs)]
    node = helper.make_node(case.op, names, outputs, name="node", domain=case.domain, **case.attributes)
    made = [name for name in outputs if name]
    declared = (
        [helper.make_empty_tensor_value_info(name) for name in made]
        if results is None
        else [
            helper.make_tensor_value_info(name, dtype_row(y.dtype).code, None)
            for name, y in zip(made, results, strict=True)
        ]
    )
    given = [
        helper.make_tensor_value_info(f"x{i}", dtype_row(x.dtype).code, x.shape)
        for i, x in enumerate(case.inputs)
        if x is not None and i not in case.const
    ]
    held = [_tensor(f"x{i}", x) for i, x in enumerate(case.inputs) if x is not None and i in case.const]
    graph = helper.make_graph([node], "case", given, declared, held)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def compare(label: str, case: Composed, got: Array, expected: Array, parts: int) -> None:
    """Compare an output."""
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), f"{label} is {TensorSpec.of(got)}"
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, expected, err_msg=label)
        return
    eps = float(ml_dtypes.finfo(expected.dtype).eps)
    floats = [x for x in case.inputs if x is not None and x.dtype.kind in "fV" and x.size]
    largest = max((float(np.abs(x[np.isfinite(x)].astype(np.float64)).max(initial=0)) for x in floats), default=1.0)
    wide, wanted = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(wanted), err_msg=label)
    rounding = float(np.finfo(np.float64 if expected.dtype == np.float64 else np.float32).eps)
    allowed = (case.terms * rounding + parts * eps * (expected.dtype in _NARROW) + eps) * (np.abs(wanted) + largest)
    wrong = ~(np.abs(wide - wanted) <= allowed) & ~np.isnan(wanted) & (wide != wanted)
    assert not wrong.any(), f"{label}: {wide[wrong][:4]} for {wanted[wrong][:4]}, allowed {allowed[wrong][:4]}"


def _build(case: Composed) -> Operator | None:
    """Return the operator; None where an upgrade makes it one of another name."""
    name = qualified(case.op, case.domain)
    if find_operator(name) is None:
        raw = RawNode(case.op, case.domain, "node", ("x",), ("y",), case.attributes, 1)
        assert any(function(raw).op_type != case.op or function(raw).domain == "" for function in upgrades_for(name, 1))
        return None
    return build(name, case.attributes)


def _is_taken_apart(op: Operator) -> bool:
    from gpuexec.ir.operator import decomposition_for

    return decomposition_for(op.name) is not None


def _check_host(case: Composed, op: Operator, expected: Sequence[Array]) -> None:
    specs = [None if x is None else TensorSpec.of(x) for x in case.inputs]
    inferred, computed = op.infer(*specs), op.compute(*case.inputs)
    wanted = [index for index, is_wanted in enumerate(case.outputs) if is_wanted]
    for index, array in zip(wanted, expected, strict=True):
        got = computed[index]
        assert got is not None
        assert (inferred[index].shape, inferred[index].dtype) == (got.shape, got.dtype), f"{case.id}: output {index}"
        compare(f"{case.id}: output {index}", case, got, array, 16)


def _tensor(name: str, x: Array) -> onnx.TensorProto:
    return helper.make_tensor(name, dtype_row(x.dtype).code, x.shape, np.ascontiguousarray(x).tobytes(), raw=True)
