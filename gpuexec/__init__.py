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
    from gpuexec.errors import *  # noqa: F403
    from gpuexec.memories import Memory as Memory
    from gpuexec.model import Model as Model
    from gpuexec.model import load as load
    from gpuexec.programs.contents import Verification as Verification
    from gpuexec.programs.data_loader import BufferDataLoader as BufferDataLoader
    from gpuexec.programs.data_loader import DataLoader as DataLoader
    from gpuexec.programs.data_loader import FileDataLoader as FileDataLoader
    from gpuexec.programs.data_loader import FileLikeDataLoader as FileLikeDataLoader
    from gpuexec.programs.data_loader import MmapDataLoader as MmapDataLoader
    from gpuexec.programs.memory_manager import BumpAllocator as BumpAllocator
    from gpuexec.programs.memory_manager import DeviceAllocator as DeviceAllocator
    from gpuexec.programs.memory_manager import HierarchicalAllocator as HierarchicalAllocator
    from gpuexec.programs.memory_manager import MemoryManager as MemoryManager
    from gpuexec.programs.method import Method as Method
    from gpuexec.programs.method_meta import MethodMeta as MethodMeta
    from gpuexec.programs.module import Module as Module
    from gpuexec.programs.program import Program as Program
    from gpuexec.replay.replay import Replay as Replay
    from gpuexec.resources.syncs import no_implicit_sync as no_implicit_sync
    from gpuexec.results.readback import ReadbackRequest as ReadbackRequest
    from gpuexec.results.tensor import Tensor as Tensor
    from gpuexec.running.run import Run as Run
    from gpuexec.running.run import Step as Step
    from gpuexec.runtime.backend import BackendType as BackendType
    from gpuexec.state.state import Snapshot as Snapshot
    from gpuexec.state.state import State as State
    from gpuexec.worker import Worker as Worker

_HOMES = {
    "gpuexec.model": ("Model", "load"),
    "gpuexec.programs.data_loader": (
        "BufferDataLoader",
        "DataLoader",
        "FileDataLoader",
        "FileLikeDataLoader",
        "MmapDataLoader",
    ),
    "gpuexec.programs.contents": ("Verification",),
    "gpuexec.worker": ("Worker",),
    "gpuexec.programs.building": ("Case",),
    "gpuexec.programs.memory_manager": ("BumpAllocator", "DeviceAllocator", "HierarchicalAllocator", "MemoryManager"),
    "gpuexec.programs.method": ("Method",),
    "gpuexec.programs.method_meta": ("MethodMeta",),
    "gpuexec.programs.module": ("Module",),
    "gpuexec.programs.program": ("Program",),
    "gpuexec.memories": ("Memory",),
    "gpuexec.state.state": ("Snapshot", "State"),
    "gpuexec.running.run": ("Run", "Step"),
    "gpuexec.resources.syncs": ("no_implicit_sync",),
    "gpuexec.replay.replay": ("Replay",),
    "gpuexec.results.tensor": ("Tensor",),
    "gpuexec.results.readback": ("ReadbackRequest",),
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
