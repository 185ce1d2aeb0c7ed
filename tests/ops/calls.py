"""Operator calls with accepted inputs, from ONNX's suite and the tables of cases."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

import gpuexec.ops  # noqa: F401
from gpuexec.errors import InputError
from gpuexec.importer.tensors import UnsupportedFormError, attribute_value
from gpuexec.ir.containers import make_blank, make_map, to_strings
from gpuexec.ir.operator import Array, Operator, operator_names, qualified
from gpuexec.ir.spec import STRING, TensorSpec, dtype_row, is_container
from tests.ops.harness import Case, build_operator
from tests.ops.ml.cases import ml
from tests.ops.ml.test_schemas import REQUIRED
from tests.system.conformance.suite import load_suite


def ramp(*shape: int, dtype: Any = np.float32) -> Array:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


# Operators whose cases in ONNX's suite show no type, called here.
CALLS = (
    Case("", "CumSum", (ramp(4), np.array(0)), const=(1,)),
    Case("", "GlobalLpPool", (ramp(1, 2, 3, 3),)),
    Case("", "MaxRoiPool", (ramp(1, 1, 4, 4), ramp(1, 5)), {"pooled_shape": (2, 2)}),
    Case("", "Multinomial", (ramp(2, 3),)),
    Case("", "OneHot", (ramp(3, dtype=np.int64), np.array(4), ramp(2)), {"axis": -1}),
    Case("", "RandomNormalLike", (ramp(3),), {"dtype": 1}),
    Case("", "RandomUniformLike", (ramp(3),), {"dtype": 1}),
)
# Those of ai.onnx.ml by what they can't be made without, on two rows of a column; what LabelEncoder takes its keys say.
ML_CALLS = (
    *(
        ml(name, name, np.array([[1.0], [1.0]], np.float32), opset=5, **attributes)
        for name, attributes in REQUIRED.items()
        if name != "ArrayFeatureExtractor"  # takes two tensors, and has a case
    ),
    ml("numbers", "CategoryMapper", np.array([1])),
    ml("words", "CategoryMapper", np.array(["a"], STRING)),
    ml("map", "CastMap", make_map({1: np.array(1, np.float32)})),
    ml("map", "DictVectorizer", make_map({"a": np.array(1)}), string_vocabulary=["a"]),
    ml("floats", "Imputer", ramp(2, 1), imputed_value_floats=[1.0]),
    ml("ints", "Imputer", ramp(2, 1, dtype=np.int64), imputed_value_int64s=[1]),
    ml("ints", "LabelEncoder", np.array([1]), keys_int64s=[1], values_int64s=[2]),
    ml("floats", "LabelEncoder", np.array([1], np.float32), keys_floats=[1.0], values_int64s=[2]),
    *(
        ml(str(dtype), "LabelEncoder", np.array([1], dtype), keys_tensor=np.array([1], dtype), values_tensor=ramp(1))
        for dtype in ("int16", "int32", "float64")
    ),
)


@dataclass(frozen=True)
class Call:
    """An operator with inputs that it takes: arrays, and the letter of each one's type in the schema."""

    operator: Operator
    inputs: tuple[Array | None, ...]
    letters: tuple[str, ...]

    def takes(self, letters: set[str], dtype: np.dtype[Any] | None) -> bool:
        """Return whether ``infer`` accepts the inputs with those of some letters in another type."""
        specs = [
            None if x is None else TensorSpec.of(x if dtype is None or letter not in letters else convert(x, dtype))
            for x, letter in zip(self.inputs, self.letters, strict=True)
        ]
        try:
            self.operator.infer(*specs)
        except InputError:
            return False
        return True


def convert(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return an array of the same shape in another type; what stands for nothing, to and from strings."""
    if STRING in (x.dtype, dtype) or is_container(x.dtype) or is_container(dtype):
        return x if x.dtype == dtype else make_blank(x.shape, dtype)
    with np.errstate(all="ignore"):
        return x.astype(np.float32).astype(dtype) if dtype_row(dtype).is_narrow else x.astype(dtype)


def find_schema(name: str) -> onnx.defs.OpSchema | None:
    domain, _, bare = name.rpartition(".")
    try:
        return onnx.defs.get_schema(bare, domain=domain)
    except onnx.defs.SchemaError:
        return None


def read_case(model: onnx.ModelProto, data: Any) -> Case | None:
    """Return a case of the suite that is one node of tensors."""
    if (
        len(model.graph.node) != 1
        or find_schema(qualified(model.graph.node[0].op_type, model.graph.node[0].domain)) is None
    ):
        return None
    (node,) = model.graph.node
    arrays = [
        numpy_helper.to_array(x) if isinstance(x, TensorProto) else np.asarray(x) if isinstance(x, np.generic) else x
        for x in data
    ]
    if any(not isinstance(x, np.ndarray) or x.dtype.kind == "c" for x in arrays):
        return None
    arrays = [to_strings(x) if x.dtype.kind in "OUST" else x for x in arrays]
    feeds = dict(zip([port.name for port in model.graph.input], arrays, strict=False))
    try:
        attributes = {a.name: attribute_value(a, None, a.name) for a in node.attribute}  # type: ignore[arg-type]
    except UnsupportedFormError:
        return None
    opset = next(o.version for o in model.opset_import if o.domain == node.domain)
    inputs = tuple(feeds.get(name) if name else None for name in node.input)
    outputs = tuple(bool(name) for name in node.output)
    return Case(node.name, node.op_type, inputs, attributes, outputs=outputs, opset=opset, domain=node.domain)


def all_cases() -> Iterator[Case]:
    yield from (*CALLS, *ML_CALLS)
    for each in load_suite(("node",)):
        model = each.read_model()
        case = read_case(model, each.read_data(model)[0][0])
        if case is not None:
            yield case


@functools.cache
def find_calls() -> Mapping[str, tuple[Call, ...]]:
    """Return, for each operator that ONNX has, calls of it that it takes; two of each attributes will do."""
    known, found, seen = set(operator_names()), defaultdict[str, list[Call]](list), set[Any]()
    for case in all_cases():
        name = qualified(case.op, case.domain)
        schema = find_schema(name)
        if name not in known or schema is None or not schema.inputs:
            continue
        try:
            op, inputs = build_operator(case)
        except InputError:
            continue
        formals = [schema.inputs[min(i, len(schema.inputs) - 1)].type_str for i in range(len(inputs))]
        call = Call(op, tuple(inputs), tuple(formals))
        key = (name, tuple(formals), tuple(None if x is None else x.dtype for x in inputs), str(op))
        if key not in seen and call.takes(set(), None):
            seen.add(key)
            found[name].append(call)
    return {name: tuple(calls) for name, calls in found.items()}
