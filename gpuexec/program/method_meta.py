"""Description of a method before it is loaded: inputs, outputs, memory needs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gpuexec.devices.backend import Backend, BackendType
from gpuexec.devices.device import align
from gpuexec.errors import InputError
from gpuexec.execution.results.arenas import make_bytes
from gpuexec.ir.plan import Plan
from gpuexec.ir.spec import Dim, TensorSpec, is_container, is_host_object, name_dtype
from gpuexec.model.model import Model
from gpuexec.model.ports import ModelPort
from gpuexec.program.method_plan import MethodPlan, lay_out_state

# The planned buffers, by index. The last lies on the host.
ACTIVATIONS, INPUTS, OUTPUTS, STATE, STAGING = range(5)
PURPOSES = ("activations", "inputs", "outputs", "state", "staging")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """An input or output of a method.

    Attributes:
        name: What it is called.
        dtype: Element type.
        sizes: Upper bounds of its extents; None where an extent has none.
        dims: The extents as declared: numbers, names of free dimensions, or None.
        nbytes: Bytes at the upper bounds; None where there are none.
        is_memory_planned: Whether its bytes lie in planned memory.
    """

    name: str
    dtype: np.dtype[Any]
    sizes: tuple[int | None, ...]
    dims: tuple[Dim, ...]
    nbytes: int | None
    is_memory_planned: bool


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """A block of memory that a method needs: what for, how many bytes, and where: ``cuda:0``, ``cpu``, ``host``."""

    purpose: str
    nbytes: int
    device: str


class MethodMeta:
    """Describes a method for one device; made by `Program.method_meta`. Immutable.

    Planned buffers are, by index: activations, inputs, outputs, state, and staging, which lies on the host. Sizes are
    what the plan of the declared bounds needs, to the byte; a buffer that is not needed has none, and those behind the
    last that is needed are left out.

    Example:
        >>> program = gx.Program.build({"forward": model}, shapes={"forward": {"image": ((1, 8), 1, 8, 8)}})
        >>> meta = program.method_meta("forward")
        >>> meta.num_inputs, meta.num_outputs, str(meta.input_tensor_meta(0).dtype)
        (1, 2, 'float32')
    """

    def __init__(
        self,
        name: str,
        model: Model,
        plan: MethodPlan,
        backend: Backend,
        *,
        planned_inputs: bool = True,
        planned_outputs: bool = True,
    ) -> None:
        self.name = name
        self._model, self._plan, self._backend = model, plan, backend
        self._planned_inputs, self._planned_outputs = planned_inputs, planned_outputs
        # Where each input and output lies in its buffer, and memories that the host sets; blocks of state behind them.
        self._input_offsets, inputs_nbytes = _convert_formats([_nbytes(each.largest) for each in plan.bounds])
        self._output_offsets, outputs_nbytes = _convert_formats([need.nbytes for need in plan.outputs])
        has_kernels = backend.device.target.has_kernels
        self._state_places, self._state_start, self._state_nbytes = lay_out_state(
            plan.memories, has_kernels=has_kernels
        )
        device, sizes = name_device(backend), [0] * len(PURPOSES)
        if plan.has_bounds:
            sizes[ACTIVATIONS] = _count_arena(plan.plan) if plan.plan is not None else 0
            sizes[INPUTS] = inputs_nbytes if planned_inputs else 0
            sizes[OUTPUTS] = outputs_nbytes if planned_outputs else 0
            sizes[STATE] = self._state_nbytes
            sizes[STAGING] = sizes[INPUTS] if has_kernels else 0
        used = max((index + 1 for index, nbytes in enumerate(sizes) if nbytes), default=0)
        self._buffers = tuple(
            PlannedBuffer(purpose, nbytes, "host" if purpose == "staging" else device)
            for purpose, nbytes in zip(PURPOSES[:used], sizes, strict=False)
        )

    def __repr__(self) -> str:
        buffers = ", ".join(f"{buffer.purpose} {buffer.nbytes} B on {buffer.device}" for buffer in self._buffers)
        return f"MethodMeta({self.name!r}, {self.num_inputs} inputs, {self.num_outputs} outputs; {buffers})"

    @property
    def num_inputs(self) -> int:
        """Number of inputs."""
        return len(self._model.inputs)

    @property
    def num_outputs(self) -> int:
        """Number of outputs."""
        return len(self._model.outputs)

    @property
    def num_attributes(self) -> int:
        """Number of tensors that outlive a run: those of the state."""
        return len(self._model.memories)

    def input_tag(self, index: int) -> str:
        """Return what kind of value an input is: ``"Tensor"``, ``"Sequence"``, ``"Optional"`` or ``"Map"``."""
        return _name_kind(_pick(self._model.inputs, index, self.name, "inputs"))

    def output_tag(self, index: int) -> str:
        """Return what kind of value an output is; see `input_tag`."""
        return _name_kind(_pick(self._model.outputs, index, self.name, "outputs"))

    def input_tensor_meta(self, index: int) -> TensorMeta:
        """Describe an input.

        Raises:
            InputError: There is none of that index.
        """
        port = _pick(self._model.inputs, index, self.name, "inputs")
        bounds = self._plan.bounds[index]
        nbytes = _nbytes(bounds.largest)
        return _describe(port, bounds.sizes, nbytes, self._planned_inputs and nbytes is not None)

    def output_tensor_meta(self, index: int) -> TensorMeta:
        """Describe an output.

        Raises:
            InputError: There is none of that index.
        """
        port = _pick(self._model.outputs, index, self.name, "outputs")
        need = self._plan.outputs[index]
        sizes = None if need.spec is None else need.spec.shape
        nbytes = _nbytes(need.spec)
        return _describe(port, sizes, nbytes, self._planned_outputs and need.nbytes is not None)

    def output_nbytes(self, index: int) -> int:
        """Return how many bytes an output's buffer takes at most; 0 where only a run knows.

        Raises:
            InputError: There is none of that index.
        """
        return _pick(self._plan.outputs, index, self.name, "outputs").nbytes or 0

    @property
    def num_memory_planned_buffers(self) -> int:
        """Number of planned memory blocks."""
        return len(self._buffers)

    @property
    def memory_planned_buffers(self) -> tuple[PlannedBuffer, ...]:
        """The blocks."""
        return self._buffers

    def memory_planned_buffer_size(self, index: int) -> int:
        """Return how many bytes a block needs.

        Raises:
            InputError: There is none of that index.
        """
        return _pick(self._buffers, index, self.name, "planned buffers").nbytes

    def memory_planned_buffer_device(self, index: int) -> str:
        """Return where a block has to lie: ``cuda:0``, ``simulator``, ``cpu``, or ``host`` (pinned where it can be).

        Raises:
            InputError: There is none of that index.
        """
        return _pick(self._buffers, index, self.name, "planned buffers").device

    @property
    def _has_planned_inputs(self) -> bool:
        """True where inputs lie in planned memory, even of no bytes."""
        return self._planned_inputs and self._plan.has_bounds

    @property
    def gaps(self) -> tuple[str, ...]:
        """Why the planned buffers are not all it needs; empty where they are, and a run allocates nothing."""
        return self._plan.gaps

    def allocate(self) -> list[object]:
        """Return new blocks for all planned buffers, ready for a HierarchicalAllocator: Tensors, and NumPy on the host.

        Raises:
            OutOfMemoryError: There is no room.
        """
        return allocate_buffers(self._backend, self._buffers)

    @property
    def num_instructions(self) -> int:
        """Number of commands of the first plan at the upper bounds; 0 where no plan is known yet."""
        return 0 if self._plan.plan is None else len(self._plan.plan.segment.commands)

    @property
    def host_fallbacks(self) -> tuple[str, ...]:
        """Nodes that the host computes because the device has no kernel for them."""
        return self._plan.host_calls

    def uses_backend(self, name: str) -> bool:
        """Return whether it runs on a device of that name; ``"host"``: whether something runs on the host instead."""
        device = name_device(self._backend)
        return name in (device, device.partition(":")[0]) or (name == "host" and bool(self.host_fallbacks))


def name_device(backend: Backend) -> str:
    """Return what a backend's device is called: ``cuda:0``, ``simulator``, ``cpu``."""
    if backend.type is BackendType.GPU_COMPUTE:
        return f"cuda:{getattr(backend.device, 'ordinal', 0)}"
    return str(backend.type.value)


def allocate_buffers(backend: Backend, buffers: Sequence[PlannedBuffer]) -> list[object]:
    """Return new blocks for planned buffers."""
    blocks: list[object] = []
    for buffer in buffers:
        if buffer.device == "host":
            blocks.append(backend.device.allocate_pinned(max(buffer.nbytes, 1)).array)
        else:
            blocks.append(make_bytes(backend, buffer.nbytes, buffer.purpose))
    return blocks


def _name_kind(port: ModelPort) -> str:
    dtype = port.spec.dtype
    return name_dtype(dtype).capitalize() if is_container(dtype) else "Tensor"


def _nbytes(spec: TensorSpec | None) -> int | None:
    """Return how many bytes a tensor takes on a device; None where that is unknown, or it is none that lies there."""
    return None if spec is None or is_host_object(spec.dtype) else spec.nbytes


def _count_arena(plan: Plan) -> int:
    """Return the bytes of a plan's temporaries, and of its counters behind them."""
    nbytes, counters = plan.layout.nbytes, plan.counters_nbytes
    return align(nbytes) + counters if counters else nbytes


def _convert_formats(sizes: Sequence[int | None]) -> tuple[tuple[int | None, ...], int]:
    """Return where blocks of these sizes lie one behind the other, each aligned, and the bytes of all."""
    offsets: list[int | None] = []
    end = 0
    for nbytes in sizes:
        start = align(end)
        offsets.append(None if nbytes is None else start)
        end = end if nbytes is None else start + nbytes
    return tuple(offsets), end


def _describe(
    port: ModelPort, sizes: tuple[int | None, ...] | None, nbytes: int | None, is_planned: bool
) -> TensorMeta:
    dims = port.spec.dims or ()
    known = tuple(dim if isinstance(dim, int) else None for dim in dims) if sizes is None else sizes
    return TensorMeta(port.name, port.spec.dtype, known, dims, nbytes, is_planned)


def _pick(items: Sequence[_Item], index: int, method: str, what: str) -> _Item:
    try:
        number = operator.index(index)
    except TypeError:
        raise InputError(f"Method {method!r}: {index!r} is no index of its {what}.") from None
    if not 0 <= number < len(items):
        raise InputError(f"Method {method!r} has {len(items)} {what}, got index {number}.")
    return items[number]
