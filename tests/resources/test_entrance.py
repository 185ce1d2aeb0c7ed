"""Entrance: one caller at a time, and none once it is closed."""

from __future__ import annotations

import threading

import pytest

import gpuexec as gx
from gpuexec.resources.entrance import Entrance
from gpuexec.runtime.backend import BackendType, open_backend


@pytest.fixture
def entrance() -> Entrance:
    return Entrance(open_backend(BackendType.CPU), "Somebody is inside.", "It is closed.")


def test_second_caller_is_refused_and_the_next_is_let_in(entrance: Entrance) -> None:
    with entrance:
        with pytest.raises(gx.StateError, match="Somebody is inside"), entrance:
            pass
        assert not entrance.try_enter()
    assert entrance.try_enter()
    entrance.leave()
    with entrance:
        pass


def test_caller_that_raises_leaves(entrance: Entrance) -> None:
    with pytest.raises(ZeroDivisionError), entrance:
        raise ZeroDivisionError
    assert entrance.try_enter()


def test_nobody_is_let_in_once_it_is_closed(entrance: Entrance) -> None:
    entrance.check_open()
    with entrance:
        entrance.is_closed = True
    with pytest.raises(gx.ClosedError, match="It is closed"):
        entrance.check_open()
    with pytest.raises(gx.ClosedError, match="It is closed"), entrance:
        pass
    assert entrance.try_enter()  # who was refused is not inside


def test_caller_that_came_as_it_was_closed_is_refused_and_not_inside(entrance: Entrance) -> None:
    """Closed by whoever was inside, between the look at `is_closed` and the lock."""

    class Lock:
        def __init__(self) -> None:
            self._lock = threading.Lock()
            self.release = self._lock.release

        def acquire(self, blocking: bool = True) -> bool:
            entrance.is_closed = True
            return self._lock.acquire(blocking)

    lock = entrance._lock = Lock()  # type: ignore[assignment]
    with pytest.raises(gx.ClosedError, match="It is closed"), entrance:
        pass
    assert lock._lock.acquire(blocking=False)
