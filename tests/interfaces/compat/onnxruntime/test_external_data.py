"""External weights: given in place of files, and written beside the optimized graph."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as real
import pytest
from onnx import TensorProto, helper, numpy_helper

import gpuexec as gx
import gpuexec.compat.onnxruntime as ours
from gpuexec.compat.onnxruntime import capi
from tests.interfaces.compat.onnxruntime.sessions import CPU, F32, SIMULATOR

errors = capi.onnxruntime_pybind11_state
FILE_ENTRY = "session.optimized_model_external_initializers_file_name"
SIZE_ENTRY = "session.optimized_model_external_initializers_min_size_in_bytes"
W = np.arange(6, dtype=F32).reshape(2, 3)
LARGE = np.arange(2 * 3000, dtype=F32).reshape(2, 3000)
X = np.array([[1, 10]], F32)


def make_model(location: str = "w.bin", offset: int | None = None, weight: np.ndarray[Any, Any] = W) -> bytes:
    """Return a product with a weight in a file that is not there, and a bias inside."""
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=weight.shape, data_location=TensorProto.EXTERNAL)
    rows = {"location": location}
    if offset is not None:
        rows |= {"offset": str(offset), "length": str(weight.nbytes)}
    for key, value in rows.items():
        w.external_data.add(key=key, value=value)
    columns = weight.shape[1]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "v"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "outside",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])],
        [w, numpy_helper.from_array(np.ones(columns, F32), "v")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()  # type: ignore[no-any-return]


def give(ort: Any, *names: str, **values: np.ndarray[Any, Any]) -> Any:
    """Return options with content for initializers."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    held = [ort.OrtValue.ortvalue_from_numpy(value) for value in values.values()]
    options.add_external_initializers([*values, *names], held)
    return options


def give_files(ort: Any, **files: Any) -> Any:
    """Return options with files in memory, whose names have a dot for each double underscore."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    names = [name.replace("__", ".") for name in files]
    options.add_external_initializers_from_files_in_memory(
        names, list(files.values()), [memoryview(content).nbytes for content in files.values()]
    )
    return options


@pytest.mark.parametrize("provider", [CPU, SIMULATOR])
@pytest.mark.parametrize("is_path", [True, False])
def test_initializer_is_given_where_its_file_is_absent(is_path: bool, provider: str, tmp_path: Path) -> None:
    source: Any = make_model()
    if is_path:
        (tmp_path / "m.onnx").write_bytes(source)
        source = str(tmp_path / "m.onnx")
    expected = real.InferenceSession(source, give(real, w=W * 2), providers=[CPU]).run(None, {"x": X})
    options = give(ours, w=W * 2)
    for _ in range(2):
        got = ours.InferenceSession(source, options, providers=[provider]).run(None, {"x": X})
        np.testing.assert_array_equal(got, expected)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "no such initializer": lambda ort: give(ort, w=W, q=W),
    "one inside the model": lambda ort: give(ort, w=W, v=np.ones(3, F32)),
    "another shape": lambda ort: give(ort, w=W.T.copy()),
    "another type": lambda ort: give(ort, w=W.astype(np.float64)),
    "fewer values than names": lambda ort: give(ort, "v", w=W),
    "fewer files than names": lambda ort: ort.SessionOptions().add_external_initializers_from_files_in_memory(
        ["w.bin"], [], []
    ),
    "a file twice": lambda ort: ort.SessionOptions().add_external_initializers_from_files_in_memory(
        ["w.bin", "w.bin"], [W.tobytes()] * 2, [W.nbytes] * 2
    ),
    "a file of text": lambda ort: ort.SessionOptions().add_external_initializers_from_files_in_memory(
        ["w.bin"], ["x" * 24], [24]
    ),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_content_that_does_not_fit_is_refused_alike(make: Callable[[Any], Any]) -> None:
    def load(ort: Any) -> None:
        ort.InferenceSession(make_model(), make(ort), providers=[CPU])

    with pytest.raises(Exception) as expected:  # noqa: PT011  (which one is what is asked)
        load(real)
    kind = type(expected.value)
    with pytest.raises(kind if kind.__module__ == "builtins" else getattr(errors, kind.__name__)):
        load(ours)


@pytest.mark.parametrize("content", [bytes, bytearray, memoryview, np.frombuffer], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("weight", [W, LARGE], ids=["small", "large"])
def test_file_is_given_in_memory(content: Any, weight: np.ndarray[Any, Any]) -> None:
    raw = content(weight.tobytes()) if content is not np.frombuffer else np.frombuffer(weight.tobytes(), np.uint8)
    session = ours.InferenceSession(make_model(weight=weight), give_files(ours, w__bin=raw), providers=[CPU])
    if isinstance(raw, bytearray):
        raw[:] = bytes(len(raw))
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X @ weight + 1)


def test_places_within_files_in_memory_are_those_of_the_model() -> None:
    model = make_model("sub/w.bin", offset=8)
    options = ours.SessionOptions()
    content = b"12345678" + W.tobytes() + b"more"
    options.add_external_initializers_from_files_in_memory(["sub/w.bin"], [content], [len(content)])
    got = ours.InferenceSession(model, options, providers=[CPU]).run(None, {"x": X})
    np.testing.assert_array_equal(got[0], X @ W + 1)


def test_files_in_memory_stand_for_those_on_disk(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(make_model())
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    for options, weight in ((ours.SessionOptions(), W), (give_files(ours, w__bin=(W * 3).tobytes()), W * 3)):
        session = ours.InferenceSession(tmp_path / "m.onnx", options, providers=[CPU])
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], X @ weight + 1)
    for files, why in (({"z__bin": W.tobytes()}, "not among the files given: 'z.bin'"), ({"w__bin": b"1"}, "of the 1")):
        with pytest.raises(errors.InvalidGraph, match=why):
            ours.InferenceSession(tmp_path / "m.onnx", give_files(ours, **files), providers=[CPU])


def test_length_beyond_a_buffer_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"'w.bin' has 3 bytes; a length of 24"):
        ours.SessionOptions().add_external_initializers_from_files_in_memory(["w.bin"], [b"abc"], [24])


def test_models_are_loaded_with_files_in_memory() -> None:
    external = gx.ExternalData({"w.bin": W.tobytes()})
    with gx.Worker(gx.load(make_model(), external=external), backend=gx.BackendType.CPU) as worker:
        worker.schedule({"x": X})
        np.testing.assert_array_equal(worker.read_output("y"), X @ W + 1)
    with pytest.raises(gx.ModelError, match="load the model from its path"):
        gx.load(make_model())
    with pytest.raises(gx.InputError, match="no initializer 'p' to give content for"):
        gx.load(make_model(), external=gx.ExternalData(tensors={"p": W}))


@pytest.mark.parametrize("size", [None, "10", "24", "25"])
def test_rewritten_model_is_saved_with_weights_beside_it(size: str | None, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(make_model())
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    reported = []
    for ort in (real, ours):
        folder = tmp_path / ort.__name__
        folder.mkdir()
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.optimized_model_filepath = str(folder / "rewritten.onnx")
        options.add_session_config_entry(FILE_ENTRY, "rewritten.bin")
        if size is not None:
            options.add_session_config_entry(SIZE_ENTRY, size)
        ort.InferenceSession(tmp_path / "m.onnx", options, providers=[CPU])
        model = onnx.load(folder / "rewritten.onnx", load_external_data=False)
        reported.append((sorted(os.listdir(folder)), {w.name: w.data_location for w in model.graph.initializer}))
        got = real.InferenceSession(folder / "rewritten.onnx", providers=[CPU]).run(None, {"x": X})
        np.testing.assert_array_equal(got[0], X @ W + 1)
    assert reported[0] == reported[1]


@pytest.mark.parametrize("size", ["many", "-1"])
def test_size_that_is_none_is_refused(size: str, tmp_path: Path) -> None:
    options = give(ours, w=W)
    options.optimized_model_filepath = str(tmp_path / "rewritten.onnx")
    options.add_session_config_entry(SIZE_ENTRY, size)
    with pytest.raises(errors.Fail, match=f"takes a number of bytes, got '{size}'"):
        ours.InferenceSession(make_model(), options, providers=[CPU])
    assert not list(tmp_path.iterdir())
