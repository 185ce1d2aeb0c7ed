"""Exclusive entry: one caller at a time, and none after closing."""

from __future__ import annotations

from typing import Any

import pytest

import gpuexec as gx
from gpuexec.devices.backend import BackendType, open_backend
from gpuexec.execution.resources.exclusive_caller import ExclusiveCaller


@pytest.fixture
def exclusive() -> ExclusiveCaller:
    return ExclusiveCaller(open_backend(BackendType.CPU), "Somebody is inside.", "It is closed.")


def test_second_caller_is_refused_and_the_next_is_let_in(exclusive: ExclusiveCaller) -> None:
    with exclusive:
        with pytest.raises(gx.StateError, match="Somebody is inside"), exclusive:
            pass
        assert not exclusive.try_enter()
    assert exclusive.try_enter()
    exclusive.leave()
    with exclusive:
        pass


def test_caller_that_raises_leaves(exclusive: ExclusiveCaller) -> None:
    with pytest.raises(ZeroDivisionError), exclusive:
        raise ZeroDivisionError
    assert exclusive.try_enter()


def test_nobody_is_let_in_once_it_is_closed(exclusive: ExclusiveCaller) -> None:
    exclusive.check_open()
    with exclusive:
        exclusive.is_closed = True
    with pytest.raises(gx.ClosedError, match="It is closed"):
        exclusive.check_open()
    with pytest.raises(gx.ClosedError, match="It is closed"), exclusive:
        pass
    assert exclusive.try_enter()  # who was refused is not inside


def test_caller_that_came_as_it_was_closed_is_refused_and_not_inside(exclusive: ExclusiveCaller) -> None:
    """Closed by whoever was inside, between the look at `is_closed` and the way in."""

    class Holder(dict[str, Any]):
        def setdefault(self, key: str, caller: Any = None) -> Any:
            exclusive.is_closed = True
            return super().setdefault(key, caller)

    holder = exclusive._holder = Holder()
    with pytest.raises(gx.ClosedError, match="It is closed"), exclusive:
        pass
    assert not holder


def test_interrupt_within_a_call_breaks_it_and_everybody_is_notified(exclusive: ExclusiveCaller) -> None:
    with pytest.raises(KeyboardInterrupt), exclusive:
        raise KeyboardInterrupt
    with pytest.raises(gx.ClosedError, match="KeyboardInterrupt came in the middle of a call"), exclusive:
        pass


def test_interrupt_where_nothing_is_half_done_breaks_nothing(exclusive: ExclusiveCaller) -> None:
    with pytest.raises(KeyboardInterrupt), exclusive, exclusive.at_rest():
        raise KeyboardInterrupt
    with exclusive:
        pass
    with exclusive, pytest.raises(ZeroDivisionError), exclusive.at_rest():
        raise ZeroDivisionError
    assert not exclusive.is_broken


def test_caller_that_was_interrupted_on_its_way_in_or_out_does_not_block_the_next(exclusive: ExclusiveCaller) -> None:
    def enter() -> None:
        assert exclusive.try_enter()  # and the interrupt comes before anything else

    enter()
    with exclusive:
        assert not exclusive.try_enter()

    def change() -> None:
        exclusive.__enter__()  # and the interrupt comes before the exit

    change()
    with pytest.raises(gx.ClosedError, match="an interrupt came"), exclusive:
        pass
