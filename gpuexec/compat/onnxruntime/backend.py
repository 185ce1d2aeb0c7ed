"""ONNX's backend interface as ONNX Runtime has it, over a session.

    import gpuexec.compat.onnxruntime.backend as backend

    prepared = backend.prepare("model.onnx", "CPU")
    (y,) = prepared.run([x])

`gpuexec.compat.onnx_backend` is that of ONNX itself, which takes more kinds of inputs and runs single nodes. As in
ONNX Runtime, options that write files or give up runs can't be set from here, and names of other options are ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from gpuexec.compat.onnxruntime.errors import ArgumentTypeError, BindingError, make_error
from gpuexec.compat.onnxruntime.options import RunOptions, SessionOptions
from gpuexec.compat.onnxruntime.providers import CPU_PROVIDER, CUDA_PROVIDER, get_available_providers
from gpuexec.compat.onnxruntime.session import InferenceSession

Array = np.ndarray[Any, Any]
_PROVIDERS = {"CPU": CPU_PROVIDER, "GPU": CUDA_PROVIDER, "CUDA": CUDA_PROVIDER}
_REFUSED = frozenset({"enable_profiling", "optimized_model_filepath", "profile_file_prefix", "terminate"})


class PreparedSession:
    """A prepared session, run with inputs in order."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Array | Sequence[Array], **options: Any) -> list[Array]:
        """Run and wait for all outputs.

        Args:
            inputs: A list of arrays in the model's order, or one array where that is all it takes.
            options: Of the run, by the names of `RunOptions`.

        Raises:
            BindingError: There are more or fewer inputs than the model takes, or an option is none of a backend's.
            InvalidArgument: One does not fit.
        """
        given, names = list(inputs) if isinstance(inputs, list | tuple) else [inputs], self._session.input_names
        if len(given) != len(names):
            raise make_error(
                BindingError, f"The model takes {len(names)} inputs ({', '.join(names)}), got {len(given)}."
            )
        chosen = RunOptions()
        _set_options(chosen, options)
        return self._session.run(None, dict(zip(names, given, strict=True)), chosen)


def prepare(model: Any, device: str | None = None, **options: Any) -> PreparedSession:
    """Return a model ready to be run.

    Args:
        model: A path, bytes, an onnx.ModelProto, a session, or what this returned.
        device: ``"CPU"`` or ``"GPU"``; None: the GPU where one works, else the CPU.
        options: Of the session, by the names of `SessionOptions`.

    Raises:
        BindingError: There is no such device here, or an option is none of a backend's.
        GpuexecError: As `InferenceSession`.
    """
    if isinstance(model, PreparedSession):
        return model
    if isinstance(model, InferenceSession):
        return PreparedSession(model)
    if device is not None and not supports_device(device):
        raise make_error(BindingError, f"There is no device {device!r} here, or it does not work.")
    chosen = SessionOptions()
    _set_options(chosen, options)
    providers = None if device is None else [_PROVIDERS[device]]
    source = model.SerializeToString() if hasattr(model, "SerializeToString") else model
    return PreparedSession(InferenceSession(source, chosen, providers))


def run(model: Any, inputs: Array | Sequence[Array], device: str | None = None, **options: Any) -> list[Array]:
    """Prepare a model and run it once, with options of either; see `prepare` and `PreparedSession.run`."""
    return prepare(model, device, **options).run(inputs, **options)


run_model = run


def supports_device(device: str) -> bool:
    """Return whether models can be run on ``"CPU"``, or ``"GPU"``, here."""
    if not isinstance(device, str):
        raise make_error(ArgumentTypeError, f"Expected the name of a device, got {device!r}.")
    return _PROVIDERS.get(device) in get_available_providers()


def is_compatible(model: Any, device: str | None = None, **_: Any) -> bool:
    """Return whether the device works here; the model itself is checked by `prepare`."""
    return device is None or supports_device(device)


def run_node(node: Any, inputs: Any, device: str | None = None, outputs_info: Any = None, **_: Any) -> NoReturn:
    """Refuse: nodes are run by `gpuexec.compat.onnx_backend`."""
    raise NotImplementedError("Single nodes are run by gpuexec.compat.onnx_backend.run_node.")


class OnnxRuntimeBackend:
    """ONNX Runtime's backend class: the functions of this module as static methods."""

    prepare = staticmethod(prepare)
    run_model = staticmethod(run)
    run_node = staticmethod(run_node)
    supports_device = staticmethod(supports_device)
    is_compatible = staticmethod(is_compatible)


OnnxRuntimeBackendRep = PreparedSession
# In ONNX Runtime it is a package whose module of this name has the class.
backend = sys.modules[__name__]


def _set_options(chosen: SessionOptions | RunOptions, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name in _REFUSED:
            raise make_error(BindingError, f"The option {name!r} can't be set from a backend; make a session.")
        if name in dir(chosen):
            setattr(chosen, name, value)
