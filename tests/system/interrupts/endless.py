"""An endless run, and interrupts where a caller waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.latch import Wakeup
from tests.execution.runs.counted import load

Array = np.ndarray[Any, Any]
X = np.arange(12, dtype=np.float32).reshape(3, 4)
# The last number of trips that ONNX can say.
ENDLESS = 2**63 - 1
COUNTING = """(float[r, k] x, int64 n) => (float[r, k] y) {
  y = Loop (n, "", x) <body = b (int64 i, bool c, float[r, k] v) => (bool c_out, float[r, k] v_out) {
      c_out = Identity (c) step = Cast <to = 1> (i) v_out = Add (v, step)
  }>
}"""


def counting() -> gx.Model:
    """Return a model that adds 0, 1, 2... to x, in n trips."""
    return load(COUNTING)


def feeds(trips: int) -> dict[str, Array]:
    return {"x": X, "n": np.array(trips, np.int64)}


def expect(trips: int) -> Array:
    result: Array = X + np.float32(sum(range(trips)))
    return result


@contextmanager
def interrupted_waits(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException] = KeyboardInterrupt, first: int = 0
) -> Iterator[None]:
    """Raise in this thread where it begins to wait for what has not come, the first time or a later one."""
    thread, left, wait_for = threading.get_ident(), [first], Wakeup.wait_for

    def wait(self: Wakeup, is_over: Callable[[], bool], timeout_s: float | None = None) -> bool:
        if threading.get_ident() == thread and not is_over():
            left[0] -= 1
            if left[0] < 0:
                raise error
        return wait_for(self, is_over, timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(Wakeup, "wait_for", wait)
        yield
