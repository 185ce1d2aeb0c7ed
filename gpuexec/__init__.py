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
from typing import Any

from gpuexec.version import VERSION

# Where each public name is defined; `gpuexec/__init__.pyi`, which `python -m tests.face` makes, tells type checkers.
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
    "gpuexec.state_spec": ("Memory",),
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
    "gpuexec.results.given": ("ArrayLike", "Inputs"),
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
