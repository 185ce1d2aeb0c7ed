"""Sessions of the look-alike: loading, inputs and outputs."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import gpuexec as gx
import gpuexec.compat.onnxruntime as ort
from gpuexec.compat.onnxruntime import capi
from tests.interfaces.compat.onnxruntime.sessions import (
    COUNTED,
    CPU,
    F32,
    FEED,
    SIMULATOR,
    TWO_OUTPUTS,
    B,
    X,
    make_bytes,
    make_session,
)

BOTH = pytest.mark.parametrize("provider", [CPU, SIMULATOR])
errors = capi.onnxruntime_pybind11_state


@BOTH
def test_session_runs_from_path_and_bytes(provider: str, tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(make_bytes())
    for source in (path, str(path), path.read_bytes()):
        session = ort.InferenceSession(source, providers=[provider])
        assert session.get_providers()[0] == provider
        y, z = session.run(None, FEED)
        np.testing.assert_array_equal(y, X + B)
        np.testing.assert_array_equal(z, -(X + B))
        y[...] = 0
        np.testing.assert_array_equal(session.run(["y"], FEED)[0], X + B)


@BOTH
def test_weights_beside_the_model_are_found(provider: str, tmp_path: Path) -> None:
    weight = np.arange(6, dtype=F32).reshape(2, 3)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 2])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "outside", [x], [y], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    session = ort.InferenceSession(tmp_path / "m.onnx", providers=[provider])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ weight, rtol=1e-6)


@BOTH
def test_inputs_of_other_packages_and_values_are_taken(provider: str) -> None:
    class Foreign:
        """An array of a package that speaks DLPack and nothing else."""

        def __dlpack__(self, **options: Any) -> object:
            return X.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return X.__dlpack_device__()

    session = make_session(provider=provider)
    for item in (X, Foreign(), ort.OrtValue.ortvalue_from_numpy(X), X.tolist()):
        np.testing.assert_array_equal(session.run(["y"], {"x": item, "b": B})[0], X + B)


def test_list_that_would_lose_something_is_refused() -> None:
    session = make_session("g (int64[n] x) => (int64[n] y) { y = Neg (x) }")
    with pytest.raises(errors.InvalidArgument, match=r"expects int64\[n\], got a list"):
        session.run(None, {"x": [1.5]})
    np.testing.assert_array_equal(session.run(None, {"x": [1, 2]})[0], [-1, -2])


def test_unsupported_models_are_refused_with_all_that_is_missing() -> None:
    text = "g (float[n] x) => (float[n] y) { a = NoSuchThing (x) y = NorThat (a) }"
    with pytest.raises(errors.NotImplemented) as caught:
        make_session(text)
    assert "NoSuchThing" in str(caught.value) and "NorThat" in str(caught.value)
    assert isinstance(caught.value, gx.UnsupportedError) and isinstance(caught.value.__cause__, gx.UnsupportedError)


def test_session_let_go_of_gives_its_workers_back_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = make_session()
        session.run(None, FEED)
        del session
        gc.collect()


def test_closed_session_says_so() -> None:
    session = make_session()
    session.run(None, FEED)
    session.close()
    session.close()
    with pytest.raises(errors.Fail, match="closed"):
        session.run(None, FEED)
    with pytest.raises(errors.Fail, match="closed"):
        session.run_async(None, FEED, print, None)


def test_session_goes_elsewhere_when_asked_to() -> None:
    session = make_session()
    session.run(None, FEED)
    session.set_providers([SIMULATOR])
    assert session.get_providers() == [SIMULATOR, CPU]
    with session._runner.running(FEED, None) as (worker, _):
        assert worker.backend_type is gx.BackendType.SIMULATOR
    np.testing.assert_array_equal(session.run(["y"], FEED)[0], X + B)
    with pytest.raises(ValueError, match="one for each"):
        session.set_providers([CPU], [{}, {}])
    assert session.get_providers() == [SIMULATOR, CPU]
    session.disable_fallback()
    assert session.run(["y"], FEED)


@BOTH
def test_arena_shrinks_when_asked_to(provider: str) -> None:
    text = "g (float[n, n] x) => (float[n, n] y) { a = MatMul (x, x) y = MatMul (a, a) }"
    session, options = make_session(text, provider), ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    held = []
    for count, each in ((2, None), (64, None), (64, options)):
        x = np.eye(count, dtype=F32)
        np.testing.assert_array_equal(session.run(None, {"x": x}, each)[0], x)
        with session._runner._find_pool(frozenset()).lending() as worker:
            held.append(worker.memory_stats()["arena"])
    # The arena that was outgrown goes, the one in use stays.
    assert held[1] == held[0] + held[2] and held[2] > held[0]


def test_fallback_to_the_host_can_be_refused() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = make_session(COUNTED, SIMULATOR, options)
    with pytest.raises(errors.Fail, match="would have to read"):
        session.run(None, {"x": X[:2]})
    assert make_session(COUNTED, CPU, options).run(None, {"x": X[:2]})[0].shape == (22,)
    assert make_session(TWO_OUTPUTS, SIMULATOR, options).run(None, FEED)
    with pytest.raises(errors.EPFail, match="TensorrtExecutionProvider"):
        make_session(TWO_OUTPUTS, "TensorrtExecutionProvider", options)
