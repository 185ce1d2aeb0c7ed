"""Strings and containers through the look-alike, compared with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import gpuexec.compat.onnxruntime as ort
from gpuexec.compat.onnxruntime import capi
from tests.interfaces.compat.onnxruntime.sessions import CPU, SIMULATOR
from tests.model.objects import INPUTS, MIXED, ONE, are_equal

BOTH = pytest.mark.parametrize("provider", [CPU, SIMULATOR])
errors = capi.onnxruntime_pybind11_state
BYTES = MIXED.SerializeToString()


def make_original() -> Any:
    return onnxruntime.InferenceSession(BYTES, providers=["CPUExecutionProvider"])


def test_types_are_reported_as_the_original_reports_them() -> None:
    ours, theirs = ort.InferenceSession(BYTES, providers=[CPU]), make_original()
    for mine, other in (*zip(ours.get_inputs(), theirs.get_inputs()), *zip(ours.get_outputs(), theirs.get_outputs())):
        assert (mine.name, mine.type, mine.shape) == (other.name, other.type, other.shape)


@BOTH
@pytest.mark.parametrize("change", [{}, {"w": ["a", "b"]}, {"s": []}, {"w": np.array(["x"])}], ids=str)
def test_answers_are_those_of_the_original(provider: str, change: dict[str, Any]) -> None:
    feed = {**INPUTS, **change}
    got = ort.InferenceSession(BYTES, providers=[provider]).run(None, feed)
    assert are_equal(got, make_original().run(None, feed))


@BOTH
@pytest.mark.parametrize(
    ("name", "item"),
    [
        ("w", np.ones(2)),
        ("s", ONE),
        ("s", [np.ones(2, np.int64)]),
        ("w", np.array([b"\xff"])),
        ("w", np.array([b"\xff"], np.void)),
        ("w", [["a"], "b"]),
        ("w", np.zeros(2, [("a", np.int32)])),
    ],
    ids=str,
)
def test_inputs_of_another_kind_are_invalid(provider: str, name: str, item: Any) -> None:
    session = ort.InferenceSession(BYTES, providers=[provider])
    with pytest.raises(errors.InvalidArgument, match=f"Input '{name}'"):
        session.run(None, {**INPUTS, name: item})
    assert len(session.run(["v"], INPUTS)[0]) == 4


@BOTH
def test_only_tensors_of_numbers_are_bound(provider: str) -> None:
    session = ort.InferenceSession(BYTES, providers=[provider])
    binding = session.io_binding()
    with pytest.raises(RuntimeError, match="Only tensors of numbers are bound, got string"):
        binding.bind_cpu_input("w", INPUTS["w"])
    with pytest.raises(RuntimeError, match=r"Output 'v' is string\[m?k?\w*\]; values hold tensors of numbers alone"):
        binding.bind_output("v")
    with pytest.raises(RuntimeError, match=r"Output 't' is sequence\(float32"):
        session.run_with_ort_values(["t"], {})
    with pytest.raises(RuntimeError, match="Only tensors of numbers are bound"):
        ort.OrtValue.ortvalue_from_numpy(np.array(["a"], object))
    binding.bind_output("c")
