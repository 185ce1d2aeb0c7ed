"""Refusals of a replay: inputs that differ from the recorded ones; and captures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
import tests.ops.operators  # noqa: F401 (registers NoKernel)
from gpuexec.devices.backend import open_backend
from gpuexec.devices.recorder.tracer import TracerStream
from gpuexec.ir.spec import TensorSpec
from tests.execution.replay.replaying import SIMULATOR, Buffer, float32, on_both, read, take_calls
from tests.model.small_models import CPU, affine, expect_affine, make_tracer, ramp


@pytest.mark.feature("S33")
@on_both
def test_another_shape_is_refused_with_both(type: gx.BackendType) -> None:
    with gx.Worker(affine(), backend=type) as worker, worker.record(ramp(2, 3)) as replay:
        message = r"'x' was recorded as float32\[2,3\], got float32\[4,3\]; record another replay"
        with pytest.raises(gx.InputError, match=message):
            replay.submit(ramp(4, 3))
        with pytest.raises(gx.InputError, match="cast it"):
            replay.submit(ramp(2, 3).astype(np.float64))
        with pytest.raises(gx.InputError, match=r"memory by name.*got a list"):
            replay.submit(outputs=[ramp(2, 3)])  # type: ignore[arg-type]
        with pytest.raises(gx.InputError, match="no input 'z'"):
            replay.submit({"z": ramp(2, 3)})
        np.testing.assert_array_equal(read(replay.submit()), expect_affine(ramp(2, 3)))


LOOP = """(float[k] x, int64 n) => (float[k] y) {
  y = Loop (n, "", x) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {
    c_out = Identity (c)
    v_out = Add (v, v)
  }>
}"""


@pytest.mark.feature("S35")
@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("(float[k] x) => (int64[1, m] y) { y = NonZero (x) }", (5,), "'x' is read for NonZero"),
        (
            "(float[k] x) => (float[k] y) { a = Neg (x) b = test.NoKernel (a) y = Neg (b) }",
            (5,),
            "NoKernel.* is computed on the host",
        ),
        (LOOP, {"x": (5,), "n": np.int64(3)}, "Loop.* is driven by the host"),
    ],
)
def test_plan_with_work_of_the_host_is_refused_by_its_nodes(text: str, given: Any, message: str) -> None:
    model = gx.load(
        parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "test": 1]> agraph {text}').SerializeToString()
    )
    inputs = given if isinstance(given, dict) else {"x": given}
    with gx.Worker(model, backend=SIMULATOR) as worker:
        with pytest.raises(gx.ImplicitSyncError, match=rf"A replay runs without the host; in .*{message}"):
            worker.record({name: np.asarray(v) if isinstance(v, np.generic) else v for name, v in inputs.items()})
        assert not worker._engine.replays
        assert worker.report().runs == 0


def test_content_that_planning_read_stays() -> None:
    text = "(float[k] x, int64[r] shape) => (float[a, b] y) { y = Reshape (x, shape) }"
    model = gx.load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {text}').SerializeToString())
    shape = np.array([2, 3])
    with gx.Worker(model, backend=SIMULATOR) as worker:
        replay = worker.record({"x": ramp(6), "shape": shape})
        assert replay.submit({"shape": shape.copy(), "x": ramp(6) + 1})["y"].shape == (2, 3)
        with pytest.raises(gx.InputError, match=r"'shape' was recorded as \[2 3\], .* got \[3 2\]; record another"):
            replay.submit({"shape": np.array([3, 2])})
        with pytest.raises(gx.InputError, match="got content on a device"):
            replay.submit({"shape": Buffer(open_backend(SIMULATOR), TensorSpec((2,), np.dtype(np.int64)))})
        np.testing.assert_array_equal(read(replay.submit()), (ramp(6) + 1).reshape(2, 3))


@pytest.mark.parametrize("option", [{"synchronous": True}, {"compare_with": CPU}])
def test_worker_that_waits_for_each_command_records_nothing(option: dict[str, Any]) -> None:
    with gx.Worker(affine(), backend=SIMULATOR, **option) as worker:
        with pytest.raises(gx.StateError, match="synchronous, or compares"):
            worker.record(ramp(2, 3))
        np.testing.assert_array_equal(worker.run(ramp(2, 3))[0], expect_affine(ramp(2, 3)))


def test_second_caller_is_refused() -> None:
    with gx.Worker(affine(), backend=SIMULATOR) as worker, worker.record(ramp(2, 3)) as replay:
        with replay._exclusive, pytest.raises(gx.StateError, match="Another caller is inside this Replay"):
            replay.submit()
        replay.submit()


def test_capture_holds_the_commands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_tracer()
    x = Buffer(backend, float32(2, 3))
    with gx.Worker(affine(), backend=backend) as worker:
        replay = worker.record(x)
        monkeypatch.setattr(TracerStream, "is_capturing", lambda self: True)
        take_calls(backend)
        made = replay.submit()["y"]
        assert take_calls(backend) == ["launch"] * 3
        with pytest.raises(gx.StateError, match="was captured"):
            made.readback_and_clone()
        for given in ({"inputs": ramp(2, 3)}, {"outputs": {"y": None}}):
            with pytest.raises(gx.StateError, match="nothing can be given now"):
                replay.submit(**given)  # type: ignore[arg-type]
        with pytest.raises(gx.StateError, match="capturing"):
            worker.record(x)
        monkeypatch.undo()
        replay.submit()
        assert take_calls(backend)[-2:] == ["graph launch", "record"]


def test_capture_without_an_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with gx.Worker(affine(), backend=make_tracer()) as worker:
        replay = worker.record((2, 3))
        monkeypatch.setattr(TracerStream, "is_capturing", lambda self: True)
        with pytest.raises(gx.StateError, match="'x' was never given"):
            replay.submit()
