"""Rows on recordings: a run recorded once and submitted many times, and its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
import tests.ops.operators  # noqa: F401 (registers NoKernel)
from gpuexec.devices.backend import Backend
from tests.model.host_value_cases import ints, put_on_device
from tests.model.small_models import affine, expect_affine, ramp, trace, two_inputs, two_layers
from tests.system.features.held import holding
from tests.system.features.marks import on

X = ramp(2, 3)
Y = expect_affine(X)


def load(text: str) -> gx.Model:
    return gx.load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "test": 1]> agraph {text}'))


def test_s32_s33_a_recording_runs_again_and_again_on_new_inputs(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        expected = [worker.run(X + number)[0] for number in range(4)]
        with worker.record(X) as replay:
            for number in (0, 1, 2, 3, 0):
                made = replay.submit(X + number)
                np.testing.assert_array_equal(made["y"].readback_and_clone(), expected[number])
            np.testing.assert_array_equal(replay.submit()["y"].readback_and_clone(), expected[0])


@on("tracer")
def test_s32_recording_runs_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        before = len(trace(backend))
        with worker.record(X) as replay:
            done = trace(backend)[before:]
            assert not {"launch", "graph launch"} & set(done) and worker.report().runs == 0
            replay.submit()
            assert trace(backend)[before:].count("graph launch") == 1


def test_s32_s34_t8_recording_leaves_the_worker_as_it_was(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(X)
        y = worker.peek_output()
        replay = worker.record(X + 1)
        made = replay.submit()["y"]
        # Neither what the Worker holds, nor where its next run goes, is touched; nor the other way round.
        np.testing.assert_array_equal(y.readback_and_clone(), Y)
        run = worker.schedule(X + 2)
        run.wait()
        np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(X + 1))
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(X + 2))
        assert worker.report().runs == 2
        replay.close()
        np.testing.assert_array_equal(worker.run()[0], expect_affine(X + 2))
        with pytest.raises(gx.ClosedError):
            replay.submit()


def test_s32_a_submission_is_in_the_order_of_the_stream_it_is_put_on(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker, worker.record((2, 3)) as replay:
        mine = backend.device.create_stream()
        with holding(mine) as gate:
            made = replay.submit(X, stream=mine)["y"]
            assert not made.is_done()
            np.testing.assert_array_equal(worker.run(X + 1)[0], expect_affine(X + 1))  # on its own stream still
            assert not made.is_done()
            gate.set()
            np.testing.assert_array_equal(made.readback_and_clone(), Y)


@on("tracer")
def test_s33_a_replay_plans_compiles_and_allocates_nothing(backend: Backend) -> None:
    with gx.Worker(two_inputs(), backend=backend) as worker, worker.record([X, X]) as replay:
        replay.submit([X + 1, X])
        before, plans = len(trace(backend)), worker.report().plans
        for number in range(5):
            replay.submit({"left": X + number})
        done = trace(backend)[before:]
        assert set(done) == {"copy_to_device", "graph launch", "record"} and len(done) == 15
        assert worker.report().plans == plans


def test_s33_what_a_submission_leaves_out_stays(backend: Backend) -> None:
    with gx.Worker(two_inputs(), backend=backend) as worker, worker.record([X, X]) as replay:
        replay.submit({"left": 3 * X})
        made = replay.submit({"right": 2 * X})
        np.testing.assert_array_equal(made["sum"].readback_and_clone(), 5 * X)
        np.testing.assert_array_equal(made["difference"].readback_and_clone(), X)
        with pytest.raises(gx.InputError, match=r"'left' was recorded as float32\[2,3\], got float32\[4,3\]"):
            replay.submit([ramp(4, 3), ramp(4, 3)])
        with pytest.raises(gx.InputError, match=r"memory by name.*got a list"):
            replay.submit(outputs=[X])  # type: ignore[arg-type]
        np.testing.assert_array_equal(replay.submit()["sum"].readback_and_clone(), 5 * X)


LOOP = """(float[k] x, int64 n) => (float[k] y) {
  y = Loop (n, "", x) <body = b (int64 i, bool go, float[k] v) => (bool on, float[k] w) {
    on = Identity (go) w = Add (v, v)
  }>
}"""
READ = "(float[k] x) => (int64[1, m] y) { a = Neg (x) y = NonZero (a) }"
CALL = "(float[k] x) => (float[k] y) { a = Neg (x) b = test.NoKernel (a) y = Neg (b) }"


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (READ, {"x": (5,)}, "is read for NonZero"),
        (LOOP, {"x": (5,), "n": np.array(3)}, "Loop.* is driven by the host"),
    ],
    ids=["read", "loop"],
)
def test_s35_what_the_host_has_a_say_in_is_refused_with_the_reason(
    text: str, given: dict[str, Any], message: str, backend: Backend
) -> None:
    with gx.Worker(load(text), backend=backend) as worker:
        with pytest.raises(gx.ImplicitSyncError, match=message):
            worker.record(given)
        # The Worker runs it all the same.
        x = np.array([0, 1, 0, 2, 3], np.float32)
        got = worker.run({**given, "x": x})[0]
        np.testing.assert_array_equal(got, np.stack(np.nonzero(x)) if text is READ else 8 * x)


@on("simulator")
def test_s35_what_the_host_computes_is_refused_by_its_node(backend: Backend) -> None:
    with gx.Worker(load(CALL), backend=backend) as worker:
        with pytest.raises(gx.ImplicitSyncError, match=r"NoKernel.* is computed on the host"):
            worker.record((5,))
        assert worker.report().runs == 0


def test_s35_content_that_the_plan_follows_from_is_part_of_the_recording(backend: Backend) -> None:
    text = "(float[n] x, int64[r] shape) => (float[a, b] y) { y = Reshape (x, shape) }"
    with gx.Worker(load(text), backend=backend) as worker, worker.record({"x": ramp(6), "shape": ints(2, 3)}) as replay:
        np.testing.assert_array_equal(replay.submit({"x": ramp(6) + 1})["y"].readback_and_clone(), X + 1)
        for other in (ints(3, 2), put_on_device(ints(2, 3), backend)):
            with pytest.raises(gx.InputError, match=r"'shape' was recorded as \[2 3\]"):
                replay.submit({"shape": other})
