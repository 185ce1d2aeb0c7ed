"""gpuexec: a GPU-first executor of ONNX models and array programs, with explicit time, memory and streams.

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
    from gpuexec.array_program import SymbolicArray as SymbolicArray
    from gpuexec.array_program import fn as fn
    from gpuexec.array_program import graph as graph
    from gpuexec.diagnosing.bisecting import bisect as bisect
    from gpuexec.diagnosing.measuring import GapReport as GapReport
    from gpuexec.diagnosing.measuring import GapRow as GapRow
    from gpuexec.diagnosing.measuring import measure_gap as measure_gap
    from gpuexec.diagnosing.verdict import Verdict as Verdict
    from gpuexec.editing.named_data import NamedDataMap as NamedDataMap
    from gpuexec.errors import *  # noqa: F403
    from gpuexec.images.converter import ImageConverter as ImageConverter
    from gpuexec.images.converter import to_image as to_image
    from gpuexec.images.converter import to_tensor as to_tensor
    from gpuexec.images.transform import ImageTransform as ImageTransform
    from gpuexec.importer.origin import ExternalData as ExternalData
    from gpuexec.inspecting.finding import NonFinite as NonFinite
    from gpuexec.inspecting.gaps import Gap as Gap
    from gpuexec.inspecting.gaps import gap_of as gap_of
    from gpuexec.inspecting.statistics import Statistics as Statistics
    from gpuexec.loading import load as load
    from gpuexec.memories import Memory as Memory
    from gpuexec.model import Model as Model
    from gpuexec.profiling.complexity import count_work as count_work
    from gpuexec.profiling.profiler import Profiler as Profiler
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
    from gpuexec.progress import Progress as Progress
    from gpuexec.replay.replay import Replay as Replay
    from gpuexec.resources.syncs import no_implicit_sync as no_implicit_sync
    from gpuexec.results.outputs import Outputs as Outputs
    from gpuexec.results.readback import ReadbackRequest as ReadbackRequest
    from gpuexec.results.tensor import Tensor as Tensor
    from gpuexec.running.inspection import Inspection as Inspection
    from gpuexec.running.run import Run as Run
    from gpuexec.running.run import Step as Step
    from gpuexec.runtime.backend import BackendType as BackendType
    from gpuexec.state.seeds import set_seed as set_seed
    from gpuexec.state.state import Snapshot as Snapshot
    from gpuexec.state.state import State as State
    from gpuexec.weights.gap import WeightGap as WeightGap
    from gpuexec.weights.gap import WeightRow as WeightRow
    from gpuexec.weights.gap import measure_weights as measure_weights
    from gpuexec.worker import Worker as Worker

_HOMES = {
    "gpuexec.editing.named_data": ("NamedDataMap",),
    "gpuexec.array_program": ("SymbolicArray", "fn", "graph"),
    "gpuexec.importer.origin": ("ExternalData",),
    "gpuexec.loading": ("load",),
    "gpuexec.model": ("Model",),
    "gpuexec.profiling.complexity": ("count_work",),
    "gpuexec.profiling.profiler": ("Profiler",),
    "gpuexec.programs.data_loader": (
        "BufferDataLoader",
        "DataLoader",
        "FileDataLoader",
        "FileLikeDataLoader",
        "MmapDataLoader",
    ),
    "gpuexec.programs.contents": ("Verification",),
    "gpuexec.weights.gap": ("WeightGap", "WeightRow", "measure_weights"),
    "gpuexec.progress": ("Progress",),
    "gpuexec.worker": ("Worker",),
    "gpuexec.programs.cases": ("Case",),
    "gpuexec.programs.memory_manager": ("BumpAllocator", "DeviceAllocator", "HierarchicalAllocator", "MemoryManager"),
    "gpuexec.programs.method": ("Method",),
    "gpuexec.programs.method_meta": ("MethodMeta",),
    "gpuexec.programs.module": ("Module",),
    "gpuexec.programs.program": ("Program",),
    "gpuexec.images.converter": ("ImageConverter", "to_image", "to_tensor"),
    "gpuexec.images.transform": ("ImageTransform",),
    "gpuexec.memories": ("Memory",),
    "gpuexec.state.seeds": ("set_seed",),
    "gpuexec.state.state": ("Snapshot", "State"),
    "gpuexec.diagnosing.bisecting": ("bisect",),
    "gpuexec.diagnosing.measuring": ("GapReport", "GapRow", "measure_gap"),
    "gpuexec.diagnosing.verdict": ("Verdict",),
    "gpuexec.inspecting.finding": ("NonFinite",),
    "gpuexec.inspecting.gaps": ("Gap", "gap_of"),
    "gpuexec.inspecting.statistics": ("Statistics",),
    "gpuexec.running.inspection": ("Inspection",),
    "gpuexec.running.run": ("Run", "Step"),
    "gpuexec.resources.syncs": ("no_implicit_sync",),
    "gpuexec.replay.replay": ("Replay",),
    "gpuexec.results.tensor": ("Tensor",),
    "gpuexec.results.outputs": ("Outputs",),
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
        "NonFiniteError",
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
