"""Shared resources of a program's Methods: plans, and arenas where these are to be shared."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Device
from gpuexec.model.model import Model
from gpuexec.program.memory_manager import HierarchicalAllocator
from gpuexec.program.method_meta import INPUTS, STAGING, STATE, MethodMeta, allocate_buffers, share_buffers
from gpuexec.program.method_plan import MethodPlan, plan_method


class MethodPlans:
    """The plans of a program's methods, each made once for a device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By name of the method and device, which is kept, so that no other can have its id.
        self._plans: dict[tuple[str, int], tuple[Device, MethodPlan]] = {}

    def find(self, name: str, model: Model, backend: Backend) -> MethodPlan:
        """Return the plan of a method, which is made if it is new."""
        device = backend.device
        key = (name, id(device))
        with self._lock:
            found = self._plans.get(key)
        if found is None:
            made = device, plan_method(model, device.target)
            with self._lock:
                found = self._plans.setdefault(key, made)
        return found[1]


class SharedArenas:
    """Blocks for temporaries and outputs, for each device one set that all who share take turns with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arenas: dict[int, tuple[Device, HierarchicalAllocator]] = {}

    def open(self, backend: Backend, name: str, metas: Mapping[str, MethodMeta]) -> HierarchicalAllocator:
        """Return blocks for one more Method: shared ones, and its own for inputs, state and staging.

        Args:
            backend: Whose device.
            name: Of the method.
            metas: Of all methods that may share, by name.
        """
        key = id(backend.device)
        with self._lock:
            if key not in self._arenas:
                self._arenas[key] = backend.device, HierarchicalAllocator(share_buffers(list(metas.values())))
            _, shared = self._arenas[key]
        own = metas[name].memory_planned_buffers
        blocks: list[Any] = list(shared._buffers)
        for index in (INPUTS, STATE, STAGING):
            if index < len(own):
                blocks[index] = allocate_buffers(backend, own[index : index + 1])[0]
        allocator = HierarchicalAllocator(blocks)
        allocator._sharing, allocator._shares_inputs = shared._sharing, False
        return allocator
