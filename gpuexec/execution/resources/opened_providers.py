"""Providers of an engine: the libraries that are asked for, opened on its device, and the tune file."""

from __future__ import annotations

import os
from collections.abc import Collection

from gpuexec.devices.device import Device
from gpuexec.errors import InputError
from gpuexec.ir.provider import check_providers
from gpuexec.planner.providers import NO_PROVIDERS, Providers
from gpuexec.planner.tune_file import read_tuning


def read_providers(names: Collection[str], tuning: str | os.PathLike[str] | None) -> Providers:
    """Return the providers of these names, with what a tune file says.

    Raises:
        InputError: There is no such provider, no tune file there, or one without providers.
    """
    checked = check_providers(names)
    if tuning is not None and not checked:
        raise InputError("tuning goes with providers: providers=['cublaslt'], say.")
    return Providers(checked, None if tuning is None else read_tuning(tuning))


def open_providers(providers: Providers, device: Device) -> Providers:
    """Return the providers that there are on a device, opened: none where it has no libraries.

    Raises:
        DeviceNotFoundError: A library is not installed; names the extra.
        InputError: The tune file is of another GPU.
    """
    if not providers.names or not hasattr(device, "open_library"):
        return NO_PROVIDERS
    if providers.tuning is not None:
        providers.tuning.check_gpu(device.name)
    for name in providers.names:
        device.open_library(name)
    return providers
