"""Direct execution of lowered commands on the simulator, launch by launch, without a planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.instances import kernel_table
from gpuexec.ir.operator import Array, Join, Operator
from gpuexec.ir.provider import Posed
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.weight_forms import PackedForm, WeightForm
from tests.devices.opening import open_living

# Of floats, about as much as cases may have to run in check mode (tests/ops/harness.py).
MAX_CHECKED_BYTES = 1 << 18

_LOADED: dict[str, Mapping[str, SimulatorFunction]] = {}


class DirectEmitter:
    """An emitter that runs a launch at once. Every slot is a window on an array of this object."""

    target = Target.named("sm_90")
    has_one_size = False

    def __init__(self, choices: Sequence[int] | None = None) -> None:
        self._choices = None if choices is None else iter(choices)
        self.choices: list[int] = []
        self.arrays: list[Array] = []
        self.launches: list[tuple[Kernel, Sequence[Argument]]] = []
        self.in_place_allowed: list[tuple[Slot, Slot]] = []
        self.aliases: dict[int, Slot] = {}

    def slot(self, array: Array, known: bool = False) -> Slot:
        """Return a window with the array's strides on a copy of its memory; negative strides included."""
        lead = sum((n - 1) * -s for n, s in zip(array.shape, array.strides, strict=True) if s < 0) if array.size else 0
        reach = (
            sum((n - 1) * abs(s) for n, s in zip(array.shape, array.strides, strict=True)) + array.itemsize
            if array.size
            else 0
        )
        memory = np.full(reach + 64, 0xCD, np.uint8)
        window = np.ndarray(array.shape, array.dtype, memory, lead, array.strides)
        window[...] = array
        self.arrays.append(memory)
        spec = TensorSpec.of(array) if known else TensorSpec(array.shape, array.dtype)
        return Slot(len(self.arrays) - 1, lead, spec, tuple(s // array.itemsize for s in array.strides))

    def fresh(self, shape: tuple[int, ...], dtype: Any) -> Slot:
        """Return a window on new memory."""
        array = np.empty(shape, dtype)
        self.arrays.append(np.full(array.nbytes + 64, 0xCD, np.uint8))
        return Slot(len(self.arrays) - 1, 0, TensorSpec(shape, np.dtype(dtype)), contiguous_strides(shape))

    def read(self, slot: Slot) -> Array:
        """Return the array a slot shows."""
        slot = self.aliases.get(slot.buffer, slot)
        strides = tuple(s * slot.dtype.itemsize for s in slot.strides)
        return np.ndarray(slot.shape, slot.dtype, self.arrays[slot.buffer], slot.offset_bytes, strides)

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Argument],
        writes: Sequence[int],
        shared_bytes: int = 0,
        cooperative: bool = False,
    ) -> None:
        """Run the kernel on the simulator; nothing where all it writes is empty."""
        written = [arguments[i] for i in writes]
        assert written and all(isinstance(each, Slot) for each in written)
        self.launches.append((kernel, arguments))
        if all(isinstance(each, Slot) and each.spec.size == 0 for each in written):
            return
        memory = [self.arrays[a.buffer] if isinstance(a, Slot) else a for a in arguments]
        values = [
            each[a.offset_bytes :] if isinstance(a, Slot) else a for a, each in zip(arguments, memory, strict=True)
        ]
        self.find_function(kernel).launch_arrays(
            *(grid, block, *values), shared_bytes=shared_bytes, is_cooperative=cooperative, memory=memory
        )

    def find_function(self, kernel: Kernel) -> SimulatorFunction:
        """Return a kernel on the simulator, loaded with those of its file.

        One of generated text is that of the operator's cases, which is compiled once: in check mode where the arrays
        are small.
        """
        if kernel.text:
            is_small = sum(array.nbytes for array in self.arrays) <= MAX_CHECKED_BYTES
            device = open_living("check" if is_small else "simulator")
            assert isinstance(device, SimulatorDevice)
            device.load([kernel])
            return device.function(kernel)
        if kernel.source not in _LOADED:
            _LOADED[kernel.source] = load_file(kernel.source, kernel_table()[kernel.source])
        return _LOADED[kernel.source][kernel.expression]

    def provide(self, pose: Callable[[], Posed], launch: Callable[[], None], *, keeps_order: bool = False) -> bool:
        """Launch our kernels: there is no library."""
        launch()
        return False

    def join(self, launch: Callable[[], None], join: Join) -> None:
        """Launch all."""
        launch()

    def leaves_to_host(self) -> bool:
        """Never: there are kernels."""
        return False

    def alias(self, output: Slot, view: Slot) -> None:
        """Remember the view."""
        self.aliases[output.buffer] = view

    def in_place(self, output: Slot, source: Slot) -> None:
        """Remember what was allowed."""
        self.in_place_allowed.append((output, source))

    def place(self, source: Slot, window: Slot) -> bool:
        """Never: there is no arena."""
        return False

    def contiguous(self, slot: Slot) -> Slot:
        """Return a dense copy."""
        return slot if slot.is_contiguous else self.slot(np.ascontiguousarray(self.read(slot)))

    def copy(self, destination: Slot, source: Slot) -> None:
        """Copy."""
        self.read(destination)[...] = self.read(source)

    def fill(self, destination: Slot, value: Any) -> None:
        """Fill."""
        self.read(destination)[...] = value

    def temp(self, shape: tuple[int, ...], dtype: Any) -> Slot:
        """Return new memory."""
        return self.fresh(shape, dtype)

    def constant(self, array: Array) -> Slot:
        """Return a copy."""
        return self.slot(np.ascontiguousarray(array).reshape(array.shape), known=True)

    def is_weight(self, slot: Slot) -> bool:
        """Return that it does: every slot is taken for a weight."""
        return True

    def packed(self, slot: Slot, form: WeightForm) -> Slot | None:
        """Return a packed copy: every slot is taken for a weight."""
        source = np.ascontiguousarray(self.read(slot))
        packed = PackedForm.of(form, TensorSpec.of(source), tuple(range(source.ndim)))
        return self.slot(packed.pack(source))

    def counters(self, count: int) -> Slot:
        """Return new zeros."""
        return self.slot(np.zeros(count, np.uint32))

    def choose(self, now: int | Callable[[], int]) -> int:
        """Return the number, or what another emitter has chosen at the upper end of a size class."""
        chosen = (now() if callable(now) else now) if self._choices is None else next(self._choices)
        self.choices.append(chosen)
        return chosen

    def divide(self, now: int) -> int:
        """Return the number: there is one size."""
        return now

    def index_type(self, *slots: Slot) -> str:
        """Return int: nothing here is large."""
        return "int"


def lower_and_run(
    op: Operator, inputs: Sequence[Array | None], known: Sequence[int] = (), wanted: Sequence[bool] = ()
) -> tuple[Array, ...]:
    """Return what the kernels of an operator make of arrays, which keep their strides.

    Args:
        known: Inputs whose content planning knows.
        wanted: Which outputs are there, and returned: all of them by default, else as many as it is long at most.
    """
    emit = DirectEmitter()
    slots = tuple(None if x is None else emit.slot(x, i in known) for i, x in enumerate(inputs))
    specs = op.infer(*(None if s is None else s.spec for s in slots))
    outputs = tuple(
        emit.fresh(spec.shape, spec.dtype) if is_wanted else None
        for spec, is_wanted in zip(specs, wanted or (True,) * len(specs), strict=False)
    )
    assert op.lower is not None
    op.lower(emit, slots, outputs)
    return tuple(emit.read(y).copy() for y in outputs if y is not None)


class PlanningEmitter(DirectEmitter):
    """Keeps what would be launched, with the arrays as they are then, and runs nothing."""

    def launch(
        self, kernel: Kernel, grid: Any, block: Any, arguments: Sequence[Argument], *args: Any, **_: Any
    ) -> None:
        """Keep the launch."""
        self.kept = (kernel, grid, block, arguments)
        self.launches.append((kernel, arguments))
