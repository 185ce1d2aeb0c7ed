"""Installation of the stand-ins in place of the packages."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.devices.cupy_standin import Standin
from tests.devices.library_standins.cublaslt import CublasLtStandin
from tests.devices.library_standins.cudnn import CudnnStandin


def install_libraries(monkeypatch: pytest.MonkeyPatch, standin: Standin) -> SimpleNamespace:
    """Let ``import nvmath`` and ``import cudnn`` give the stand-ins; return both, to look at what they were asked."""
    lt, dnn = CublasLtStandin(standin), CudnnStandin(standin)
    nvmath, bindings = ModuleType("nvmath"), ModuleType("nvmath.bindings")
    modules: dict[str, Any] = {
        "nvmath": nvmath,
        "nvmath.bindings": bindings,
        "nvmath.bindings.cublas": lt.cublas,
        "nvmath.bindings.cublasLt": lt,
        "cudnn": dnn,
    }
    nvmath.CudaDataType = lt.CudaDataType  # type: ignore[attr-defined]
    nvmath.bindings = bindings  # type: ignore[attr-defined]
    bindings.cublas, bindings.cublasLt = lt.cublas, lt  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(lt=lt, cudnn=dnn)
