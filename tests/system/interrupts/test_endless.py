"""Cancellation of an endless run: by an interrupt of its call, by close, and at the end of the process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
import gpuexec.compat.onnxruntime as ort
from tests.execution.runs.counted import load
from tests.system.interrupts.endless import COUNTING, ENDLESS, X, counting, expect, feeds, interrupted_waits

ROOT = Path(__file__).resolve().parents[3]
# A guard against hangs, far above what a process takes to import, run and end.
LIMIT_S = 120.0


@pytest.fixture(params=[gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=["cpu", "simulator"])
def kind(request: pytest.FixtureRequest) -> gx.BackendType:
    assert isinstance(request.param, gx.BackendType)
    return request.param


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_run_that_is_interrupted_is_cancelled_and_the_next_one_is_right(
    kind: gx.BackendType, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    with gx.Worker(counting(), backend=kind) as worker:
        with interrupted_waits(monkeypatch, error), pytest.raises(error):
            worker.run(feeds(ENDLESS))
        assert not worker.is_closed
        (y,) = worker.run(feeds(3))
        np.testing.assert_array_equal(y, expect(3))


def test_interrupt_leaves_runs_that_others_began(kind: gx.BackendType, monkeypatch: pytest.MonkeyPatch) -> None:
    with gx.Worker(counting(), backend=kind) as worker:
        run = worker.schedule(feeds(ENDLESS))
        with interrupted_waits(monkeypatch), pytest.raises(KeyboardInterrupt):
            run.wait()
        assert not run.is_cancelled()
        with interrupted_waits(monkeypatch), pytest.raises(KeyboardInterrupt):
            worker.run(feeds(2))
        assert not run.is_cancelled() and run.cancel()
        np.testing.assert_array_equal(worker.run(feeds(2))[0], expect(2))


def test_method_that_is_interrupted_is_ready_for_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    program = gx.Program.build({"forward": counting()})
    with program.load_method("forward", backend=gx.BackendType.CPU) as method:
        with interrupted_waits(monkeypatch), pytest.raises(KeyboardInterrupt):
            method.execute(feeds(ENDLESS))
        method.execute(feeds(4))
        np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), expect(4))


def test_session_that_is_interrupted_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.model.control_models import ControlModel

    session = ort.InferenceSession(ControlModel(COUNTING, (), 21).parse().SerializeToString())
    with interrupted_waits(monkeypatch), pytest.raises(KeyboardInterrupt):
        session.run(None, feeds(ENDLESS))
    (y,) = session.run(None, feeds(5))
    np.testing.assert_array_equal(y, expect(5))
    session.close()


def test_state_is_what_it_was_before_a_run_that_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """(float[k] s, int64 n) => (float[k] y, float[k] left) {
      y = Loop (n, "", s) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {
          c_out = Identity (c) step = Cast <to = 1> (i) v_out = Add (v, step)
      }>
      left = Identity (y)
    }"""
    model = load(text).bind_state({"left": "s"})
    with gx.Worker(model, backend=gx.BackendType.CPU) as worker:
        worker.state.set({"s": np.ones(3, np.float32)})
        worker.run({"n": np.array(3, np.int64)})
        with interrupted_waits(monkeypatch), pytest.raises(KeyboardInterrupt):
            worker.run({"n": np.array(ENDLESS, np.int64)})
        np.testing.assert_array_equal(worker.state.get("s"), np.full(3, 4, np.float32))


def test_close_cancels_a_run_nobody_waits_for_and_says_so(
    kind: gx.BackendType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEXEC_CLOSE_GRACE", "0.01")
    worker = gx.Worker(counting(), backend=kind)
    run = worker.schedule(feeds(ENDLESS))
    with pytest.warns(RuntimeWarning, match="cancelled run 0: not done after 0.01 s, and nobody waits") as reported:
        worker.close()
    assert reported[0].filename == __file__
    assert run.is_cancelled() and worker.is_closed
    with pytest.raises(gx.CancelledError):
        run.wait()


def test_close_waits_for_what_somebody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_CLOSE_GRACE", "0.01")
    worker = gx.Worker(counting(), backend=gx.BackendType.CPU)
    request = worker.schedule(feeds(2000)).peek_output().readback_request()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        worker.close()
    np.testing.assert_allclose(request.result(), expect(2000))


def test_close_does_not_wait_for_a_readback_whose_wait_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_CLOSE_GRACE", "0.01")
    worker = gx.Worker(counting(), backend=gx.BackendType.CPU)
    request = worker.schedule(feeds(ENDLESS)).peek_output().readback_request()
    with interrupted_waits(monkeypatch), pytest.raises(KeyboardInterrupt):
        request.result()
    with pytest.warns(RuntimeWarning, match="nobody waits"):
        worker.close()
    with pytest.raises(gx.CancelledError):
        request.result()


def test_interrupt_of_close_ends_it_at_once(kind: gx.BackendType, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = gx.Worker(counting(), backend=kind)
    run = worker.schedule(feeds(ENDLESS))
    with interrupted_waits(monkeypatch), pytest.raises(KeyboardInterrupt):
        worker.close()
    assert worker.is_closed and run.is_cancelled()
    worker.close()
    with pytest.raises(gx.ClosedError):
        worker.run(feeds(1))


def test_block_that_is_interrupted_closes_without_waiting_or_warning(
    kind: gx.BackendType, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = gx.Worker(counting(), backend=kind)
    run = worker.schedule(feeds(ENDLESS))
    request = run.peek_output().readback_request()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyboardInterrupt), worker:
            raise KeyboardInterrupt
    assert run.is_cancelled()
    with pytest.raises(gx.CancelledError):
        request.result()


# A shell gives what it starts in the background SIGINT ignored, and children inherit that.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
SCRIPT = f"""
{HEED}
import sys
import gpuexec as gx
from tests.system.interrupts.endless import ENDLESS, counting, feeds

def stop(*_):
    raise SystemExit(7)

how, kind = sys.argv[1:]
if how == "SIGTERM with a handler":
    signal.signal(signal.SIGTERM, stop)
worker = gx.Worker(counting(), backend=gx.BackendType[kind])
worker.run(feeds(2))
run = worker.schedule(feeds(ENDLESS))
print("under way", flush=True)
if how == "exit":
    sys.exit(3)
if how in ("SIGINT", "SIGTERM", "SIGTERM with a handler"):
    run.wait()
"""
ENDS = {
    "end of the script": (None, 0),
    "exit": (None, 3),
    "SIGINT": (signal.SIGINT, -signal.SIGINT),
    "SIGTERM": (signal.SIGTERM, -signal.SIGTERM),
    "SIGTERM with a handler": (signal.SIGTERM, 7),
}


@pytest.mark.parametrize(
    ("kind", "how"), [*(("CPU", how) for how in ENDS), ("SIMULATOR", "end of the script"), ("SIMULATOR", "SIGINT")]
)
def test_process_ends_with_a_run_under_way(how: str, kind: str) -> None:
    """In every way on the CPU, and by itself and by a signal on the simulator: what ends a process asks no device."""
    sent, status = ENDS[how]
    command = [sys.executable, "-c", SCRIPT, how, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "under way\n", process.communicate()[1]
        if sent is not None:
            process.send_signal(sent)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == status, errors
    assert ("KeyboardInterrupt" in errors) == (how == "SIGINT") and "Exception ignored" not in errors, errors


def test_process_ends_with_a_run_of_a_session_under_way() -> None:
    script = """
import gpuexec.compat.onnxruntime as ort
from tests.model.control_models import ControlModel
from tests.system.interrupts.endless import COUNTING, ENDLESS, feeds

session = ort.InferenceSession(ControlModel(COUNTING, (), 21).parse().SerializeToString())
session.run_async(None, feeds(5), lambda outputs, *_: print(outputs[0].shape, flush=True), None)
session.run_async(None, feeds(ENDLESS), lambda *_: None, None)
"""
    environment = {**os.environ, "GPUEXEC_CLOSE_GRACE": "5"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=LIMIT_S,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "(3, 4)\n", "")


def test_command_line_ends_with_130_and_one_line(tmp_path: Path) -> None:
    path, trips = tmp_path / "counting.onnx", tmp_path / "n.npy"
    counting().save(path)
    np.save(tmp_path / "x.npy", X)
    np.save(trips, np.array(ENDLESS, np.int64))
    script = f"""
{HEED}
import _thread, sys, threading
from gpuexec.cli import main
from gpuexec.devices.latch import Wakeup

wait_for = Wakeup.wait_for
def wait(self, is_over, timeout_s=None):
    if threading.current_thread() is threading.main_thread() and not is_over():
        _thread.interrupt_main()
    return wait_for(self, is_over, timeout_s)
Wakeup.wait_for = wait
sys.exit(main(["run", {str(path)!r}, "--backend", "cpu", "--input", "x={tmp_path / "x.npy"}", "--input", "n={trips}"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (130, "gpuexec: interrupted\n")
