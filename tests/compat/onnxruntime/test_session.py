"""Sessions of the look-alike: loading, running from many threads, options, profiles, what is given back."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import gpuexec as gx
import gpuexec.compat.onnxruntime as ort
from gpuexec.compat.onnxruntime import capi
from tests.compat.onnxruntime.sessions import (
    COUNTED,
    CPU,
    F32,
    FEED,
    SIMULATOR,
    TWO_OUTPUTS,
    WITH_DEFAULT,
    B,
    X,
    make_bytes,
    make_gated,
    make_session,
)
from tests.small_models import GATES

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


# ---- many at once


def test_runs_of_many_threads_go_on_at_once() -> None:
    gate = GATES.new()
    GATES.open[gate].set()
    meeting = threading.Barrier(3)
    session = ort.InferenceSession(make_gated(gate), providers=[CPU])
    # Each run waits in the gate until three are there.
    GATES.entered[gate].set = lambda: meeting.wait(30)  # type: ignore[method-assign,assignment]
    inputs = [np.full((1, 1), value, F32) for value in (1, 2, 3)]
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda x: session.run(None, {"x": x})[0], inputs))
    assert [answer.tolist() for answer in answers] == [[0], [0, 1, 2, 3], list(range(9))]


@BOTH
def test_more_threads_than_workers_get_their_own_answers(provider: str) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("gpuexec.workers", "2")
    session = make_session(provider=provider, options=options)

    def ask(number: int) -> bool:
        x = np.full((number % 5 + 1, 2), number, F32)
        return bool((session.run(["y"], {"x": x, "b": B})[0] == x + B).all())

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(ask, range(48)))


def test_async_run_answers_in_a_loop() -> None:
    session = make_session()

    async def ask(x: Any) -> list[Any]:
        loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def tell(results: list[Any], user_data: Any, error: str) -> None:
            assert user_data is done
            loop.call_soon_threadsafe(
                done.set_exception if error else done.set_result, RuntimeError(error) if error else results
            )

        session.run_async(["y"], {"x": x, "b": B}, tell, done)
        answer: list[Any] = await done
        return answer

    async def ask_all() -> list[list[Any]]:
        return await asyncio.gather(*(ask(X + number) for number in range(8)))

    for number, (y,) in enumerate(asyncio.run(ask_all())):
        np.testing.assert_array_equal(y, X + number + B)
    with pytest.raises(RuntimeError, match="float32, got float64"):
        asyncio.run(ask(X.astype(np.float64)))


def test_async_run_refuses_at_once_what_names_tell() -> None:
    session = make_session()
    with pytest.raises(ValueError, match=r"\['b'\] are missing"):
        session.run_async(None, {"x": X}, print, None)
    with pytest.raises(TypeError, match="callback"):
        session.run_async(None, FEED, None, None)  # type: ignore[arg-type]


def test_terminate_gives_up_a_run_under_way() -> None:
    gate = GATES.new()
    session = ort.InferenceSession(make_gated(gate), providers=[CPU])
    options = ort.RunOptions()
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(session.run, None, {"x": X[:1, 1:]}, options)
        assert GATES.entered[gate].wait(30)
        options.terminate = True
        GATES.open[gate].set()
        with pytest.raises(errors.Fail, match="terminate was set"):
            answer.result(30)
    options.terminate = False
    assert session.run(None, {"x": X[:1, 1:]}, options)[0].tolist() == [0, 1, 2, 3]


# ---- options


@BOTH
def test_initializers_are_overridden_by_run(provider: str) -> None:
    session = make_session(WITH_DEFAULT, provider)
    (told,) = session.get_overridable_initializers()
    assert (told.name, told.type, told.shape) == ("b", "tensor(float)", [2])
    for given, expected in (({}, [1, 2]), ({"b": B}, B), ({}, [1, 2]), ({"b": B * 10}, B * 10)):
        np.testing.assert_array_equal(session.run(None, {"x": X, **given})[0], X + np.array(expected, F32))


RANDOM = (
    "g (float[n] x, float[2] z = {0, 0}) => (float[4] a, float[4] b, float[2] c)"
    " { a = RandomNormal <shape = [4]> () b = RandomUniform <shape = [4], seed = 3.0> ()"
    " s = ReduceSum <keepdims = 0> (x) c = Add (z, s) }"
)
ONE = np.ones(1, F32)


@pytest.mark.parametrize("provider", [CPU, SIMULATOR])
def test_runs_of_a_session_draw_other_numbers_whichever_worker_has_them(provider: str) -> None:
    session = make_session(RANDOM, provider)
    made = [session.run(None, {"x": ONE}), session.run(None, {"x": ONE, "z": B}), session.run(None, {"x": ONE})]
    runner = session._runner
    with runner.running({"x": ONE}, None) as (_, one), runner.running({"x": ONE}, None) as (_, other):
        made += [[run.peek_output(name).readback_and_clone() for name in "ab"] for run in (one, other)]
    # A node with a seed of its own draws on from run to run, as the others do.
    for output in (0, 1):
        assert len({answer[output].tobytes() for answer in made}) == len(made)


def test_seed_of_the_process_is_that_of_sessions_made_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuexec.state.seeds._seed", None)
    monkeypatch.setattr("gpuexec.state.seeds._drawn", 0)
    rounds = []
    for order in ((0, 1), (1, 0)):
        ort.set_seed(-3)
        sessions = [make_session(RANDOM), make_session(RANDOM)]
        ort.set_seed(4)
        made = {index: sessions[index].run(["a", "b"], {"x": ONE}) for index in order}
        rounds.append([made[0], made[1]])
    np.testing.assert_array_equal(rounds[0], rounds[1])
    assert not np.any(rounds[0][0][0] == rounds[0][1][0])
    with pytest.raises(TypeError, match="Expected a seed, got 'x'"):
        ort.set_seed("x")  # type: ignore[arg-type]


def test_initializers_are_replaced_by_options() -> None:
    options = ort.SessionOptions()
    options.add_initializer("b", ort.OrtValue.ortvalue_from_numpy(B * 3))
    np.testing.assert_array_equal(make_session(WITH_DEFAULT, options=options).run(None, {"x": X})[0], X + B * 3)
    options.add_initializer("b", ort.OrtValue.ortvalue_from_numpy(X))
    with pytest.raises(errors.InvalidArgument, match=r"'b'|%b"):
        make_session(WITH_DEFAULT, options=options)


def test_dimensions_are_fixed_by_denotation() -> None:
    model = onnx.load_from_string(make_bytes())
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 3)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])
    assert session.get_inputs()[0].shape == [3, 2]
    np.testing.assert_array_equal(session.run(["y"], FEED)[0], X + B)
    with pytest.raises(errors.InvalidArgument, match="axis 0 must be 3"):
        session.run(None, {"x": X[:1], "b": B})


def test_graph_is_left_alone_or_written_as_rewritten(tmp_path: Path) -> None:
    text = "g (float[n, 2] x) => (float[n, 2] y) { a = Identity (x) b = Identity (a) y = Neg (b) }"
    counts = []
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        options.optimized_model_filepath = str(tmp_path / f"{level.name}.onnx")
        session = make_session(text, options=options)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], -X)
        counts.append(len(onnx.load(options.optimized_model_filepath).graph.node))
    assert counts == [3, 1]


def test_ignored_options_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuexec.compat.onnxruntime.notices._said", set())
    options = ort.SessionOptions()
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.dynamic_block_base", "4")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        make_session(options=options, disabled_optimizers=["X"])
        make_session(options=options, disabled_optimizers=["X"])
    texts = sorted(str(warning.message) for warning in said)
    assert len(texts) == 3 and all("ignore" in text for text in texts)
    assert {warning.filename for warning in said} == {make_session.__code__.co_filename}
    assert any("enable_mem_pattern" in text for text in texts)
    assert any("session.dynamic_block_base" in text for text in texts)
    assert any("disabled_optimizers" in text for text in texts)
    monkeypatch.setattr("gpuexec.compat.onnxruntime.notices._said", set())
    options.log_severity_level = 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_session(options=options, disabled_optimizers=["X"])


def test_options_refuse_other_names_and_types() -> None:
    options = ort.SessionOptions()
    with pytest.raises(AttributeError, match="no option 'threads'"):
        options.threads = 3
    for name, value in (
        ("intra_op_num_threads", "3"),
        ("inter_op_num_threads", True),
        ("enable_profiling", 1),
        ("graph_optimization_level", 99),
    ):
        with pytest.raises(TypeError, match=name):
            setattr(options, name, value)
    with pytest.raises(RuntimeError, match=r"no configuration entry 'a\.b'"):
        options.get_session_config_entry("a.b")
    options.add_session_config_entry("a.b", "1")
    assert options.get_session_config_entry("a.b") == "1"


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_are_bounded(threads: int) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    sessions = [make_session(options=options) for _ in range(2)]
    for session in sessions:
        np.testing.assert_array_equal(session.run(["y"], FEED)[0], X + B)
    device = sessions[0].backend.device
    assert device is sessions[1].backend.device and device is not make_session().backend.device
    if threads == 1:
        assert device.order is not None  # type: ignore[attr-defined]
    else:
        assert device.pool._max_workers == threads - 1  # type: ignore[attr-defined]


@BOTH
def test_profile_tells_of_nodes(provider: str, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = make_session(provider=provider, options=options)
    session.run(None, FEED)
    session.run(None, FEED)
    path = session.end_profiling()
    assert path.startswith(str(tmp_path / "profile")) and session.get_profiling_start_time_ns() > 0
    events = json.loads(Path(path).read_text())
    nodes = [event for event in events if event["cat"] == "Node"]
    assert [event["args"]["op_name"] for event in nodes] == ["Add", "Neg"] * 2
    assert {event["args"]["provider"] for event in nodes} == {provider}
    assert sum(event["cat"] == "Session" for event in events) == 2
    session.run(None, FEED)
    assert session.end_profiling() == ""


def test_profile_has_a_track_for_each_worker(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = make_session(options=options)
    runner = session._runner
    with runner.running(FEED, None), runner.running(FEED, None):
        pass
    events = json.loads(Path(session.end_profiling()).read_text())
    assert {(event["args"]["run"], event["tid"]) for event in events} == {("0", 0), ("1", 1)}
    for run in (event for event in events if event["cat"] == "Session"):
        nodes = [e for e in events if e["cat"] == "Node" and e["tid"] == run["tid"]]
        assert len(nodes) == 2
        assert all(run["ts"] <= e["ts"] and e["ts"] + e["dur"] <= run["ts"] + run["dur"] for e in nodes)


# ---- life


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


def test_session_goes_elsewhere_when_told_to() -> None:
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
