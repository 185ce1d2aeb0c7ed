"""Windows of signals and MelWeightMatrix against formulas in double."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.signal.mel import MelWeightMatrix, make_matrix
from gpuexec.ops.signal.signal_window import COEFFICIENTS, WINDOWS
from tests.ops.harness import Array, Case, run_case

TYPES = (
    *(np.float32, np.float64, np.float16, ml_dtypes.bfloat16),
    *(np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
)


def window(name: str, size: int, dtype: Any = np.float32, periodic: int = 1, **options: Any) -> Case:
    """A window worked out the long way; integers have only their largest value, exactly 1, left."""
    a0, a1, a2 = {"HannWindow": (0.5, 0.5, 0), "HammingWindow": (25 / 46, 21 / 46, 0)}.get(name, (0.42, 0.5, 0.08))
    period = size if periodic else size - 1
    values = []
    for i in range(size):
        angle = 2 * np.pi * i / period if period else np.nan
        values.append(1.0 if period and 2 * i == period else a0 - a1 * np.cos(angle) + a2 * np.cos(2 * angle))
    expected = np.array(values)
    if np.dtype(dtype).kind in "iu":
        expected = np.trunc(np.nan_to_num(expected))
    attributes = {"output_datatype": dtype_row(np.dtype(dtype)).code, "periodic": periodic}
    label = f"{name}_{size}_{np.dtype(dtype).name}{'' if periodic else '_symmetric'}"
    inputs = options.pop("inputs", (np.array(size, np.int64),))
    return Case(label, name, inputs, attributes, (0,), expected=(expected.astype(dtype),), terms=4, **options)


CASES = [
    # Large ones are made by the kernel, small ones on the host.
    *(window(name, 2100, t, periodic) for name in COEFFICIENTS for t in TYPES for periodic in (0, 1)),
    *(window(name, size, periodic=periodic) for name in COEFFICIENTS for size in (0, 1, 2, 11) for periodic in (0, 1)),
    window("HannWindow", 10, np.float64),
    window("HannWindow", 1, np.int32, 0),
    window("HannWindow", 6, inputs=(np.array([6], np.int32),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_window(checks: str, case: Case) -> None:
    run_case(case, checks)


def numbers(bands: int, length: int, rate: int, lower: float, upper: float, **types: Any) -> tuple[Array, ...]:
    counts, edges = types.get("counts", np.int64), types.get("edges", np.float32)
    return (*(np.array(x, counts) for x in (bands, length, rate)), *(np.array(x, edges) for x in (lower, upper)))


def mel(id: str, inputs: tuple[Array, ...], dtype: Any = np.float32) -> Case:
    attributes = {"output_datatype": dtype_row(np.dtype(dtype)).code}
    return Case(id, "MelWeightMatrix", inputs, attributes, (0, 1, 2, 3, 4))


MEL_CASES = [
    *(mel(np.dtype(t).name, numbers(8, 16, 8192, 0, 4096), t) for t in TYPES if t != ml_dtypes.bfloat16),
    mel("wide", numbers(40, 400, 16000, 20, 8000)),
    mel("double_edges", numbers(80, 512, 22050, 0.5, 11025, edges=np.float64, counts=np.int32)),
    mel("odd_length", numbers(5, 31, 8000, 100, 4000)),
    mel("narrow_bands", numbers(30, 16, 8192, 0, 4096)),
]


@pytest.mark.parametrize("case", MEL_CASES, ids=lambda case: case.id)
def test_mel_weights(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_mel_triangles_are_those_worked_by_hand() -> None:
    """Two bands: edges at bins 0, 1, 3, 7 of 2595 log10(1 + f / 700)."""
    hertz = 700 * (10 ** (np.arange(4) / 4 * np.log10(1 + 4000 / 700)) - 1)
    assert np.floor(17 * hertz / 8000).tolist() == [0, 0, 2, 4]
    expected = np.zeros((9, 2))
    expected[0, 0], expected[1, 0] = 1, 0.5
    expected[1, 1], expected[2, 1], expected[3, 1] = 0.5, 1, 0.5
    np.testing.assert_array_equal(make_matrix(2, 16, 8000, 0, 4000), expected)


@pytest.mark.parametrize("name", [*COEFFICIENTS, "MelWeightMatrix"])
def test_attributes_are_those_of_the_standard(name: str) -> None:
    attributes = onnx.defs.get_schema(name).attributes
    defaults = {key: each.default_value.i for key, each in attributes.items()}
    cls: Any = {**WINDOWS, "MelWeightMatrix": MelWeightMatrix}[name]
    assert cls() == cls(**defaults)


@pytest.mark.parametrize(
    ("attributes", "size", "message"),
    [
        ({}, np.array(-1), "a size of 0 or more and a number as output, got -1 and float32"),
        ({"output_datatype": 9}, np.array(4), "got 4 and bool"),
        ({}, np.array(4.0), "HannWindow expects size of type int32, int64"),
        ({}, np.array([4, 5]), "must hold one element"),
    ],
)
def test_window_refuses(attributes: dict[str, int], size: Array, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("HannWindow", attributes).infer(TensorSpec.of(size))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (numbers(0, 16, 8192, 0, 4096), "of 1 or more, got 0, 16 and 8192"),
        (numbers(8, 16, 8192, 0, 5000), "upper <= 4096.0 hertz, half the sample rate, got 0.0 and 5000.0"),
        (numbers(8, 16, 8192, -1, 4096), "got -1.0 and 4096.0"),
        (numbers(8, 16, 8192, 4096, 4096), "got 4096.0 and 4096.0"),
        (numbers(8, 16, 8192, float("nan"), 4096), "got nan and 4096.0"),
        (numbers(8, 16, 8192, 0, 4096, edges=np.int64), "lower_edge_hertz of type"),
    ],
)
def test_mel_weights_refuse(inputs: tuple[Array, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("MelWeightMatrix", {}).infer(*map(TensorSpec.of, inputs))


def test_sizes_are_asked_for() -> None:
    with pytest.raises(NeedsHostValue, match="size"):
        build("HannWindow", {}).infer(TensorSpec((), np.dtype(np.int64)))
