"""A Method of each kind: on the CPU and the simulator, with memory of its own and with planned memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpuexec as gx
from tests.model.small_models import affine
from tests.program.methods import BACKENDS, load


@pytest.fixture(params=[(b, p) for b in BACKENDS for p in (False, True)], ids=lambda v: f"{v[0].value}-{v[1]}")
def method(request: pytest.FixtureRequest) -> Iterator[gx.Method]:
    backend, planned = request.param
    with load(affine(), backend, planned=planned) as made:
        yield made
