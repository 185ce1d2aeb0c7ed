"""Concurrent use of sessions: threads, event loops, and cancelled runs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import gpuexec.compat.onnxruntime as ort
from gpuexec.compat.onnxruntime import capi
from tests.interfaces.compat.onnxruntime.sessions import CPU, F32, FEED, SIMULATOR, B, X, make_gated, make_session
from tests.model.small_models import GATES

BOTH = pytest.mark.parametrize("provider", [CPU, SIMULATOR])
errors = capi.onnxruntime_pybind11_state


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


def test_async_run_refuses_at_once_what_names_show() -> None:
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
