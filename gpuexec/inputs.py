"""What callers may give as inputs, and the checks before any work: names, dtypes, shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.memory import BorrowedMemory
from gpuexec.model import Model, ModelPort
from gpuexec.readback import Fence, ReadbackRequest
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Event, Region
from gpuexec.spec import TensorSpec
from gpuexec.tensor import Tensor

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class HostArray:
    """An input whose content is on the host (None: only its spec matters), or will be once ``request`` is done."""

    spec: TensorSpec
    array: Array | None
    request: ReadbackRequest | None = None


@dataclass(slots=True)
class DeviceArray:
    """An input on a device, borrowed until the run is done. ``fence`` says when its content is there."""

    spec: TensorSpec
    region: Region
    owner: object
    tensor: Tensor | None = None
    fence: Fence | None = None
    guard: Callable[[Event], None] | None = None

    def is_on(self, backend: Backend) -> bool:
        """Return whether the backend can read it where it is."""
        return self.tensor is None or self.tensor._backend is backend


GivenInput = HostArray | DeviceArray


def accept_inputs(model: Model, inputs: object, kept: Mapping[str, GivenInput]) -> dict[str, GivenInput]:
    """Return every input of the model by name: those given, and for the rest those of the run before.

    Args:
        model: Whose inputs.
        inputs: One array, a list or tuple of them in the model's order, a mapping by name, or None.
        kept: Inputs of the run before.

    Raises:
        InputError: One is missing, misspelt, or of the wrong dtype or shape.
    """
    named = _name(model, inputs)
    unknown = [name for name in named if name not in {port.name for port in model.inputs}]
    if unknown:
        raise InputError(f"The model has no input {unknown[0]!r}; it has {', '.join(p.name for p in model.inputs)}.", value=unknown[0])
    accepted: dict[str, GivenInput] = {}
    for port in model.inputs:
        if port.name in named:
            accepted[port.name] = _accept(port, named[port.name])
        elif port.name in kept:
            accepted[port.name] = kept[port.name]
        else:
            raise InputError(f"Input {port.name!r} ({port.spec}) is missing.", value=port.name)
    check_shapes(model, {name: item.spec for name, item in accepted.items()})
    return accepted


def check_shapes(model: Model, specs: Mapping[str, TensorSpec]) -> None:
    """Check ranks, fixed extents, and that a dimension named twice has one extent.

    Raises:
        InputError: They don't fit; names input, expected and got.
    """
    extents: dict[str, tuple[int, str]] = {}
    for port in model.inputs:
        spec, dims = specs[port.name], port.spec.dims
        if dims is None:
            continue
        if len(dims) != spec.rank:
            raise InputError(f"Input {port.name!r} expects {port.spec}, got {spec}: {len(dims)} axes, not {spec.rank}.", value=port.name)
        for axis, (dim, extent) in enumerate(zip(dims, spec.shape, strict=True)):
            bound = model.dims.get(dim) if isinstance(dim, str) else dim
            low, high = bound if isinstance(bound, tuple) else (bound, bound)
            if low is not None and high is not None and not low <= extent <= high:
                wanted = str(low) if low == high else f"{low} to {high}"
                raise InputError(f"Input {port.name!r} expects {port.spec}, got {spec}: axis {axis} must be {wanted}.", value=port.name)
            if isinstance(dim, str):
                known = extents.setdefault(dim, (extent, port.name))
                if known[0] != extent:
                    raise InputError(
                        f"Input {port.name!r}: dimension {dim!r} is {extent}, but {known[0]} in input {known[1]!r}.", value=port.name
                    )


def _name(model: Model, inputs: object) -> dict[str, object]:
    if inputs is None:
        return {}
    if isinstance(inputs, Mapping):
        return dict(inputs)
    given: Sequence[object] = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    if len(given) > len(model.inputs):
        raise InputError(f"The model has {len(model.inputs)} inputs, got {len(given)}.")
    return {port.name: item for port, item in zip(model.inputs, given, strict=False)}


def _accept(port: ModelPort, item: object) -> GivenInput:
    if isinstance(item, Tensor):
        found: GivenInput = _accept_tensor(item)
    elif isinstance(item, np.ndarray):
        found = HostArray(TensorSpec(item.shape, item.dtype), item)
    elif hasattr(item, "__cuda_array_interface__"):
        found = _accept_cuda(port, item)
    elif hasattr(item, "__dlpack__"):
        found = _accept_dlpack(port, item)
    elif isinstance(item, (bool, int, float)):
        found = HostArray(TensorSpec((), port.spec.dtype), np.asarray(item, port.spec.dtype))
    else:
        array = np.asarray(item)
        found = HostArray(TensorSpec(array.shape, array.dtype), array)
    if found.spec.dtype != port.spec.dtype:
        raise InputError(
            f"Input {port.name!r} expects {port.spec.dtype.name}, got {found.spec.dtype.name}; cast it: x.astype({port.spec.dtype.name!r}).",
            value=port.name,
        )
    return found


def _accept_tensor(tensor: Tensor) -> DeviceArray:
    tensor._check()
    return DeviceArray(tensor.spec, tensor._region, tensor, tensor, tensor._fence, tensor._guard)


def _accept_cuda(port: ModelPort, item: Any) -> GivenInput:
    interface = item.__cuda_array_interface__
    spec = TensorSpec(tuple(interface["shape"]), np.dtype(interface["typestr"]))
    strides = interface.get("strides")
    dense = tuple(int(np.prod(spec.shape[axis + 1 :])) * spec.dtype.itemsize for axis in range(spec.rank))
    if strides is not None and tuple(strides) != dense and spec.size > 1:
        raise InputError(f"Input {port.name!r}: a device array must be dense, got strides {tuple(strides)}; make it contiguous.", value=port.name)
    return DeviceArray(spec, Region(BorrowedMemory(interface["data"][0], spec.nbytes, item), 0, spec.nbytes), item)


def _accept_dlpack(port: ModelPort, item: Any) -> GivenInput:
    kind = int(item.__dlpack_device__()[0])
    if kind not in (1, 3):
        raise InputError(f"Input {port.name!r}: a DLPack array on device type {kind} can't be read here.", value=port.name)
    array = np.from_dlpack(item)
    return HostArray(TensorSpec(array.shape, array.dtype), array)
