"""Memory allocation of the stand-in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.devices.cupy_standin.standin import Standin


class MemoryCalls:
    """Memory of the device below, by address. What its order checker says of freeing goes to who frees."""

    def __init__(self, standin: Standin) -> None:
        self._standin = standin
        self.held: dict[int, Any] = {}

    def as_dict(self) -> dict[str, Any]:
        return {"malloc": self._malloc, "free": self._free, "hostAlloc": self._host_alloc, "freeHost": self._free}

    def _malloc(self, size: int) -> int:
        self._standin._require_current()
        return self._hold(self._standin._call(self._standin.device.allocate, size))

    def _host_alloc(self, size: int, flags: int) -> int:
        assert flags == 1  # pinned for all GPUs
        self._standin._require_current()
        return self._hold(self._standin._call(self._standin.device.allocate_pinned, size))

    def _hold(self, memory: Any) -> int:
        assert memory.nbytes
        self.held[memory.address] = memory
        return int(memory.address)

    def _free(self, address: int) -> None:
        self._standin._require_current()
        self._standin._call(self.held[address].free)
        del self.held[address]
