"""For every operator registered, calls of it: from ONNX's suite, from the tables of cases of all tests, and by hand."""

from __future__ import annotations

import functools
import importlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.operator import Array, Operator
from gpuexec.spec import TensorSpec
from tests.ops.calls import Call, all_cases, find_schema, ramp
from tests.ops.harness import Case, build_operator
from tests.ops.microsoft.composed import DOMAIN, OPSET, Composed

MOST_ELEMENTS = 1 << 12
_HERE = Path(__file__).parent


def ours(name: str, *inputs: Array | None, domain: str = "gpuexec", **attributes: Any) -> Case:
    return Case(name, name, inputs, attributes, domain=domain)


# Operators that no table of cases has.
CALLS = (
    ours("Append", ramp(2, 3), ramp(1, 3), axis=0, capacity=8, memory="m"),
    ours("AttentionOverCache", ramp(1, 2, 3, 4) / 24, ramp(1, 2, 5, 4) / 40, ramp(1, 2, 5, 4)),
    ours("GroupHeads", ramp(1, 2, 3, 5, 4), np.array([0, 6, 5, 4])),
    ours("ImageToTensor", ramp(4, 5, 3, dtype=np.uint8), size=(3, 4)),
    ours("ImageToTensor", ramp(2, 4, 5, 3, dtype=np.uint8), scale=(0.5,), bias=(1.0, 2.0, 3.0), layout="NHWC"),
    ours("NextKey", ramp(2, dtype=np.uint64)),
    ours("NextKey", ramp(2, dtype=np.uint64), np.array(3)),
    ours("RemovePadding", ramp(2, 3, 4), np.array([1, 3], np.int32), domain=DOMAIN),
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
        call = read_call(case)
        if call is None:
            continue
        key = (str(call.operator), tuple(None if x is None else (x.dtype, x.ndim) for x in call.inputs))
        if key not in seen:
            seen.add(key)
            found[call.operator.name].append(call)
    return {name: tuple(calls) for name, calls in found.items()}


def read_call(case: Case) -> Call | None:
    """Return a case as a call; None where it is refused or large."""
    if sum(x.size for x in case.inputs if x is not None) > MOST_ELEMENTS:
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


def cases_of_tests() -> Iterator[Case]:
    """Return the cases that tests of operators are parametrized by."""
    for path in sorted(_HERE.rglob("test_*.py")):
        if path.stem in ("test_every_operator", "test_dtypes"):
            continue
        module = importlib.import_module(".".join(("tests.ops", *path.relative_to(_HERE).with_suffix("").parts)))
        for function in list(vars(module).values()):
            for mark in getattr(function, "pytestmark", ()) if callable(function) else ():
                if mark.name == "parametrize":
                    yield from (case for row in mark.args[1] for case in _find_cases(row))


def _find_cases(row: Any) -> Iterator[Case]:
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
        elif isinstance(each, Case) and not each.refusal:
            yield each


def find_known(operator: Operator, inputs: Sequence[Array | None]) -> set[int]:
    """Return the positions of the inputs whose content ``infer`` asks for.

    Raises:
        InputError: It refuses the inputs.
    """
    known: set[int] = set()
    while True:
        specs = [
            None if x is None else TensorSpec.of(x) if i in known else TensorSpec(x.shape, x.dtype)
            for i, x in enumerate(inputs)
        ]
        try:
            operator.infer(*specs)
        except NeedsHostValue as error:
            assert error.index not in known, f"{operator.name} asks twice for the content of input {error.index}"
            known.add(error.index)
        else:
            return known
