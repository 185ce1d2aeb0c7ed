"""Execution providers as backends: names, selection from a list, and provider options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from gpuexec.compat.onnxruntime.errors import BindingError, EPFail, InvalidArgument, make_error
from gpuexec.compat.onnxruntime.notices import warn_once
from gpuexec.devices.backend import Backend, BackendType, open_backend
from gpuexec.devices.cuda import driver
from gpuexec.devices.simulator.toolchain import find_compiler
from gpuexec.errors import DeviceError, KernelError

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
SIMULATOR_PROVIDER = "GpuexecSimulatorExecutionProvider"
# The default order of precedence.
BACKENDS = {
    CUDA_PROVIDER: BackendType.GPU_COMPUTE,
    CPU_PROVIDER: BackendType.CPU,
    SIMULATOR_PROVIDER: BackendType.SIMULATOR,
}
# Providers of ONNX Runtime that are not available here.
_OTHERS = frozenset(
    f"{name}ExecutionProvider"
    for name in (
        *("ACL", "ArmNN", "Azure", "CANN", "CoreML", "Dml", "Dnnl", "JS", "Js", "MIGraphX", "Nnapi", "NvTensorRTRTX"),
        *("OpenVINO", "QNN", "ROCM", "Rknpu", "SNPE", "Tensorrt", "Tvm", "VSINPU", "VitisAI", "WebGpu", "WebNN"),
        *("Xnnpack",),
    )
)
# Provider options with an effect.
_OPTIONS = frozenset({"device_id", "gpu_mem_limit", "user_compute_stream"})
# Provider options without effect: runs are graphs where that pays, and outputs have the form that was asked for.
_TRUE_ANYWAY = frozenset({"enable_cuda_graph"})


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider chosen for a session.

    ``max_bytes`` and ``stream`` are for its Workers (None: no limit, a stream of their own).
    """

    name: str
    backend: Backend
    options: Mapping[str, str] = field(default_factory=dict)
    max_bytes: int | None = None
    stream: int | None = None


def get_all_providers() -> list[str]:
    """Return the names of all providers, whether or not they work here; the CPU's is the last."""
    return sorted(BACKENDS, key=CPU_PROVIDER.__eq__)


def get_available_providers() -> list[str]:
    """Return the names of the providers that work here, in the order of their precedence."""
    return [name for name in BACKENDS if _is_available(name)]


def get_device() -> str:
    """Return ``"GPU"`` where one works, else ``"CPU"``."""
    return "GPU" if _is_available(CUDA_PROVIDER) else "CPU"


def choose_provider(
    providers: Sequence[str | tuple[str, Mapping[Any, Any]]] | str | None,
    provider_options: Sequence[Mapping[Any, Any]] | None = None,
    *,
    threads: int = 0,
    falls_back: bool = True,
    severity: int = -1,
) -> Provider:
    """Return the first of these providers that works here, with its device opened.

    Those that don't are named once in a warning, with the reason, and if none does it is the CPU.

    Args:
        providers: Names, or (name, options), those preferred first; None or none: all that work here.
        provider_options: Options for each, where ``providers`` are names.
        threads: The most threads on the CPU; 0: as many as cores.
        falls_back: False: refuse where the first does not work.
        severity: From which severity on there are warnings.

    Raises:
        InvalidArgument: The arguments don't fit together, or an option's value is none.
        EPFail: The device of that ordinal can't be used, or the first provider and ``falls_back`` is False.
    """
    wanted = _pair(providers, provider_options) or [(name, {}) for name in get_available_providers()]
    for name, options in wanted:
        why = f"there is no provider {name!r}; there are {', '.join(BACKENDS)}"
        if name in BACKENDS:
            try:
                return _open(name, options, threads, severity)
            except (DeviceError, KernelError) as error:
                if _is_available(name):
                    raise make_error(EPFail, f"{name}: {error}", error) from error
                why = str(error)
        if not falls_back:
            raise make_error(EPFail, f"{name} can't be used, and nothing else may be: {why}")
        warn_once(f"{name} is not used: {why}", severity)
    return _open(CPU_PROVIDER, {}, threads, severity)


def check_known(providers: Sequence[str | tuple[str, Mapping[Any, Any]]] | str | None) -> None:
    """Check that providers are known names; ONNX Runtime's that are not available here are skipped later.

    Raises:
        BindingError: One is neither.
    """
    for item in [providers] if isinstance(providers, str) else list(providers or ()):
        name = item[0] if isinstance(item, tuple) and item else item
        if isinstance(name, str) and name not in (*BACKENDS, *_OTHERS):
            raise make_error(BindingError, f"Unknown Provider Type: {name}; there are {', '.join(BACKENDS)}.")


def check_and_normalize_provider_args(
    providers: Sequence[str | tuple[str, Mapping[Any, Any]]] | None,
    provider_options: Sequence[Mapping[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names of providers, each once, and the options of each as strings.

    Args:
        providers: Names, or (name, options).
        provider_options: Options for each, where ``providers`` are names.
        available_provider_names: Others are named in a warning.

    Raises:
        InvalidArgument: The arguments don't fit together.
    """
    pairs = _pair(providers, provider_options)
    for name, _ in pairs:
        if name not in available_provider_names:
            warn_once(f"The provider {name} is none of those available: {', '.join(available_provider_names)}.")
    return [name for name, _ in pairs], [options for _, options in pairs]


def _pair(
    providers: Sequence[str | tuple[str, Mapping[Any, Any]]] | str | None,
    provider_options: Sequence[Mapping[Any, Any]] | None,
) -> list[tuple[str, dict[str, str]]]:
    """Pair provider names with their options as strings; the first of a repeated name counts."""
    given = [providers] if isinstance(providers, str) else providers or ()
    for what, items in (("providers", given), ("provider_options", provider_options or ())):
        if isinstance(items, str | Mapping) or not isinstance(items, Sequence):
            raise make_error(InvalidArgument, f"{what} takes a list, got {items!r}.")
    if provider_options and len(provider_options) != len(given):
        message = f"Got {len(provider_options)} provider_options for {len(given)} providers; expected one for each."
        raise make_error(InvalidArgument, message)
    pairs: dict[str, dict[str, str]] = {}
    for index, item in enumerate(given):
        name, options = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        if not isinstance(name, str) or not isinstance(options, Mapping | None):
            raise make_error(InvalidArgument, f"A provider is a name or (name, options), got {item!r}.")
        if provider_options:
            if options is not None:
                raise make_error(InvalidArgument, f"Options of {name} stand in providers and in provider_options.")
            options = provider_options[index]
            if not isinstance(options, Mapping):
                raise make_error(InvalidArgument, f"The options of {name} are a dict, got {options!r}.")
        if name in pairs:
            warn_once(f"The provider {name} is given twice; the first counts.")
            continue
        pairs[name] = {str(key): str(value) for key, value in (options or {}).items()}
    return list(pairs.items())


def _open(name: str, options: Mapping[str, str], threads: int, severity: int) -> Provider:
    for key in options:
        if key not in _OPTIONS | _TRUE_ANYWAY or (name == CPU_PROVIDER and key in _OPTIONS):
            warn_once(f"The option {key!r} of {name} is ignored.", severity)
    if name == CPU_PROVIDER:
        return Provider(name, open_backend(BackendType.CPU, threads=threads or None), options)
    backend = open_backend(BACKENDS[name], _read_int(name, options, "device_id") or 0)
    limit = _read_int(name, options, "gpu_mem_limit")
    return Provider(name, backend, options, limit, _read_int(name, options, "user_compute_stream"))


def _read_int(name: str, options: Mapping[str, str], key: str) -> int | None:
    text = options.get(key)
    if text is None:
        return None
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if value < 0:
        raise make_error(InvalidArgument, f"The option {key!r} of {name} takes a whole number, got {text!r}.")
    return value


def _is_available(name: str) -> bool:
    """Return whether a provider works here, without opening its device."""
    if name == CUDA_PROVIDER:
        return bool(driver.probe().devices) and find_spec("cupy") is not None
    if name == SIMULATOR_PROVIDER:
        try:
            find_compiler()
        except KernelError:
            return False
    return True
