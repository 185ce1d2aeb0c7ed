"""Reference engines: a model run by one of them, which is named."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from gpuexec.errors import InputError, ModelError
from gpuexec.importer import run_oracle
from gpuexec.importer.oracle import ENGINES

X = np.array([-1.0, 2.0], np.float32)


def parse(text: str, imports: str = "") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": 18{imports}]> {text}')


@pytest.mark.parametrize("engine", ENGINES)
def test_engine_asked_for_runs(engine: str) -> None:
    model = parse("agraph (float[2] x) => (float[2] y, float[2] z) { y = Relu (x) z = Neg (x) }")
    ran, outputs = run_oracle(model, {"x": X}, engine)
    assert ran == engine
    assert {name: array.tolist() for name, array in outputs.items()} == {"y": [0.0, 2.0], "z": [1.0, -2.0]}


def test_onnxruntime_comes_first() -> None:
    assert run_oracle(parse("agraph (float[2] x) => (float[2] y) { y = Relu (x) }"), {"x": X})[0] == "onnxruntime"


def test_reference_runs_what_onnxruntime_can_not() -> None:
    model = parse("agraph (bfloat16[2] x) => (bfloat16[2] y) { y = Neg (x) }")
    ran, outputs = run_oracle(model, {"x": X.astype(ml_dtypes.bfloat16)})
    assert ran == "reference"
    assert outputs["y"].astype(np.float32).tolist() == [1.0, -2.0]


def test_reference_runs_where_onnxruntime_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    model = parse("agraph (float[2] x) => (float[2] y) { y = Relu (x) }")
    assert run_oracle(model, {"x": X})[0] == "reference"
    with pytest.raises(InputError, match="pip install onnxruntime"):
        run_oracle(model, {"x": X}, "onnxruntime")


@pytest.mark.parametrize("engine", ENGINES)
def test_external_data_is_found_from_a_path(engine: str, tmp_path: Path) -> None:
    model = parse("agraph (float[2] x) => (float[2] y) { y = Add (x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2], np.float32), "w"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    assert run_oracle(path, {"x": X}, engine)[1]["y"].tolist() == [0.0, 4.0]


def test_model_no_engine_runs_says_why() -> None:
    model = parse("agraph (float[2] x) => (float[2] y) { y = foo.Bar (x) }", ', "foo": 1')
    with pytest.raises(ModelError) as caught:
        run_oracle(model, {"x": X})
    assert "onnxruntime: " in str(caught.value)
    assert "reference: " in str(caught.value)


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match="one of onnxruntime, reference, got 'tvm'"):
        run_oracle(parse("agraph (float[2] x) => (float[2] y) { y = Relu (x) }"), {"x": X}, "tvm")
