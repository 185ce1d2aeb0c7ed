"""Image converters on each backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.execution.images.converter import ImageConverter


@pytest.fixture
def simulator() -> Backend:
    return open_backend(gx.BackendType.SIMULATOR)


@pytest.fixture
def converter(backend: Backend) -> Iterator[ImageConverter]:
    with ImageConverter(backend) as made:
        yield made
