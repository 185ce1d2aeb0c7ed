"""Options of sessions and of runs: effective, bounded, refused, or ignored with a warning."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

import gpuexec.compat.onnxruntime as ort
from gpuexec.compat.onnxruntime import capi
from tests.interfaces.compat.onnxruntime.sessions import (
    CPU,
    F32,
    FEED,
    SIMULATOR,
    WITH_DEFAULT,
    B,
    X,
    make_bytes,
    make_session,
)

BOTH = pytest.mark.parametrize("provider", [CPU, SIMULATOR])
errors = capi.onnxruntime_pybind11_state


@BOTH
def test_initializers_are_overridden_by_run(provider: str) -> None:
    session = make_session(WITH_DEFAULT, provider)
    (reported,) = session.get_overridable_initializers()
    assert (reported.name, reported.type, reported.shape) == ("b", "tensor(float)", [2])
    for given, expected in (({}, [1, 2]), ({"b": B}, B), ({}, [1, 2]), ({"b": B * 10}, B * 10)):
        np.testing.assert_array_equal(session.run(None, {"x": X, **given})[0], X + np.array(expected, F32))


@BOTH
def test_an_initializer_that_nothing_reads_is_taken_and_has_no_effect(provider: str) -> None:
    held = "<int64[2] a = {1, 2}, int64[2] b = {1, 2}>"
    session = make_session(f"g (int64[2] a, int64[2] b) => (bool[2] y) {held} {{ y = Equal (a, a) }}", provider)
    assert [each.name for each in session.get_overridable_initializers()] == ["a", "b"]
    given = np.int64([3, 4])
    for feed in ({"a": given, "b": given}, {"b": given}):
        np.testing.assert_array_equal(session.run(None, feed)[0], [True, True])
    with pytest.raises(errors.InvalidArgument, match="'b' expects int64"):
        session.run(None, {"b": given.astype(F32)})


@BOTH
def test_an_initializer_may_be_given_in_another_size_where_its_dimension_is_free(provider: str) -> None:
    text = "g (float[n] x, float[m] s) => (float[n] y, float[m] s) <float[1] s = {2}> { y = Mul (x, s) }"
    session = make_session(text, provider)
    (reported,) = session.get_overridable_initializers()
    assert reported.shape == ["m"]
    for given in (None, np.array([5, 6, 7], F32), np.array([3], F32)):
        y, s = session.run(None, {"x": np.ones(3, F32)} | ({} if given is None else {"s": given}))
        np.testing.assert_array_equal(s, [2] if given is None else given)
        np.testing.assert_array_equal(y, np.ones(3, F32) * s)


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
    monkeypatch.setattr("gpuexec.execution.state.seeds._seed", None)
    monkeypatch.setattr("gpuexec.execution.state.seeds._drawn", 0)
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
    assert device.threads == sessions[0].backend.threads == threads  # type: ignore[attr-defined]


@BOTH
def test_profile_reports_nodes(provider: str, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # the nodes of the file
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
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # the nodes of the file
    session = make_session(options=options)
    runner = session._runner
    with runner.running(FEED, None), runner.running(FEED, None):
        pass
    events = json.loads(Path(session.end_profiling()).read_text())
    tracks = sorted({(event["args"]["run"], event["tid"]) for event in events})
    assert tracks in ([("0", 0), ("1", 1)], [("0", 1), ("1", 0)])
    for run in (event for event in events if event["cat"] == "Session"):
        nodes = [e for e in events if e["cat"] == "Node" and e["tid"] == run["tid"]]
        assert len(nodes) == 2
        assert all(run["ts"] <= e["ts"] and e["ts"] + e["dur"] <= run["ts"] + run["dur"] for e in nodes)
