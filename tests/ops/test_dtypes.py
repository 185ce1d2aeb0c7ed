"""Which element types operators take, held against what ONNX's newest schemas allow."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import gpuexec.ops  # noqa: F401
from gpuexec.errors import InputError
from gpuexec.importer.tensors import UnsupportedFormError, attribute_value
from gpuexec.operator import Array, Operator, operator_names, qualified
from gpuexec.spec import DTYPES, TensorSpec, dtype_row, dtypes_of
from tests.conformance.suite import load_suite
from tests.ops.harness import Case, build_operator
from tests.ops.ml.cases import ml
from tests.ops.ml.test_schemas import REQUIRED

ONNX_NAMES = {"float32": "float", "float64": "double"}
ROWS = {f"tensor({ONNX_NAMES.get(row.name, row.name)})": row for row in DTYPES}
NARROW = frozenset(row.name for row in DTYPES if row.is_narrow)
FLOAT8 = frozenset(f"float8{name}" for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"))
SIX_BITS = frozenset(("float6e2m3", "float6e3m2"))
BELOW_8_BITS = frozenset(dtype_row(t).name for t in dtypes_of("narrow int", "narrow uint")) | {"float4e2m1"}


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
    ml("floats", "Imputer", ramp(2, 1), imputed_value_floats=[1.0]),
    ml("ints", "Imputer", ramp(2, 1, dtype=np.int64), imputed_value_int64s=[1]),
    ml("ints", "LabelEncoder", np.array([1]), keys_int64s=[1], values_int64s=[2]),
    ml("floats", "LabelEncoder", np.array([1], np.float32), keys_floats=[1.0], values_int64s=[2]),
    *(
        ml(str(dtype), "LabelEncoder", np.array([1], dtype), keys_tensor=np.array([1], dtype), values_tensor=ramp(1))
        for dtype in ("int16", "int32", "float64")
    ),
)
# Operators that none of it calls, and why.
UNCALLED = {
    **dict.fromkeys(("If", "Loop", "Scan"), "their bodies decide"),
    **dict.fromkeys(
        (
            *("ConcatFromSequence", "Optional", "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert"),
            *("SequenceLength", "SequenceMap"),
        ),
        "they take or give sequences and optionals, of any type",
    ),
}
# Types that a schema allows and `infer` refuses, and why.
REFUSED: Mapping[tuple[str, str], tuple[frozenset[str], str]] = {
    ("BitCast", "T1"): (BELOW_8_BITS, "a type of another width is no BitCast; those of one width pass"),
    **{
        ("QLinearMatMul", letter): (FLOAT8, "DequantizeLinear, MatMul and QuantizeLinear say it of floats")
        for letter in ("T1", "T2", "T3")
    },
    ("DequantizeLinear", "T2"): (frozenset(("float8e8m0",)), "such a scale wants output_dtype; with it, it passes"),
}
# Types that no schema allows, of operators that move elements and need not know what they are.
MOVED = frozenset(
    (
        *(
            "CenterCropPad",
            "Compress",
            "Concat",
            "DepthToSpace",
            "Expand",
            "EyeLike",
            "Gather",
            "GatherElements",
            "GatherND",
        ),
        *("ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "SplitToSequence"),
        *("TensorScatter", "Tile", "Trilu", "Where"),
    )
)
MORE: Mapping[tuple[str, str], tuple[frozenset[str], str]] = {
    ("Dropout", "T"): (NARROW - FLOAT8, "where it does not train it is a view"),
    ("OneHot", "T3"): (NARROW, "the two values are moved"),
    ("RandomNormalLike", "T1"): (NARROW, "nothing but the shape is looked at where the result has a type of its own"),
    ("RandomUniformLike", "T1"): (NARROW, "nothing but the shape is looked at where the result has a type of its own"),
    ("Resize", "T1"): (NARROW, "the nearest element is moved"),
    **{
        (name, letter): (SIX_BITS, "a view, a move or a conversion like that of any other")
        for name, letters in (
            *(
                (name, "T")
                for name in ("Flatten", "Pad", "Reshape", "Shape", "Size", "Squeeze", "Transpose", "Unsqueeze")
            ),
            ("Identity", "V"),
        )
        for letter in letters
    },
    **{("CastLike", letter): (SIX_BITS, "a conversion like any other") for letter in ("T1", "T2")},
}


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
    with np.errstate(all="ignore"):
        return x.astype(np.float32).astype(dtype) if dtype_row(dtype).is_narrow else x.astype(dtype)


def find_schema(name: str) -> onnx.defs.OpSchema | None:
    domain, _, bare = name.rpartition(".")
    try:
        return onnx.defs.get_schema(bare, domain=domain)
    except onnx.defs.SchemaError:
        return None


def read_case(model: onnx.ModelProto, data: Any) -> Case | None:
    """Return a case of the suite that is one node of tensors of numbers."""
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
    if any(not isinstance(x, np.ndarray) or x.dtype.kind in "OUSc" for x in arrays):
        return None
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


def find_taken(name: str) -> Mapping[str, frozenset[str]]:
    """Return the types that an operator takes, by letter: alone, or with all that are of one type by now."""
    schema, taken = find_schema(name), defaultdict[str, set[str]](set)
    assert schema is not None
    for letter in {constraint.type_param_str for constraint in schema.type_constraints}:
        for row in DTYPES:
            for call in find_calls()[name]:
                of_letter = {
                    x.dtype for x, own in zip(call.inputs, call.letters, strict=True) if x is not None and own == letter
                }
                if not of_letter:
                    continue
                pairs = zip(call.inputs, call.letters, strict=True)
                like = {own for x, own in pairs if x is not None and x.dtype in of_letter}
                taken[letter]  # the letter is one that is called
                if call.takes({letter}, row.numpy) or (like > {letter} and call.takes(like, row.numpy)):
                    taken[letter].add(row.name)
                    break
    return {letter: frozenset(names) for letter, names in taken.items()}


def find_allowed(name: str) -> Mapping[str, frozenset[str]]:
    schema = find_schema(name)
    assert schema is not None
    return {
        each.type_param_str: frozenset(ROWS[text].name for text in each.allowed_type_strs if text in ROWS)
        for each in schema.type_constraints
    }


def of_onnx() -> list[str]:
    """Return the operators that have typed inputs of tensors in the newest schemas."""
    names = []
    for name in operator_names():
        schema = find_schema(name)
        if schema is not None and any(each.type_str in find_allowed(name) for each in schema.inputs):
            names.append(name)
    return names


def test_every_operator_is_called() -> None:
    called = set(find_calls())
    assert set(of_onnx()) - called <= set(UNCALLED), "add a call of these to CALLS"
    assert not set(UNCALLED) & called, "these are called by now"


@pytest.mark.parametrize("name", [name for name in of_onnx() if name not in UNCALLED])
def test_types_are_those_of_the_schema(name: str) -> None:
    taken, allowed = find_taken(name), find_allowed(name)
    for letter, names in taken.items():
        refused = allowed[letter] - names
        expected = REFUSED.get((name, letter), (frozenset(), ""))[0]
        assert refused == expected, f"{name}.{letter} is allowed {sorted(allowed[letter])}"
        beyond = (names - allowed[letter]) & NARROW
        more = NARROW if name in MOVED else MORE.get((name, letter), (frozenset(), ""))[0]
        assert beyond == (beyond & more), f"{name}.{letter} takes what it may compute wrongly"


def test_what_is_listed_is_there() -> None:
    """No list names an operator or type that is not so any more."""
    for (name, letter), (names, reason) in REFUSED.items():
        assert reason and names <= find_allowed(name)[letter] - find_taken(name)[letter], (name, letter)
    for (name, letter), (names, reason) in MORE.items():
        assert reason and names <= find_taken(name)[letter] - find_allowed(name)[letter], (name, letter)
    for name in MOVED:
        assert any(NARROW & (names - find_allowed(name)[letter]) for letter, names in find_taken(name).items()), name
