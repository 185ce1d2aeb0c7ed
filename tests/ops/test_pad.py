"""Pad."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec.ops.tensor.pad  # noqa: F401 (registers the operator)
from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build
from gpuexec.ir.spec import COMPUTED, TensorSpec
from tests.ops.harness import Array, Case, run_case


def arange(*shape: int, dtype: Any = np.float32) -> Array:
    return (np.arange(np.prod(shape, dtype=int)) + 1).reshape(shape).astype(dtype)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def pad(id: str, x: tuple[int, ...], pads: tuple[int, ...], mode: str = "constant", *more: Any, **options: Any) -> Case:
    inputs = (arange(*x), ints(*pads), *more)
    return Case(f"{mode}_{id}", "Pad", inputs, {"mode": mode}, const=(1, 3), **options)


ANY_MODE = [
    (f"{id}", shape, pads, mode)
    for mode in ("constant", "reflect", "edge", "wrap")
    for id, shape, pads in [
        ("two_axes", (3, 4), (1, 2, 2, 0)),
        ("inner", (2, 3, 5), (0, 0, 2, 0, 0, 3)),
        ("outer", (3, 2, 5), (2, 0, 0, 1, 0, 0)),
        ("nothing", (3, 4), (0, 0, 0, 0)),
        ("one_element", (1, 3), (2, 0, 1, 0)),
    ]
]
CASES = [pad(*row[:3], mode=row[3]) for row in ANY_MODE]
CASES += [
    pad("value", (3, 4), (1, 2, 2, 0), "constant", np.array(1.5, np.float32)),
    pad("value_of_rank_one", (3, 4), (1, 2, 2, 0), "constant", np.array([1.5], np.float32), oracle="onnxruntime"),
    pad("axes", (2, 3, 4), (1, 2), "constant", np.array(9, np.float32), ints(1)),
    pad("axes_unsorted", (2, 3, 4), (1, 0, 0, 2), "edge", None, ints(-1, 0)),
    pad("no_axes", (2, 3), (), "constant", None, ints()),
    pad("scalar", (), (), expected=(arange(),)),
    pad("empty", (0, 3), (1, 1, 2, 0), "constant", np.array(7, np.float32)),
    pad("cut", (4, 5), (-1, 0, 0, -2), oracle="onnxruntime"),
    pad("cut_and_padded", (4, 5), (-1, 2, 3, -4), oracle="onnxruntime"),
    pad("cut", (4, 5), (-1, 0, 0, -2), "reflect", oracle="onnxruntime"),
    pad("cut_to_nothing", (4, 5), (-4, 0, 0, 0), "edge", expected=(arange(0, 5),)),
    pad("cut_and_padded", (6,), (-2, 3), "reflect", expected=(np.array([3, 4, 5, 6, 5, 4, 3], np.float32),)),
    pad("sees_only_what_is_left", (4,), (-2, 3), "reflect", expected=(np.array([3, 4, 3, 4, 3], np.float32),)),
    pad("cut_all_but_padded", (3,), (-5, 4), "constant", expected=(np.zeros(2, np.float32),)),
    pad("longer_than_input", (3,), (7, 9), "reflect", expected=(np.pad(arange(3), (7, 9), "reflect"),)),
    pad("longer_than_input", (3,), (7, 9), "wrap", expected=(np.pad(arange(3), (7, 9), "wrap"),)),
    Case("old", "Pad", (arange(3, 4),), {"pads": [1, 0, 0, 2]}, opset=7),
    Case("old_value", "Pad", (arange(3, 4),), {"pads": [1, 0, 0, 2], "value": 2.5, "mode": "constant"}, opset=10),
    Case("old_reflect", "Pad", (arange(3, 4),), {"pads": [1, 0, 0, 2], "mode": "reflect"}, opset=8),
    Case(
        "old_half",
        "Pad",
        (arange(2, dtype=np.float16),),
        {"pads": [1, 0], "value": 0.3},
        opset=10,
        expected=(np.array([0.3, 1, 2], np.float16),),
    ),
    Case("strided", "Pad", (arange(6, 8)[::-2, ::3].T, ints(1, 0, 2, 1)), {"mode": "reflect"}, const=(1,)),
    Case("rank_nine", "Pad", (arange(2, 1, 1, 2, 1, 1, 2, 1, 2), ints(*(0,) * 8, 1, *(0,) * 8, 1)), const=(1,)),
]
CASES += [
    Case(
        f"{mode}_{row.name}",
        "Pad",
        (x, ints(1, 2), np.array(1).astype(row.numpy)),
        {"mode": mode},
        const=(1,),
        expected=(x[picked] if mode != "constant" else np.array([1, *x, 1, 1]).astype(row.numpy),),
    )
    for row in COMPUTED
    for x in [np.array([0, 1, 2, 3]).astype(row.numpy)]
    for mode, picked in [
        ("constant", []),
        ("reflect", [1, 0, 1, 2, 3, 2, 1]),
        ("edge", [0, 0, 1, 2, 3, 3, 3]),
        ("wrap", [3, 0, 1, 2, 3, 0, 1]),
    ]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_pad(checks: str, case: Case) -> None:
    run_case(case, checks)


def known(*values: int) -> TensorSpec:
    return TensorSpec.of(ints(*values))


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("mode", "specs", "message"),
    [
        ("mirror", (spec(3), known(1, 1)), "must be one of constant, reflect, edge, wrap"),
        ("constant", (spec(3), known(1)), "a begin and an end for each of 1 axes"),
        ("constant", (spec(3, 4), known(1, 1), None, known(2)), "axes is out of range"),
        ("constant", (spec(3, 4), known(1, 1, 1, 1), None, known(0, -2)), "name each axis once"),
        ("constant", (spec(3), known(-2, -2)), "cut more than axis 0 has"),
        ("edge", (spec(0), known(1, 1)), "needs an element on axis 0, got extent 0"),
        ("reflect", (spec(3), known(-3, 1)), "got extent 0 after cutting"),
        ("constant", (spec(3), known(1, 1), spec(2)), "constant_value must hold one element"),
        ("constant", (spec(3, dtype=np.int32), known(1, 1), spec()), "constant_value of the type of int32"),
    ],
)
def test_infer_refuses(mode: str, specs: tuple[TensorSpec | None, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("Pad", {"mode": mode}).infer(*specs)


@pytest.mark.parametrize("lacking", [1, 3])
def test_infer_asks_for_content_it_lacks(lacking: int) -> None:
    specs = [spec(3), known(1, 1), None, known(0)]
    specs[lacking] = spec(2 if lacking == 1 else 1, dtype=np.int64)
    with pytest.raises(NeedsHostValue) as caught:
        build("Pad", {}).infer(*specs)
    assert caught.value.index == lacking


def test_constant_of_another_type_must_be_known() -> None:
    with pytest.raises(NeedsHostValue):
        build("Pad", {}).infer(spec(3, dtype=np.float16), known(1, 1), spec())
