"""What the Methods of a program have in common on a device: their plans, and arenas where they are to share them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from gpuexec.model import Model
from gpuexec.programs.memory_manager import HierarchicalAllocator
from gpuexec.programs.method_meta import INPUTS, STAGING, STATE, MethodMeta, allocate_buffers, share_buffers
from gpuexec.programs.method_plan import MethodPlan, plan_method
from gpuexec.runtime.backend import Backend


class MethodPlans:
    """The plans of a program's methods, each made once for a device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: dict[tuple[str, int], MethodPlan] = {}

    def find(self, name: str, model: Model, backend: Backend) -> MethodPlan:
        """Return the plan of a method, which is made if it is new."""
        key = (name, id(backend.device))
        with self._lock:
            found = self._plans.get(key)
        if found is None:
            found = plan_method(model, backend.device.target)
            with self._lock:
                found = self._plans.setdefault(key, found)
        return found


class SharedArenas:
    """Blocks for temporaries and outputs, for each device one set that all who share take turns with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arenas: dict[int, HierarchicalAllocator] = {}

    def open(self, backend: Backend, name: str, metas: Mapping[str, MethodMeta]) -> HierarchicalAllocator:
        """Return blocks for one more Method: shared ones, and its own for inputs, state and staging.

        Args:
            backend: Whose device.
            name: Of the method.
            metas: Of all methods that may share, by name.
        """
        with self._lock:
            shared = self._arenas.get(id(backend.device))
            if shared is None:
                shared = self._arenas[id(backend.device)] = HierarchicalAllocator(share_buffers(list(metas.values())))
        own = metas[name].memory_planned_buffers
        blocks: list[Any] = list(shared.buffers)
        for index in (INPUTS, STATE, STAGING):
            if index < len(own):
                blocks[index] = allocate_buffers(backend, own[index : index + 1])[0]
        allocator = HierarchicalAllocator(blocks)
        allocator.sharing, allocator.shares_inputs = shared.sharing, False
        return allocator
