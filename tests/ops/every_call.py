"""Calls of every registered operator: from ONNX's suite, from the tables of cases, and by hand."""

from __future__ import annotations

import functools
import importlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.containers import make_sequence, pack
from gpuexec.ir.operator import Array, Operator, decomposition_for
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.composite import Composite
from tests.ops.agreement import find_known, is_held
from tests.ops.calls import Call, all_cases, find_schema, ramp
from tests.ops.harness import Case, build_operator, count_elements
from tests.ops.microsoft.composed import DOMAIN, OPSET, Composed
from tests.ops.objects import ObjectCase
from tests.ops.odd import Inputs

MAX_ELEMENTS, _SMALL = 1 << 12, 600
_HERE = Path(__file__).parent


def ours(name: str, *inputs: Array | None, domain: str = "gpuexec", **attributes: Any) -> Case:
    """Return a case of an operator of ours, or of another domain."""
    return Case(name, name, inputs, attributes, domain=domain)


# Operators that no table of cases has.
CALLS = (
    ours("Append", ramp(2, 3), ramp(1, 3), axis=0, capacity=8, memory="m"),
    ours("AttentionOverCache", ramp(1, 2, 3, 4) / 24, ramp(1, 2, 5, 4) / 40, ramp(1, 2, 5, 4)),
    ours("ElementKeys", ramp(2, dtype=np.uint64), make_sequence([ramp(2), ramp(1)])),
    ours(
        "FusedFusedMatMul",
        ramp(2, 3),
        ramp(3, 4),
        transA=0,
        transB=0,
        alpha=0.5,
        steps=(("Relu", (), (-1,)),),
        results=(1,),
    ),
    ours("GroupHeads", ramp(1, 2, 3, 5, 4), np.array([0, 6, 5, 4])),
    ours("ImageToTensor", ramp(4, 5, 3, dtype=np.uint8), size=(3, 4)),
    ours("ImageToTensor", ramp(2, 4, 5, 3, dtype=np.uint8), scale=(0.5,), bias=(1.0, 2.0, 3.0), layout="NHWC"),
    ours("Mish", ramp(4), domain=""),
    ours("NextKey", ramp(2, dtype=np.uint64)),
    ours("NextKey", ramp(2, dtype=np.uint64), np.array(3)),
    ours("RandomNormal", domain="", shape=(2, 3)),
    ours("RandomUniform", domain="", shape=(2, 3)),
    ours("RemovePadding", ramp(2, 3, 4), np.array([1, 3], np.int32), domain=DOMAIN),
    ours("RoundedAttention", ramp(1, 2, 3, 4) / 24, ramp(1, 2, 5, 4) / 40, ramp(1, 2, 5, 4)),
    ours("SplitHeads", ramp(2, 3, 8), heads=2),
    ours("StridedView", ramp(12), shape=(2, 3), strides=(6, -1), start=4),
    ours("TensorToImage", ramp(1, 3, 4, 5), size=(2, 3)),
    ours("TensorToImage", ramp(3, 4, 5) / 60, scale=(255.0,), channels=(2, 1, 0)),
)


@functools.cache
def list_calls() -> Mapping[str, tuple[Call, ...]]:
    """Return calls by the name of the operator in its newest form; those of other attributes or types all."""
    found, seen = defaultdict[str, list[Call]](list), set[Any]()
    for case in (*cases_of_tests(), *all_cases(), *CALLS):
        call = read_object_case(case) if isinstance(case, ObjectCase) else read_call(case)
        if call is None:
            continue
        key = (str(call.operator), tuple(None if x is None else (x.dtype, x.ndim) for x in call.inputs))
        if key not in seen:
            seen.add(key)
            found[call.operator.name].append(call)
    return {name: tuple(calls) for name, calls in found.items()}


def read_call(case: Case) -> Call | None:
    """Return a case as a call; None where it is refused or large."""
    if count_elements(case.inputs) > MAX_ELEMENTS:
        return None
    try:
        operator, inputs = build_operator(case)
    except InputError:
        return None
    schema = find_schema(operator.name)
    formals = () if schema is None else schema.inputs
    letters = tuple(formals[min(i, len(formals) - 1)].type_str if formals else "" for i in range(len(inputs)))
    call = Call(operator, inputs, letters)
    return call if call.takes(set(), None) else None


def cases_of_tests() -> Iterator[Case | ObjectCase]:
    """Return the cases that tests of operators are parametrized by."""
    for path in sorted(_HERE.rglob("test_*.py")):
        if path.stem in ("test_every_operator", "test_dtypes"):
            continue
        module = importlib.import_module(".".join(("tests.ops", *path.relative_to(_HERE).with_suffix("").parts)))
        for function in list(vars(module).values()):
            for mark in getattr(function, "pytestmark", ()) if callable(function) else ():
                if mark.name == "parametrize":
                    yield from (case for row in mark.args[1] for case in _find_cases(row))


def _find_cases(row: Any) -> Iterator[Case | ObjectCase]:
    given = getattr(row, "values", row)  # of pytest.param
    for each in given if isinstance(given, (tuple, list)) else (given,):
        if isinstance(each, Composed):
            yield Case(
                each.id,
                each.op,
                each.inputs,
                each.attributes,
                outputs=each.outputs,
                opset=OPSET if not each.domain else 1,
                domain=each.domain,
            )
        elif isinstance(each, ObjectCase) or (isinstance(each, Case) and not each.refusal):
            yield each


def read_object_case(case: ObjectCase) -> Call | None:
    """Return a case on host objects as a call; None where the model is more than the node."""
    read = gx.load(case.make_model()).info.graph
    if len(read.nodes) != 1:
        return None
    (node,), given = read.nodes, case.name_inputs()
    inputs = tuple(None if x is None or x.declared is None else pack(given[x.name], x.declared) for x in node.inputs)
    return Call(node.operator, inputs, ("",) * len(inputs))


def choose_calls(name: str, count: int) -> tuple[Call, ...]:
    """Return so many calls of an operator at most, of other attributes as long as there are such.

    Those that have kernels come first, and small ones.
    """

    def rank(call: Call) -> tuple[bool, bool]:
        specs = [None if x is None else TensorSpec.of(x) for x in call.inputs]
        held = [spec for spec in (*specs, *call.operator.infer(*specs)) if spec is not None and is_held(spec.dtype)]
        return bool(held) or not call.operator.is_lowered(specs), count_elements(call.inputs) > _SMALL

    calls = sorted(list_calls()[name], key=rank)
    firsts = {str(call.operator): call for call in reversed(calls)}
    return tuple(sorted(calls, key=lambda call: call is not firsts[str(call.operator)])[:count])


def list_asked(op: Operator, inputs: Inputs) -> set[int]:
    """Return the positions of the inputs that shapes depend on by their content."""
    if decomposition_for(op.name) is None:
        return find_known(op, inputs) or set()
    if not isinstance(op, Composite):  # what its size depends on is what it is about
        return set()
    try:
        op.infer(*(None if x is None else TensorSpec(x.shape, x.dtype) for x in inputs))
    except NeedsHostValue:  # by some of its parts, of some of its lists of integers
        return {i for i, x in enumerate(inputs) if x is not None and x.dtype.kind in "iu" and x.ndim < 2}
    return set()
