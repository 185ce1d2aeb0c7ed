"""Operator cases: inputs, the operator in its newest form, and the expected outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gpuexec.ir import operator as gx_operator
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import dtype_row

Array = np.ndarray[Any, Any]
NEWEST_OPSET = 24


@dataclass(frozen=True)
class Case:
    """An operator applied to arrays; strided ones reach the operator as they are.

    ``const`` lists the inputs given as constants (what ``require_const`` asks for); ``outputs`` says which outputs the
    node has; ``opset``, the version of ``domain`` (``""``: ai.onnx), sends the case through the upgrades where it is
    below the newest; ``expected`` replaces the oracle; ``oracle`` is ``"reference"``, ``"onnxruntime"`` or
    ``"expected"``; ``terms`` is the number of elements that enter one output (REDUCTION); ``refusal`` is what the host
    says to inputs it refuses, while kernels make ``expected`` of them.
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
    refusal: str = ""
    domain: str = ""


def build_operator(case: Case) -> tuple[Operator, tuple[Array | None, ...]]:
    """Return the case's operator in its newest form, and the inputs that form takes."""
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(case.inputs))
    outputs = tuple(f"y{i}" for i in range(len(case.outputs)))
    raw = RawNode(case.op, case.domain, "node", names, outputs, dict(case.attributes), case.opset)
    for function in gx_operator.upgrades_for(gx_operator.qualified(case.op, case.domain), case.opset):
        raw = function(raw)
    arrays = dict(zip(names, case.inputs, strict=True)) | dict(raw.constants)
    inputs = tuple(arrays[name] if name else None for name in raw.inputs)
    return gx_operator.build(gx_operator.qualified(raw.op_type, raw.domain), raw.attributes), inputs


def const_positions(case: Case, inputs: Sequence[Array | None]) -> set[int]:
    """Return the positions whose content planning knows: those of the case, and those an upgrade made constant."""
    added = set(range(len(case.inputs), len(inputs)))
    replaced = {i for i, x in enumerate(inputs) if i < len(case.inputs) and x is not case.inputs[i]}
    return set(case.const) | added | replaced


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
    attributes = {
        key: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for key, value in case.attributes.items()
    }
    node = helper.make_node(case.op, names, outputs, domain=case.domain, **attributes)
    graph = helper.make_graph(
        [node],
        "case",
        [info(name, x) for name, x in zip(names, case.inputs, strict=True) if x is not None],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    opsets = {"": NEWEST_OPSET, case.domain: case.opset}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)
