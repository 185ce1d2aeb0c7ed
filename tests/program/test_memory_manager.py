"""Memory managers of a Method: amounts allocated, and limits."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from tests.model.small_models import make_tracer


def test_an_allocator_counts_only_what_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> None:
        raise gx.OutOfMemoryError("the device is full")

    backend = make_tracer()
    own = gx.DeviceAllocator(backend, most_nbytes=100)
    with monkeypatch.context() as patch:
        patch.setattr(backend.device, "allocate", refuse)
        with pytest.raises(gx.OutOfMemoryError, match="the device is full"):
            own.allocate(60)
    assert own.nbytes == 0
    own.allocate(60)
    with pytest.raises(gx.OutOfMemoryError, match="60 bytes are too many: 60 of 100 are given"):
        own.allocate(60)


@pytest.mark.parametrize("alignment", [0, -256, 1.5])
def test_an_alignment_that_is_none_is_refused(alignment: int) -> None:
    with pytest.raises(gx.InputError, match="alignment is a whole number, at least 1, got "):
        gx.BumpAllocator(np.zeros(8, np.uint8), alignment)
