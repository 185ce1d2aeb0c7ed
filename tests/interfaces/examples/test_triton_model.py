"""The model of Triton's Python backend, against a stand-in of what it is served by."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from tests.interfaces.examples import triton_stand_in
from tests.interfaces.examples.triton_stand_in import Server

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CONFIG = {
    "max_batch_size": 64,
    "input": [{"name": "image", "data_type": "TYPE_FP32", "dims": [1, 8, 8]}],
    "output": [{"name": "logits", "data_type": "TYPE_FP32", "dims": [10]}],
}


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton_stand_in)  # type: ignore[misc]
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module("triton_model").TritonPythonModel()
    del sys.modules["triton_model"]


@pytest.fixture
def server(model: Any, tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "digits" / "1"
    folder.mkdir(parents=True)
    shutil.copy(EXAMPLES / "models" / "digits.onnx", folder / "model.onnx")
    server = Server(model, tmp_path / "digits", CONFIG)
    yield server
    server.close()


@pytest.fixture
def images() -> np.ndarray[Any, Any]:
    with np.load(EXAMPLES / "data" / "digits.npz") as data:
        return data["images"][-20:, None].astype(np.float32)  # type: ignore[no-any-return]


def test_requests_that_come_together_are_answered_with_their_rows(
    model: Any, server: Server, images: np.ndarray[Any, Any]
) -> None:
    with gx.Worker(EXAMPLES / "models" / "digits.onnx", backend="cpu") as worker:
        expected = worker.run(images)["logits"]
    counts = [1, 4, 3, 12]
    parts = np.split(images, np.cumsum(counts)[:-1])
    answers = server.infer([{"image": part} for part in parts], ["logits"])
    got = np.concatenate([answer["logits"] for answer in answers if not isinstance(answer, str)])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    assert model.worker.report().runs <= len(counts)
    assert server.infer([{"image": images[:2]}], []) == [{}]


def test_request_that_does_not_fit_is_answered_with_its_error_alone(
    server: Server, images: np.ndarray[Any, Any]
) -> None:
    wrong = [{"image": images[:2, :, :7]}, {"picture": images[:2]}, {"image": np.zeros((65, 1, 8, 8), np.float32)}]
    first, *errors, last = server.infer([{"image": images[:2]}, *wrong, {"image": images[:2]}], ["logits"])
    for error, said in zip(errors, ("'image'", "'picture'", "64"), strict=True):
        assert isinstance(error, str) and said in error
    assert isinstance(first, dict) and isinstance(last, dict)
    np.testing.assert_array_equal(first["logits"], last["logits"])


def test_model_is_closed_at_the_end(model: Any, server: Server, images: np.ndarray[Any, Any]) -> None:
    server.infer([{"image": images}], ["logits"])
    server.close()
    with pytest.raises(gx.ClosedError):
        model.worker.run(images)


def test_configuration_in_the_docstring_is_the_one_tested(model: Any) -> None:
    text = sys.modules["triton_model"].__doc__ or ""
    for kind in ("input", "output"):
        (declared,) = CONFIG[kind]  # type: ignore[misc]
        found = re.search(rf'{kind} \[ \{{ name: "(\w+)", data_type: (\w+), dims: \[ ([\d, ]+) \]', text)
        assert found is not None
        assert [found[1], found[2], [*map(int, found[3].split(","))]] == [*declared.values()]
    assert f"max_batch_size: {CONFIG['max_batch_size']}" in text
