"""Replacement of the ``onnxruntime`` module in ``sys.modules``."""

from __future__ import annotations

import importlib
import importlib.abc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from gpuexec.compat.onnxruntime.errors import Fail, make_error

_OURS, _THEIRS = "gpuexec.compat.onnxruntime", "onnxruntime"
# Modules by ONNX Runtime's names; its backend package and the module within it are one module here.
_MODULES = {
    "": "",
    ".backend": ".backend",
    ".backend.backend": ".backend",
    ".backend.backend_rep": ".backend",
    ".capi": ".capi",
    ".capi._pybind_state": ".capi._pybind_state",
    ".capi.onnxruntime_inference_collection": ".capi.onnxruntime_inference_collection",
    ".capi.onnxruntime_pybind11_state": ".capi.onnxruntime_pybind11_state",
}
# Pure Python packages of the installed ONNX Runtime, which work on these sessions.
_BORROWED = frozenset(f"{_THEIRS}.{name}" for name in ("datasets", "quantization", "tools", "transformers"))


def stand_in() -> None:
    """Make ``import onnxruntime`` give this package in this process from now on. A second call does nothing.

    ``onnxruntime.quantization``, ``.tools`` and ``.transformers`` are those of the installed ONNX Runtime, and import
    this package in their turn. Code that asks for the installed distribution (`importlib.metadata`) gets that one.

    Raises:
        Fail: ONNX Runtime itself is imported already; its importers would keep it.
    """
    ours = {_THEIRS + there: sys.modules[_OURS + here] for there, here in _MODULES.items()}
    if sys.modules.get(_THEIRS) not in (None, ours[_THEIRS]):
        raise make_error(Fail, "onnxruntime is imported already; call stand_in() before anything imports it.")
    sys.modules.update(ours)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def find_package(name: str) -> ModuleType | None:
    """Return a package of the installed ONNX Runtime, such as ``quantization``, where this package stands in for it.

    Raises:
        ModuleNotFoundError: ONNX Runtime is not installed.
    """
    full = f"{_THEIRS}.{name}"
    is_there = full in _BORROWED and sys.modules.get(_THEIRS) is sys.modules[_OURS]
    return importlib.import_module(full) if is_there else None


class _Finder(importlib.abc.MetaPathFinder):
    """Import hook for the packages of the installed ONNX Runtime that are used as they are."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module spec of such a package.

        Raises:
            ModuleNotFoundError: ONNX Runtime is not installed.
        """
        if fullname not in _BORROWED:
            return None
        installed = PathFinder.find_spec(_THEIRS)
        if installed is None or installed.origin is None:
            raise ModuleNotFoundError(
                f"{fullname} is a part of ONNX Runtime that gpuexec does not stand in for, and ONNX Runtime is not"
                " installed; install it beside gpuexec: pip install onnxruntime.",
                name=fullname,
            )
        return PathFinder.find_spec(fullname, [os.path.dirname(installed.origin)])
