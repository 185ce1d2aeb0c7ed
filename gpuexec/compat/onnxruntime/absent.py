"""Unsupported names of ONNX Runtime: importable, and refused with a reason where they are used."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

from gpuexec.compat.onnxruntime.errors import NotImplemented, make_error

_NO_SPARSE = "sparse tensors are not supported; give dense ones"
_NO_ADAPTERS = "adapters of weights are not supported; write them into the model (Model.with_weights)"
_NO_COMPILER = "models are compiled to program files (gpuexec compile)"
_NO_PLUGINS = "there are no plug-in providers; name providers"
_NO_PACKING = "quantise with ONNX Runtime itself, in a process where nothing stands in for it"
# Missing names, and what to use instead.
CLASSES = {
    "SparseTensor": _NO_SPARSE,
    "LoraAdapter": _NO_ADAPTERS,
    "AdapterFormat": _NO_ADAPTERS,
    "ModelCompiler": _NO_COMPILER,
    "ModelPackage": _NO_COMPILER,
    "ModelPackageComponentContext": _NO_COMPILER,
    "ModelPackageContext": _NO_COMPILER,
    "ModelPackageOptions": _NO_COMPILER,
    "ModelPackageWriteMode": _NO_COMPILER,
    "OrtCompileApiFlags": _NO_COMPILER,
    "OrtEpContextData": _NO_COMPILER,
    "OrtEpContextDataBuffer": _NO_COMPILER,
    "OrtEpDevice": _NO_PLUGINS,
    "OrtExecutionProviderDevicePolicy": _NO_PLUGINS,
    "OrtExternalInitializerInfo": _NO_COMPILER,
    "OrtHardwareDevice": _NO_PLUGINS,
    "OrtHardwareDeviceType": _NO_PLUGINS,
    "OrtSyncStream": _NO_PLUGINS,
}
FUNCTIONS = {
    "get_ep_devices": _NO_PLUGINS,
    "register_execution_provider_library": _NO_PLUGINS,
    "unregister_execution_provider_library": _NO_PLUGINS,
    "quantize_matmul_bnb4": _NO_PACKING,
    "quantize_qdq_matmul_2bits": _NO_PACKING,
    "pack_fp4_weights_for_cuda_moe_gemm": _NO_PACKING,
    "get_all_operator_schema": "gpuexec ops lists the operators",
    "get_all_opkernel_def": "gpuexec ops lists the operators",
}


def _refuse(name: str, why: str) -> NoReturn:
    raise make_error(NotImplemented, f"onnxruntime.{name} is not supported by gpuexec: {why}.")


class _Absent(type):
    """Metaclass of placeholder classes, which can be imported and named but not used."""

    why: str

    def __call__(cls, *arguments: Any, **options: Any) -> NoReturn:
        _refuse(cls.__name__, cls.why)

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        _refuse(f"{cls.__name__}.{name}", cls.why)


@functools.cache
def find_absent(name: str) -> Any:
    """Return the placeholder for an unsupported name.

    Raises:
        AttributeError: ONNX Runtime has no such name either, or none that code should find.
    """
    if name in CLASSES:
        return _Absent(name, (), {"why": CLASSES[name], "__doc__": f"Not there: {CLASSES[name]}."})
    if name in FUNCTIONS:

        def refuse(*arguments: Any, **options: Any) -> NoReturn:
            _refuse(name, FUNCTIONS[name])

        refuse.__name__, refuse.__doc__ = name, f"Refuse: {FUNCTIONS[name]}."
        return refuse
    raise AttributeError(f"onnxruntime has no {name!r} in gpuexec")
