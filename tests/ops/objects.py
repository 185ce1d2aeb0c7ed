"""Cases of operators on host objects: shape rule, NumPy form and runs on every backend, against onnx's evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, helper

import gpuexec as gx
from gpuexec.ir.apply import compute_arrays, infer_specs
from gpuexec.ir.containers import pack, unpack
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.model.objects import are_equal, check_everywhere, run_reference

Array = np.ndarray[Any, Any]
NEWEST = 24  # of ai.onnx, as far as onnx's evaluator has all that is tried here


def tensor(code: int = TensorProto.FLOAT) -> TypeProto:
    """Return the type of a tensor of any shape."""
    return helper.make_tensor_type_proto(code, None)


def sequence(code: int = TensorProto.FLOAT) -> TypeProto:
    """Return the type of a sequence of tensors of any shape."""
    return helper.make_sequence_type_proto(tensor(code))


def optional(held: TypeProto) -> TypeProto:
    """Return the type of an optional."""
    return helper.make_optional_type_proto(held)


@dataclass(frozen=True, slots=True)
class ObjectCase:
    """One node: what it is given (None: absent) with types, the types of what it gives, and that, worked by hand.

    Where ``expected`` is None, onnx's evaluator tells.
    """

    id: str
    op_type: str
    inputs: tuple[Any, ...]
    types: tuple[TypeProto | None, ...]
    outputs: tuple[TypeProto, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    expected: list[Any] | None = None
    opset: int = NEWEST
    domain: str = ""

    def make_model(self) -> onnx.ModelProto:
        """Return the model of the node."""
        names = ["" if kind is None else f"x{index}" for index, kind in enumerate(self.types)]
        results = [f"y{index}" for index in range(len(self.outputs))]
        node = helper.make_node(self.op_type, names, results, name="node", domain=self.domain, **self.attributes)
        given = [helper.make_value_info(name, kind) for name, kind in zip(names, self.types, strict=True) if kind]
        made = [helper.make_value_info(name, kind) for name, kind in zip(results, self.outputs, strict=True)]
        graph = helper.make_graph([node], "case", given, made)
        opsets = {"": NEWEST, self.domain: self.opset}
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def name_inputs(self) -> dict[str, Any]:
        """Return what the model is given."""
        return {f"x{index}": item for index, item in enumerate(self.inputs) if self.types[index] is not None}


def apply(name: str, attributes: Mapping[str, Any], arrays: Sequence[Array | None]) -> list[Any]:
    """Infer and compute an operator; return what it gives, as callers get it.

    Raises:
        InputError: What either refuses.
    """
    operator = build(name, attributes)
    infer_specs(operator, [None if array is None else TensorSpec.of(array) for array in arrays])
    return [unpack(np.asarray(array)) for array in compute_arrays(operator, arrays)]


def check_case(case: ObjectCase) -> None:
    """Check that the shape rule says what comes out, and that NumPy form and every backend give what is expected."""
    model, inputs = case.make_model(), case.name_inputs()
    wanted = run_reference(model, inputs) if case.expected is None else case.expected
    read = gx.load(model).info.graph
    (node,) = read.nodes
    arrays = {value: pack(inputs[value.name], value.declared) for value in read.inputs if value.declared is not None}
    given = [None if value is None else arrays[value] for value in node.inputs]
    specs = infer_specs(node.operator, [None if array is None else TensorSpec.of(array) for array in given])
    made = compute_arrays(node.operator, given)
    assert [(spec.shape, spec.dtype) for spec in specs] == [
        (array.shape, array.dtype) for array in made if array is not None
    ]
    assert are_equal([unpack(np.asarray(array)) for array in made], wanted)
    check_everywhere(model, inputs, wanted)
