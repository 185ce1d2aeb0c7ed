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

if TYPE_CHECKING:
    from gpuexec.errors import *  # noqa: F403
    from gpuexec.model import Model as Model
    from gpuexec.model import load as load
    from gpuexec.readback import ReadbackRequest as ReadbackRequest
    from gpuexec.run import Run as Run
    from gpuexec.run import Step as Step
    from gpuexec.runtime.backend import BackendType as BackendType
    from gpuexec.syncs import no_implicit_sync as no_implicit_sync
    from gpuexec.tensor import Tensor as Tensor
    from gpuexec.worker import Worker as Worker

_HOMES = {
    "gpuexec.model": ("Model", "load"),
    "gpuexec.worker": ("Worker",),
    "gpuexec.run": ("Run", "Step"),
    "gpuexec.syncs": ("no_implicit_sync",),
    "gpuexec.tensor": ("Tensor",),
    "gpuexec.readback": ("ReadbackRequest",),
    "gpuexec.runtime.backend": ("BackendType",),
    "gpuexec.errors": (
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
__version__ = "0.1.0"
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
