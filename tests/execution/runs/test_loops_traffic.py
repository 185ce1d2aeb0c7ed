"""Copies of Loop and Scan: carried values stay on the device, and only conditions are read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from tests.execution.runs.counted import COUNTED, LARGE, load
from tests.model.control_models import number
from tests.model.small_models import make_tracer, trace

Array = np.ndarray[Any, Any]
SIMULATOR = gx.BackendType.SIMULATOR
TESTED = """(float[r, k] x, float limit) => (float[r, k] y) <bool yes = {1}> {
  y = Loop ("", yes, x) <body = b (int64 i, bool c, float[r, k] v) => (bool c_out, float[r, k] v_out) {
      v_out = Add (v, v) size = ReduceMax <keepdims = 0> (v_out) c_out = Less (size, limit)
  }>
}"""
SCANNED = """(float[r, k] x) => (float[k] y, float[r, k] rows) <int64[1] axis = {0}> {
  start = ReduceSum <keepdims = 0> (x, axis)
  y, rows = Scan <num_scan_inputs = 1, body = b (float[k] s, float[k] e) => (float[k] s_out, float[k] made) {
    s_out = Add (s, e) made = Neg (s_out)
  }> (start, x)
}"""


def count_copies(text: str, feed: dict[str, Array]) -> Counter[object]:
    """Return how often each kind of copy to or from the host is put on the stream in a second run, by its bytes."""
    backend = make_tracer()
    with gx.Worker(load(text), backend=backend) as worker:
        worker.schedule(feed).wait()
        rows = len(trace(backend))
        worker.schedule(feed).wait()
        log = backend.device.log[rows:]  # type: ignore[attr-defined]
    return Counter((row[0], row[2]) for row in log if row[0] in ("copy_to_host", "copy_to_device"))


def align(nbytes: int) -> int:
    """Return what an input takes in the one upload of a run."""
    return -(-nbytes // 256) * 256


@pytest.mark.parametrize("trips", [1, 7, 40])
def test_counted_loop_copies_its_inputs_to_the_device_and_nothing_back(trips: int) -> None:
    copies = count_copies(COUNTED, {"x": LARGE, "n": number(trips)})
    assert copies == {("copy_to_device", align(LARGE.nbytes) + align(8)): 1}


def test_scan_copies_its_inputs_to_the_device_and_nothing_back() -> None:
    copies = count_copies(SCANNED, {"x": LARGE})
    assert copies == {("copy_to_device", align(LARGE.nbytes)): 1}


def test_loop_that_tests_reads_its_test_alone() -> None:
    with gx.Worker(load(TESTED), backend=SIMULATOR) as worker:
        answer = worker.run({"x": LARGE, "limit": np.array(100, np.float32)})[0]
        (row,) = worker.report().host_reads
    np.testing.assert_array_equal(answer, LARGE * 128)
    assert (row.nbytes, row.times) == (7 * 4, 7)


def test_loop_on_the_simulator_reads_nothing_and_uploads_nothing_in_its_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuexec.devices.simulator.stream import SimulatorStream

    counts: Counter[str] = Counter()
    for name in ("copy_to_host", "copy_to_device"):
        real = getattr(SimulatorStream, name)

        def counted(self: Any, *given: Any, _name: str = name, _real: Any = real) -> None:
            counts[_name] += 1
            _real(self, *given)

        monkeypatch.setattr(SimulatorStream, name, counted)
    with gx.Worker(load(COUNTED), backend=SIMULATOR) as worker:
        for trips in (2, 30):
            counts.clear()
            worker.schedule({"x": LARGE, "n": number(trips)}).wait()
            assert counts == {"copy_to_device": 1}
