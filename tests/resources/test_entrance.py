"""Exclusive entry: one caller at a time, and none after closing."""

from __future__ import annotations

from typing import Any

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
    """Closed by whoever was inside, between the look at `is_closed` and the way in."""

    class Holder(dict[str, Any]):
        def setdefault(self, key: str, caller: Any = None) -> Any:
            entrance.is_closed = True
            return super().setdefault(key, caller)

    holder = entrance._holder = Holder()
    with pytest.raises(gx.ClosedError, match="It is closed"), entrance:
        pass
    assert not holder


def test_interrupt_within_a_call_breaks_it_and_everybody_is_told(entrance: Entrance) -> None:
    with pytest.raises(KeyboardInterrupt), entrance:
        raise KeyboardInterrupt
    with pytest.raises(gx.ClosedError, match="KeyboardInterrupt came in the middle of a call"), entrance:
        pass


def test_interrupt_where_nothing_is_half_done_breaks_nothing(entrance: Entrance) -> None:
    with pytest.raises(KeyboardInterrupt), entrance, entrance.at_rest():
        raise KeyboardInterrupt
    with entrance:
        pass
    with entrance, pytest.raises(ZeroDivisionError), entrance.at_rest():
        raise ZeroDivisionError
    assert not entrance.is_broken


def test_caller_that_was_interrupted_on_its_way_in_or_out_does_not_block_the_next(entrance: Entrance) -> None:
    def enter() -> None:
        assert entrance.try_enter()  # and the interrupt comes before anything else

    enter()
    with entrance:
        assert not entrance.try_enter()

    def change() -> None:
        entrance.__enter__()  # and the interrupt comes before the exit

    change()
    with pytest.raises(gx.ClosedError, match="an interrupt came"), entrance:
        pass
