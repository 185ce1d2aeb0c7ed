"""Being what code gets that says ``import onnxruntime``."""

from __future__ import annotations

import sys

from gpuexec.compat.onnxruntime.errors import Fail, make_error

_OURS, _THEIRS = "gpuexec.compat.onnxruntime", "onnxruntime"
_MODULES = (
    "",
    ".backend",
    ".capi",
    ".capi._pybind_state",
    ".capi.onnxruntime_inference_collection",
    ".capi.onnxruntime_pybind11_state",
)


def stand_in() -> None:
    """Have whoever imports ``onnxruntime`` in this process from now on get this package. Twice is harmless.

    What asks for the installed distribution instead (`importlib.metadata`) is told of that.

    Raises:
        Fail: ONNX Runtime itself is imported already; whoever has it would go on with it.
    """
    ours = {_THEIRS + name: sys.modules[_OURS + name] for name in _MODULES}
    if sys.modules.get(_THEIRS) not in (None, ours[_THEIRS]):
        raise make_error(Fail, "onnxruntime is imported already; call stand_in() before anything imports it.")
    sys.modules.update(ours)
