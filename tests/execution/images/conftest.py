"""Devices that image conversion is tested on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.execution.images.converter import ImageConverter


@pytest.fixture(params=[gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=lambda each: each.value)
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(request.param)


@pytest.fixture
def simulator() -> Backend:
    return open_backend(gx.BackendType.SIMULATOR)


@pytest.fixture
def converter(backend: Backend) -> Iterator[ImageConverter]:
    with ImageConverter(backend) as made:
        yield made
