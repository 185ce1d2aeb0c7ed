"""gpuexec runs array programs (ONNX models) on NVIDIA GPUs from Python, and leaves time, memory and the stream to you.

    import gpuexec as gx

    model = gx.load("model.onnx")
    with gx.Worker(model) as worker:
        run = worker.schedule(x)
        y = worker.peek_output().readback_and_clone()

Names are loaded when first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuexec.version import VERSION

if TYPE_CHECKING:
    from gpuexec.contents import Verification as Verification
    from gpuexec.data_loader import BufferDataLoader as BufferDataLoader
    from gpuexec.data_loader import DataLoader as DataLoader
    from gpuexec.data_loader import FileDataLoader as FileDataLoader
    from gpuexec.data_loader import FileLikeDataLoader as FileLikeDataLoader
    from gpuexec.data_loader import MmapDataLoader as MmapDataLoader
    from gpuexec.errors import *  # noqa: F403
    from gpuexec.memories import Memory as Memory
    from gpuexec.memory_manager import BumpAllocator as BumpAllocator
    from gpuexec.memory_manager import DeviceAllocator as DeviceAllocator
    from gpuexec.memory_manager import HierarchicalAllocator as HierarchicalAllocator
    from gpuexec.memory_manager import MemoryManager as MemoryManager
    from gpuexec.method import Method as Method
    from gpuexec.method_meta import MethodMeta as MethodMeta
    from gpuexec.model import Model as Model
    from gpuexec.model import load as load
    from gpuexec.module import Module as Module
    from gpuexec.program import Program as Program
    from gpuexec.readback import ReadbackRequest as ReadbackRequest
    from gpuexec.replay import Replay as Replay
    from gpuexec.run import Run as Run
    from gpuexec.run import Step as Step
    from gpuexec.runtime.backend import BackendType as BackendType
    from gpuexec.state import Snapshot as Snapshot
    from gpuexec.state import State as State
    from gpuexec.syncs import no_implicit_sync as no_implicit_sync
    from gpuexec.tensor import Tensor as Tensor
    from gpuexec.worker import Worker as Worker

_HOMES = {
    "gpuexec.model": ("Model", "load"),
    "gpuexec.data_loader": (
        "BufferDataLoader",
        "DataLoader",
        "FileDataLoader",
        "FileLikeDataLoader",
        "MmapDataLoader",
    ),
    "gpuexec.contents": ("Verification",),
    "gpuexec.worker": ("Worker",),
    "gpuexec.building": ("Case",),
    "gpuexec.memory_manager": ("BumpAllocator", "DeviceAllocator", "HierarchicalAllocator", "MemoryManager"),
    "gpuexec.method": ("Method",),
    "gpuexec.method_meta": ("MethodMeta",),
    "gpuexec.module": ("Module",),
    "gpuexec.program": ("Program",),
    "gpuexec.memories": ("Memory",),
    "gpuexec.state": ("Snapshot", "State"),
    "gpuexec.run": ("Run", "Step"),
    "gpuexec.syncs": ("no_implicit_sync",),
    "gpuexec.replay": ("Replay",),
    "gpuexec.tensor": ("Tensor",),
    "gpuexec.readback": ("ReadbackRequest",),
    "gpuexec.runtime.backend": ("BackendType",),
    "gpuexec.errors": (
        "AccessError",
        "CancelledError",
        "ClosedError",
        "DeviceError",
        "DeviceLostError",
        "DeviceNotFoundError",
        "GpuexecError",
        "ImplicitSyncError",
        "InputError",
        "KernelError",
        "MismatchError",
        "ModelError",
        "NotFoundError",
        "OrderError",
        "OutOfMemoryError",
        "PendingError",
        "PlanError",
        "StaleError",
        "StateError",
        "UnsupportedError",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__version__ = VERSION
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gpuexec' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
