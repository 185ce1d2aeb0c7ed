"""gpuexec: a GPU-first executor of ONNX models and array programs, with explicit time, memory and streams.

    import gpuexec as gx

    model = gx.load("model.onnx")
    with gx.Worker(model) as worker:
        run = worker.schedule(x)
        y = worker.peek_output().readback_and_clone()

Names are loaded when first used, so that importing the package costs next to nothing. Examples in docstrings begin
with the digits of ``gpuexec demo``, ``import numpy as np``, ``model = gx.load("digits.onnx")``, and eight images ``x``,
float32 ``[8, 1, 8, 8]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gpuexec.system.version import VERSION

# Where each public name is defined. `gpuexec/__init__.pyi`, which `python -m tests.interfaces.face` makes, tells type
# checkers.
_HOMES = {
    "gpuexec.model.editing.named_data": ("NamedDataMap",),
    "gpuexec.model.tracing": ("SymbolicArray", "fn", "graph"),
    "gpuexec.importer.origin": ("ExternalData",),
    "gpuexec.model.loading": ("load",),
    "gpuexec.model.model": ("Model",),
    "gpuexec.execution.profiling.complexity": ("count_work",),
    "gpuexec.execution.profiling.profiler": ("Profiler",),
    "gpuexec.program.data_loader": (
        "BufferDataLoader",
        "DataLoader",
        "FileDataLoader",
        "FileLikeDataLoader",
        "MmapDataLoader",
    ),
    "gpuexec.program.contents": ("Verification",),
    "gpuexec.execution.weights.gap": ("WeightGap", "WeightRow", "measure_weights"),
    "gpuexec.system.progress": ("Progress",),
    "gpuexec.execution.worker": ("Worker",),
    "gpuexec.execution.batcher": ("Batcher",),
    "gpuexec.execution.calibration.calibrating": ("calibrate",),
    "gpuexec.program.cases": ("Case",),
    "gpuexec.program.memory_manager": ("BumpAllocator", "DeviceAllocator", "HierarchicalAllocator", "MemoryManager"),
    "gpuexec.program.method": ("Method",),
    "gpuexec.program.method_meta": ("MethodMeta",),
    "gpuexec.program.module": ("Module",),
    "gpuexec.program.program": ("Program",),
    "gpuexec.execution.images.converter": ("ImageConverter", "to_image", "to_tensor"),
    "gpuexec.execution.images.transform": ("ImageTransform",),
    "gpuexec.model.state_spec": ("Memory",),
    "gpuexec.execution.state.seeds": ("set_seed",),
    "gpuexec.execution.state.state": ("Snapshot", "State"),
    "gpuexec.execution.debugging.bisecting": ("Verdict", "bisect"),
    "gpuexec.execution.debugging.measuring": ("GapReport", "GapRow", "measure_gap"),
    "gpuexec.execution.inspection.nonfinite": ("NonFinite",),
    "gpuexec.execution.inspection.gaps": ("Gap", "gap_of"),
    "gpuexec.execution.inspection.statistics": ("Statistics",),
    "gpuexec.execution.runs.inspection": ("Inspection",),
    "gpuexec.execution.runs.run": ("Run", "Step"),
    "gpuexec.execution.resources.syncs": ("no_implicit_sync",),
    "gpuexec.execution.replay.replay": ("Replay",),
    "gpuexec.execution.results.given": ("ArrayLike", "Inputs"),
    "gpuexec.execution.results.tensor": ("Tensor",),
    "gpuexec.model.outputs": ("Outputs",),
    "gpuexec.execution.results.readback": ("ReadbackRequest",),
    "gpuexec.devices.backend": ("BackendType",),
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
