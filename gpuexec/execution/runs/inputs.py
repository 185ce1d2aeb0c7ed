"""Inputs of a run: accepted forms, checks of names, dtypes and shapes before any work, inputs given as shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Stream
from gpuexec.errors import GpuexecError, InputError
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.frames import Readers
from gpuexec.execution.results.exchange import import_cuda, import_dlpack
from gpuexec.execution.results.place import Place
from gpuexec.execution.results.readback import ReadbackRequest
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.lists import check_count, split_inputs, to_array
from gpuexec.ir.containers import pack
from gpuexec.ir.spec import TensorSpec, holds_numbers, is_host_object, name_dtype
from gpuexec.model.model import Model
from gpuexec.model.ports import ModelPort

Array = np.ndarray[Any, Any]
# From how many bytes on a run that the caller waits for reads an array where it lies, where it may.
IN_PLACE_NBYTES = 1 << 20


class HostArray(NamedTuple):
    """An input whose content is on the host, or will be once ``request`` is done; else only its spec matters.

    ``is_borrowed``: the caller keeps the array as it is until the run is done. Not ``is_kept``: and no longer, so that
    later runs can't be without it.
    """

    spec: TensorSpec
    array: Array | None = None
    request: ReadbackRequest | None = None
    is_borrowed: bool = False
    is_kept: bool = True

    def returned(self) -> HostArray:
        """Return what is left once the caller has the array back."""
        return HostArray(self.spec, is_kept=False)


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An input on the backend's device, borrowed until the run is done.

    ``fence`` says when its content is there; only then need ``place`` know where the bytes are.
    """

    place: Place
    source: object
    fence: Fence
    readers: Readers | None = None

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype."""
        return self.place.spec


GivenInput = HostArray | DeviceArray


def with_room(given: Mapping[str, GivenInput], ends: Mapping[str, tuple[int, ...]]) -> dict[str, GivenInput]:
    """Return the inputs as they are at the upper ends of a size class, by name: the room that any size of it needs."""
    return {
        name: HostArray(item.spec.with_shape(ends[name])) if isinstance(item, HostArray) and name in ends else item
        for name, item in given.items()
    }


class InputReader:
    """Reads inputs for runs of a model on a stream of a backend."""

    def __init__(self, model: Model, backend: Backend, stream: Stream) -> None:
        self.model, self.backend, self.stream = model, backend, stream
        self._ports = {port.name: port for port in model.inputs}
        # Inputs of strings and containers, which stay on the host.
        self._objects = frozenset([port.name for port in model.ports if is_host_object(port.spec.dtype)])
        # The inputs that the run before was given, and the shapes that were found to fit last.
        self._given: frozenset[str] = frozenset()
        self._fitting: dict[str, tuple[int, ...]] = {}

    def accept(
        self, inputs: object, kept: Mapping[str, GivenInput], *, copy: bool = True, is_waited_for: bool = False
    ) -> dict[str, GivenInput]:
        """Return every input of the model by name: those given, and for the rest those of the run before.

        Args:
            inputs: One array, a list or tuple of them in the model's order, a mapping by name, or None. Nested lists
                are arrays as NumPy takes them; `split_inputs` says which list is one input.
            kept: Inputs of the run before.
            copy: Whether host arrays will be copied before the call returns; otherwise they are borrowed.
            is_waited_for: Whether the caller waits for the end of the run. On a device without kernels large arrays are
                then borrowed until it returns, where the run before was given one too: who gives an input anew each
                time hardly leaves it out the next time.

        Raises:
            InputError: One is missing, misspelt, or of the wrong dtype or shape.
        """
        again = self._given if is_waited_for and not self.backend.device.target.has_kernels else frozenset()
        named, ports = name_inputs(self.model, inputs), self._ports
        if not named.keys() <= ports.keys():
            ports = self._find_ports(named)
        if ports is not self._ports or len(named) < len(ports):
            self._check_complete(ports, named, kept)
        accepted: dict[str, GivenInput] = {}
        for name, port in ports.items():
            item = accepted[name] = (
                self._accept(port, named[name], copy=copy) if name in named else self._renew(port, kept[name])
            )
            if name in again and name in named and name in self._ports and isinstance(item, HostArray):
                accepted[name] = _lend(item)
        shapes = {name: item.spec.shape for name, item in accepted.items()}
        if shapes != self._fitting:
            check_shapes(self.model, {name: item.spec for name, item in accepted.items()})
            self._fitting = shapes
        self._given = frozenset(named)
        return accepted

    def _find_ports(self, named: Mapping[str, object]) -> dict[str, ModelPort]:
        """Return the inputs with those memories for which something is given; it does not stay set.

        Raises:
            InputError: A name is none of the model's.
        """
        ports = self._ports | {port.name: port for port in self.model.ports if port.name in named}
        header = self.model.info.header
        # An initializer that is an input too and that no node reads may be given, and has no effect.
        unknown = [name for name in named if name not in ports and name not in header.idle]
        if unknown:
            is_weight = unknown[0] in header.overridable
            weight = " That is a weight: Worker.replace_weights gives it other content." if is_weight else ""
            raise InputError(
                f"The model has no input {unknown[0]!r}; it has {', '.join(ports)}.{weight}", value=unknown[0]
            )
        return ports

    def _check_complete(
        self, ports: Mapping[str, ModelPort], named: Mapping[str, object], kept: Mapping[str, object]
    ) -> None:
        """Check that there is something for each input.

        Raises:
            InputError: There is not; names them all.
        """
        missing = [port for name, port in ports.items() if name not in named and name not in kept]
        if missing:
            raise InputError(
                "; ".join(f"input {port.name!r} ({port.spec}) is missing" for port in missing) + ".",
                value=missing[0].name,
            )

    def accept_one(self, port: ModelPort, item: object, *, copy: bool) -> GivenInput:
        """Return one input of the model; see `accept`. Its shape is not looked at."""
        return self._accept(port, item, copy=copy)

    def _renew(self, port: ModelPort, kept: GivenInput) -> GivenInput:
        """Return the input of the run before; a device array may have been written since, and is waited for anew.

        Raises:
            InputError: It was an array of the caller's, which may have been written since.
        """
        if isinstance(kept, HostArray) and not kept.is_kept:
            raise InputError(
                f"Input {port.name!r} is missing: the run before read it where it lies, and so it is not kept. Give it"
                " again, or give copy=True to the runs before.",
                value=port.name,
            )
        return kept if isinstance(kept, HostArray) else self._accept(port, kept.source, copy=True)

    def _accept(self, port: ModelPort, item: object, *, copy: bool) -> GivenInput:
        try:
            found = self._take(port, item, copy=copy)
        except GpuexecError as error:
            error.args = (f"Input {port.name!r}: {error.message}",)
            raise
        except Exception as error:
            raise InputError(
                f"Input {port.name!r}: a {type(item).__name__} can't be read as an array: {error}.", value=port.name
            ) from error
        if found.spec.dtype != port.spec.dtype and is_host_object(port.spec.dtype):
            raise InputError(f"Input {port.name!r} expects {port.spec}, got {found.spec}.", value=port.name)
        if found.spec.dtype != port.spec.dtype:
            got = name_dtype(found.spec.dtype)
            got = got if got != port.spec.dtype.name else found.spec.dtype.str
            raise InputError(
                f"Input {port.name!r} expects {port.spec.dtype.name}, got {got}; cast it:"
                f" x.astype({port.spec.dtype.name!r}).",
                value=port.name,
            )
        return found

    def _take(self, port: ModelPort, item: Any, *, copy: bool) -> GivenInput:
        if isinstance(item, Tensor):
            return self._take_tensor(item)
        if port.name in self._objects:
            packed = pack(item, port.spec)
            return HostArray(TensorSpec(packed.shape, packed.dtype), packed)
        if isinstance(item, (bool, int, float)):
            return HostArray(TensorSpec((), port.spec.dtype), _convert_scalar(item, port.spec.dtype))
        if isinstance(item, np.ndarray):
            return HostArray(TensorSpec(item.shape, item.dtype), item, is_borrowed=not copy)
        if hasattr(item, "__dlpack__"):
            taken = import_dlpack(item, self.backend, self.stream)
            if isinstance(taken, np.ndarray):
                return HostArray(TensorSpec(taken.shape, taken.dtype), taken, is_borrowed=not copy)
            return DeviceArray(Place(port.name, taken[0], taken[1]), item, taken[2])
        if hasattr(item, "__cuda_array_interface__"):
            spec, region, fence = import_cuda(item, self.backend)
            return DeviceArray(Place(port.name, spec, region), item, fence)
        array = to_array(item, port.spec)
        return HostArray(TensorSpec(array.shape, array.dtype), array)

    def _take_tensor(self, tensor: Tensor) -> GivenInput:
        content = tensor._content
        content.check()
        if not content.place.has_spec:
            content.wait_known("its shape is an input of another run")
        if content.place.is_object:
            return HostArray(content.spec, request=content.read_privately())
        if content.backend.device is self.backend.device:
            return DeviceArray(content.place, tensor, content.fence, content.lease.readers)
        # From another device: the run waits for the readback; the caller does not.
        return HostArray(content.spec, request=content.read_privately())


def _lend(item: HostArray) -> HostArray:
    """Return an input as one that is read where it lies, where it is large."""
    if item.is_borrowed or item.array is None or item.spec.nbytes < IN_PLACE_NBYTES:
        return item
    return HostArray(item.spec, item.array, is_borrowed=True, is_kept=False)


def check_sources(given: Mapping[str, GivenInput]) -> None:
    """Check once more that Tensors among the inputs hold what they stand for, now that they are known to be read.

    Raises:
        StaleError: A run elsewhere has begun to write one since it was accepted.
    """
    for item in given.values():
        if isinstance(item, DeviceArray) and isinstance(item.source, Tensor):
            with item.source._content.lease.lock:
                item.source._content.check()


def check_shapes(model: Model, specs: Mapping[str, TensorSpec]) -> None:
    """Check ranks, fixed extents, and that a dimension named twice has one extent; memories are left out.

    Raises:
        InputError: They don't fit; names input, expected and got.
    """
    check_ports(model, model.inputs, specs)


def check_ports(model: Model, ports: Sequence[ModelPort], specs: Mapping[str, TensorSpec]) -> None:
    """Check the shapes of these inputs as `check_shapes` does.

    Raises:
        InputError: They don't fit; names input, expected and got.
    """
    extents: dict[str, tuple[int, str]] = {}
    fitting: set[tuple[object, object]] = set()  # many memories are alike
    for port in ports:
        spec, dims = specs[port.name], port.spec.dims
        if dims is None or (dims, spec.shape) in fitting:
            continue
        if len(dims) != len(spec.shape):
            raise _misfit(port, spec, f"{spec.rank} axes, not {len(dims)}")
        for axis, (dim, extent) in enumerate(zip(dims, spec.shape, strict=True)):
            bound = model.dims.get(dim) if isinstance(dim, str) else dim
            low, high = bound if isinstance(bound, tuple) else (bound, bound)
            if low is not None and high is not None and not low <= extent <= high:
                wanted = str(low) if low == high else f"{low} to {high}"
                raise _misfit(port, spec, f"axis {axis} must be {wanted}")
            if isinstance(dim, str):
                known = extents.setdefault(dim, (extent, port.name))
                if known[0] != extent:
                    raise _misfit(port, spec, f"{dim!r} is {extent}, but {known[0]} in input {known[1]!r}")
        fitting.add((dims, spec.shape))


def _misfit(port: ModelPort, spec: TensorSpec, why: str) -> InputError:
    return InputError(f"Input {port.name!r} expects {port.spec}, got {spec}: {why}.", value=port.name)


def name_inputs(model: Model, inputs: object) -> dict[str, object]:
    """Return inputs by name: given so, or as one, or several in the model's order (`split_inputs`); any name will do.

    Raises:
        InputError: There are more than the model has.
    """
    if inputs is None:
        return {}
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if isinstance(inputs, np.ndarray) and model.inputs:
        return {model.inputs[0].name: inputs}
    given = split_inputs(model.inputs, inputs)
    check_count(model.inputs, given)
    return {port.name: item for port, item in zip(model.inputs, given, strict=False)}


def _convert_scalar(item: bool | int | float, dtype: np.dtype[Any]) -> Array:
    """Return a Python scalar in the input's dtype where that loses nothing but a float's precision."""
    kind = type(item).__name__
    if not holds_numbers(dtype, np.asarray(item)):
        raise InputError(f"a Python {kind} is no {dtype.name}; give np.{dtype.name}(...)")
    return np.asarray(item, dtype)


def is_shape(item: object) -> bool:
    """Return whether an input is given as a shape: a tuple of whole numbers."""
    return isinstance(item, tuple) and all(
        isinstance(each, (int, np.integer)) and not isinstance(each, bool) for each in item
    )


def describe_inputs(input_reader: InputReader, inputs: object) -> tuple[dict[str, GivenInput], dict[str, object]]:
    """Return the inputs of a model to plan for, and those among them that have content.

    Args:
        input_reader: Of the model.
        inputs: One, a list in the model's order, or a mapping by name, of arrays or shapes. Inputs of fixed shape need
            not be given, nor do memories.

    Raises:
        InputError: One is missing, misspelt, or of the wrong dtype or shape.
    """
    model = input_reader.model
    if isinstance(inputs, (list, tuple)):
        # A tuple of whole numbers is a shape here, and no array of one axis.
        inputs = [inputs] if is_shape(inputs) else inputs
        if any(map(is_shape, inputs)):
            check_count(model.inputs, inputs)
            inputs = {port.name: item for port, item in zip(model.inputs, inputs, strict=False)}
    named = name_inputs(model, inputs)
    unknown = sorted(set(named) - {port.name for port in model.ports})
    if unknown:
        raise InputError(
            f"The model has no input {unknown[0]!r}; it has {', '.join(port.name for port in model.ports)}.",
            value=unknown[0],
        )
    # What memories hold is the state's to tell, unless it is given.
    ports = [port for port in model.ports if port in model.inputs or port.name in named]
    described = {port.name: _describe(input_reader, port, named.get(port.name)) for port in ports}
    check_shapes(model, {name: item.spec for name, item in described.items()})
    return described, {name: item for name, item in named.items() if item is not None and not is_shape(item)}


def _describe(input_reader: InputReader, port: ModelPort, item: Any) -> GivenInput:
    if item is None:
        return HostArray(TensorSpec(_find_fixed(input_reader.model.dims, port), port.spec.dtype))
    if is_shape(item):
        if any(extent < 0 for extent in item):
            raise InputError(f"Input {port.name!r} expects {port.spec}, got the shape {item}.", value=port.name)
        return HostArray(TensorSpec(tuple([int(extent) for extent in item]), port.spec.dtype))
    if isinstance(item, Tensor) or hasattr(item, "__cuda_array_interface__"):
        # Its content is of no use to planning, and need not be there.
        return HostArray(TensorSpec(tuple(item.shape), port.spec.dtype))
    return input_reader.accept_one(port, item, copy=True)


def _find_fixed(dims: Mapping[str, object], port: ModelPort) -> tuple[int, ...]:
    extents = [dims.get(dim) if isinstance(dim, str) else dim for dim in port.spec.dims or ()]
    fixed = tuple(extent for extent in extents if isinstance(extent, int))
    if port.spec.dims is None or len(fixed) != len(extents):
        raise InputError(
            f"Input {port.name!r} ({port.spec}) has free dimensions; give an array or a shape.", value=port.name
        )
    return fixed
