"""Deferred release of objects in use, and the copy stream."""

from __future__ import annotations

import gc
import weakref

from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.deferred_free import DeferredFree
from gpuexec.devices.transfers import Transfers
from tests.model.small_models import hold


class Thing:
    """Something to be kept."""


def test_object_is_kept_until_its_event_is_done() -> None:
    device, deferred_free = CpuDevice(), DeferredFree()
    stream, event, thing = device.create_stream(), device.create_event(), Thing()
    gone = weakref.ref(thing)
    gate = hold(stream)
    stream.record(event)
    deferred_free.hold(event, thing)
    del thing
    deferred_free.prune()
    gc.collect()
    assert gone() is not None and len(deferred_free) == 1
    gate.set()
    event.synchronize()
    deferred_free.prune()
    assert gone() is None and len(deferred_free) == 0
    device.close()


def test_adding_lets_go_of_what_is_done() -> None:
    device, deferred_free = CpuDevice(), DeferredFree()
    for _ in range(10):
        deferred_free.hold(device.create_event(), Thing())
    assert len(deferred_free) == 1


def test_stream_for_copies_is_made_once_and_again_after_closing() -> None:
    device = CpuDevice()
    transfers = Transfers(device)
    with transfers.lock:
        first = transfers.open()
    with transfers.lock:
        again = transfers.open()
        assert again is first
    transfers.close()
    transfers.close()
    with transfers.lock:
        new = transfers.open()
        assert new is not first
    transfers.close()
    device.close()
