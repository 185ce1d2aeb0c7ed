"""Epilogues: elementwise operators applied by a kernel to its results before they are stored.

A kernel of ``_KERNELS`` has, for each float type, an instance with an epilogue (``epilogue.cuh``), which takes
two operands and the steps behind its own arguments. `FinishingEmitter` puts them into the launch that an operator makes
as it always does, so no lowering and no kernel is written twice. Doubles have no such instance: their sums leave a
kernel of tiles no registers.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import memory_axes, permute
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Array, Emitter, Operator, Slots, build
from gpuexec.ir.provider import Posed
from gpuexec.ir.spec import BFLOAT16, dtype_row
from gpuexec.ir.weight_forms import WeightForm
from gpuexec.ops.elementwise.elementwise import Elementwise
from gpuexec.ops.elementwise.elementwise_binary import ROWS as BINARY_ROWS
from gpuexec.ops.elementwise.elementwise_select import Clip
from gpuexec.ops.elementwise.elementwise_unary import ROWS as UNARY_ROWS
from gpuexec.ops.lib.posing import finish_posed
from gpuexec.ops.lib.strided import pack_fast_div32
from gpuexec.ops.quant.narrow_weight import PAIRS, name_types

# Functors in the order of UnaryStep and BinaryStep of epilogue.cuh.
UNARY = (
    *("Abs", "Neg", "Relu", "LeakyRelu", "ThresholdedRelu"),
    *("Sign", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "Elu", "Selu"),
    *("Celu", "HardSigmoid", "HardSwish", "Softsign", "Softplus", "Mish", "Swish", "Gelu", "GeluTanh"),
    *("RoundToHalf", "RoundToBfloat16", "RoundToTf32"),
)
BINARY = ("Add", "Sub", "Mul", "PRelu", "AtLeast", "AtMost", "Div")
# Operators that may be a step.
UNARY_OPERATORS = frozenset(row.operator_name for row in UNARY_ROWS if all(form.functor in UNARY for form in row.forms))
BINARY_OPERATORS = frozenset(row.name for row in BINARY_ROWS if all(form.functor in BINARY for form in row.forms))
# Instructions of a thread for a step and an element: of an operator whose other input is an operand, in `gemm`.
STEP_INSTRUCTIONS = 11
MAX_STEPS, MAX_OPERANDS = 6, 2  # kMaxSteps of epilogue.cuh, and its operands
# An input of a step: see `EpilogueStep`.
Given = int | str | None
FUSED_DOMAIN = "gpuexec"
VALUE, MADE = -1, -2  # in place of an input's position: the previous step's result; the producer's result

_NOTHING, _FIRST, _NUMBER, _MADE = 0, 1, 3, 4  # Beside of epilogue.cuh
_LANES, _PLACE_BYTES = 4, 28  # kLanes and sizeof(OperandPlace) of epilogue.cuh
_MAX_ELEMENTS = 2**31  # kernels find the elements of operands by 32 bits, of which one is a sign
_FLOATS = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
# Kernels with an epilogue, by file, and the types that an instance has for each float type.
_KERNELS = {
    "conv.cu": {"conv_gemm": 1, "conv_direct": 1, "conv_transpose": 1},
    "matmul.cu": {"gemm": 1},
    "norm.cu": {"normalize_rows": 2},
    "batch_norm.cu": {"normalize_channels": 3},
}
_WITHOUT_FLOAT = ("matmul.cu",)  # which takes products of float that are beyond the numbers of an epilogue
_NARROW = {
    "conv.cu": ("conv_gemm_narrow", "conv_direct_narrow", "conv_transpose_narrow"),
    "matmul.cu": ("gemm_narrow",),
}


def _list_finished() -> dict[Kernel, Kernel]:
    """Return the instance with an epilogue of each instance that has one."""
    plain = [
        (dtype, Kernel(source, f"{name}<{', '.join([dtype_row(dtype).cuda] * count)}>"))
        for source, names in _KERNELS.items()
        for name, count in names.items()
        for dtype in _FLOATS
        if not (dtype == np.float32 and source in _WITHOUT_FLOAT)
    ]
    plain += [
        (wide, Kernel(source, f"{name}<{name_types(wide, narrow)}>"))
        for source, names in _NARROW.items()
        for name in names
        for wide, narrow in PAIRS
        if not (narrow == np.float16 and source in _WITHOUT_FLOAT)
    ]
    return dict(_finish(dtype, kernel) for dtype, kernel in plain)


# Types that floats are stored in, rounded behind the last step, by kernels that have an instance for it.
STORED = (np.dtype(np.float16), BFLOAT16)


def _list_storing(
    kernel: Kernel, finished: Kernel, stored: Iterable[np.dtype[Any]] = STORED
) -> dict[tuple[Kernel, np.dtype[Any]], Kernel]:
    """Return the instances of a kernel of floats that store another type, by the kernel and the type."""
    head = finished.expression.removesuffix("Steps>")
    return {(kernel, dtype): Kernel(finished.source, f"{head}StepsTo<{dtype_row(dtype).cuda}>>") for dtype in stored}


def _finish(dtype: np.dtype[Any], kernel: Kernel) -> tuple[Kernel, Kernel]:
    """Return a kernel that makes numbers of a type, and its instance with an epilogue."""
    pointer = f"const {dtype_row(dtype).cuda}*"
    return kernel, Kernel(kernel.source, f"{kernel.expression[:-1]}, {pointer}, {pointer}, Steps>")


FINISHED = _list_finished()
_NORM = Kernel("norm.cu", "normalize_rows<float, float>")
STORING = _list_storing(_NORM, FINISHED[_NORM])
for _kernel in (*FINISHED.values(), *STORING.values()):
    instantiate(_kernel.source, [_kernel.expression])


def instantiate_finished(
    dtype: np.dtype[Any], kernels: Iterable[Kernel], *, stored: Iterable[np.dtype[Any]] = ()
) -> None:
    """Add kernels that make numbers of a type to the table of instances, without and with an epilogue.

    Args:
        dtype: The type.
        kernels: The kernels.
        stored: Types that there are instances for, too, which store them behind an epilogue of floats.
    """
    for kernel, finished in [_finish(dtype, kernel) for kernel in kernels]:
        storing = _list_storing(kernel, finished, stored)
        instantiate(kernel.source, [each.expression for each in (kernel, finished, *storing.values())])
        FINISHED[kernel] = finished
        STORING.update(storing)


@dataclass(frozen=True, slots=True)
class EpilogueStep:
    """An elementwise operator with the sources of its inputs.

    Each is a position among the inputs of the fused operator, `VALUE`, `MADE`, a number as text (a tensor of one
    element; as text, since JSON has no infinity and 1 equals 1.0), or None where it is absent.
    """

    operator: Operator
    inputs: tuple[Given, ...]

    def pick(self, value: Any, made: Any, inputs: Sequence[Any], wrap: Callable[[Array], Any]) -> tuple[Any, ...]:
        """Return the inputs of the operator, be they specs, arrays or slots, as ``wrap`` makes one of a number."""
        picked: list[Any] = []
        for given in self.inputs:
            if isinstance(given, str):
                picked.append(wrap(make_number(given, value.dtype)))
            elif given is None or given >= 0:
                picked.append(None if given is None else inputs[given])
            else:
                picked.append(value if given == VALUE else made)
        return tuple(picked)


@functools.lru_cache(4096)
def read_steps(rows: tuple[Any, ...]) -> tuple[EpilogueStep, ...]:
    """Return steps from a fused operator's attribute: name, attributes and inputs of each."""
    return tuple(EpilogueStep(build(name, dict(attributes)), tuple(inputs)) for name, attributes, inputs in rows)


def count_steps(name: str, inputs: Sequence[object]) -> int:
    """Return how many steps an operator is in a kernel: a Clip one for each bound."""
    return sum(given is not None for given in inputs[1:]) if name == Clip.name else 1


@functools.lru_cache(4096)
def make_number(text: str, dtype: np.dtype[Any]) -> Array:
    """Return a number as a read-only tensor of one element."""
    with np.errstate(all="ignore"):
        number = np.array(float(text)).astype(dtype)
    number.flags.writeable = False
    return number


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Extra arguments of a kernel: two operands, None where there is none, and the struct ``Steps``.

    Attributes:
        operands: The operands.
        places: Of each, what `_find_place` says.
        rows: The structs ``Step``, in order.
    """

    operands: tuple[Slot, ...]
    places: tuple[tuple[int, int], ...]
    rows: tuple[bytes, ...]

    def arguments(self, emit: Emitter) -> list[Argument]:
        """Return the arguments: operands as dense slots, and the packed steps."""
        slots = [emit.contiguous(slot) for slot in self.operands]
        places = [
            pack_fast_div32(max(1, inner))
            + pack_fast_div32(max(1, extent))
            + struct.pack("<i", slot.offset_bytes % (_LANES * slot.dtype.itemsize) == 0)
            for (inner, extent), slot in zip(self.places, slots, strict=True)
        ]
        free_steps, free_operands = MAX_STEPS - len(self.rows), MAX_OPERANDS - len(slots)
        packed = b"".join((
            struct.pack("<i", len(self.rows)),
            *self.rows, *[_pack(0, _NOTHING, 0)] * free_steps,
            *places, *[bytes(_PLACE_BYTES)] * free_operands,
        ))  # fmt: skip
        return [*slots, *[None] * free_operands, packed]


def make_epilogue(steps: Sequence[EpilogueStep], inputs: Slots, y: Slot) -> Epilogue | None:
    """Return the epilogue that applies these steps to ``y``; None where a kernel can't."""
    operands: list[Slot] = []
    rows: list[bytes] = []
    order = _find_order(y)
    shape = tuple([y.shape[axis] for axis in order])
    for step in steps:
        if isinstance(step.operator, Clip):
            bounds = zip((BINARY.index("AtLeast"), BINARY.index("AtMost")), step.inputs[1:])
            rows += [_pack(functor, _NUMBER, 0, _round(bound, y)) for functor, bound in bounds if bound is not None]
            continue
        assert isinstance(step.operator, Elementwise)
        functor = step.operator.pick_form().functor
        if functor in UNARY:
            rows.append(_pack(UNARY.index(functor), _NOTHING, 0, *step.operator.parameters()))
            continue
        is_swapped = int(step.inputs[0] != VALUE)
        beside = step.inputs[1 - is_swapped]
        if isinstance(beside, str):
            rows.append(_pack(BINARY.index(functor), _NUMBER, is_swapped, _round(beside, y)))
        elif beside == VALUE:
            return None
        elif beside == MADE:
            rows.append(_pack(BINARY.index(functor), _MADE, is_swapped))
        else:
            operand = None if beside is None else inputs[beside]
            if operand is None or operand.dtype != y.dtype or operand.spec.rank > y.spec.rank:
                return None
            operand = _reorder(operand, order)
            if _find_place(operand.shape, shape) is None:
                return None
            if operand not in operands:
                operands.append(operand)
            rows.append(_pack(BINARY.index(functor), _FIRST + operands.index(operand), is_swapped))
    if len(rows) > MAX_STEPS or len(operands) > MAX_OPERANDS or y.spec.size >= _MAX_ELEMENTS:
        return None
    places = [_find_place(operand.shape, shape) or (1, 1) for operand in operands]
    return Epilogue(tuple(operands), tuple(places), tuple(rows))


def name_functors(steps: Sequence[EpilogueStep], inputs: Slots) -> list[tuple[str, Slot | None]]:
    """Return the functor of each step, with the operand that it adds to the value; None: it is no such sum.

    Args:
        steps: The steps.
        inputs: Of the fused operator.
    """
    rows: list[tuple[str, Slot | None]] = []
    for step in steps:
        if not isinstance(step.operator, Elementwise):
            rows.append((step.operator.name, None))
            continue
        functor = step.operator.pick_form().functor
        beside = [given for given in step.inputs if isinstance(given, int) and given >= 0]
        is_sum = functor == "Add" and VALUE in step.inputs and len(beside) == 1
        rows.append((functor, inputs[beside[0]] if is_sum else None))
    return rows


def _find_order(y: Slot) -> tuple[int, ...]:
    """Return the axes of a dense result in the order in which they lie in memory."""
    return tuple(range(y.spec.rank)) if y.is_contiguous else memory_axes(y.shape, y.strides)


def _reorder(operand: Slot, order: tuple[int, ...]) -> Slot:
    """Return an operand, which may have fewer axes, with those of the result in the order of memory."""
    if order == tuple(range(len(order))):
        return operand
    missing = len(order) - operand.spec.rank
    shape, strides = (1,) * missing + operand.shape, (0,) * missing + operand.strides
    spec = operand.spec.with_shape(permute(shape, order))
    return Slot(operand.buffer, operand.offset_bytes, spec, permute(strides, order))


def _pack(functor: int, beside: int, is_swapped: int, alpha: float = 0.0, beta: float = 0.0) -> bytes:
    """Return the bytes of a struct ``Step``, whose numbers are rounded to float as a kernel would."""
    with np.errstate(over="ignore"):
        return struct.pack("<3i", functor, beside, is_swapped) + np.array((alpha, beta), np.float32).tobytes()


def _round(text: Given, y: Slot) -> float:
    assert isinstance(text, str), "bounds that are not numbers are no step"
    return float(make_number(text, y.dtype))


def _find_place(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, int] | None:
    """Return (inner, extent): element i of ``whole`` is paired with element ``i // inner % extent`` of ``shape``.

    None where there are no such numbers: axes that stretch stand between others.
    """
    if len(shape) > len(whole):
        return None
    inner, extent = 1, 1
    is_done = False
    padded = (1,) * (len(whole) - len(shape)) + shape
    for have, want in zip(reversed(padded), reversed(whole), strict=True):
        if have == want:
            if want != 1 and is_done:
                return None
            extent *= have
        elif have != 1:
            return None
        elif extent == 1:
            inner *= want
        else:
            is_done = True
    return inner, extent


def fused_name(name: str) -> str:
    """Return the name of the operator that a producer is with an epilogue."""
    return f"{FUSED_DOMAIN}.Fused{name.rpartition('.')[2]}"


def count_epilogue_steps(launch: Launch) -> int:
    """Return how many steps a launch applies to each of its results; 0 for a kernel without an epilogue."""
    packed = launch.arguments[-1]
    if ", Steps" not in launch.kernel.expression or not isinstance(packed, bytes):
        return 0
    return int(struct.unpack_from("<i", packed)[0])


class FinishingEmitter:
    """The emitter that a producer is lowered through: its launch of ``y`` gets the epilogue.

    What can't take it is ``unfinished`` then: ``y`` itself, or scratch memory in its place where steps can't work in
    ``y``. In-place requests are ignored: a step may read bytes that would be overwritten. Where a slot of another type
    is ``stored``, a kernel that can writes that in place of ``y``, and ``is_stored`` is set. A library that takes the
    producer takes the steps too, by their ``functors``, or neither.
    """

    def __init__(
        self,
        emit: Emitter,
        y: Slot,
        epilogue: Epilogue | None,
        *,
        needs_scratch: bool = False,
        stored: Slot | None = None,
        functors: Sequence[tuple[str, Slot | None]] = (),
    ) -> None:
        self.target = emit.target
        self.unfinished: Slot | None = None
        self.is_finished = self.is_stored = False
        self._emit, self._y, self._epilogue, self._needs_scratch = emit, y, epilogue, needs_scratch
        self._stored, self._functors = stored, functors

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
        """Launch, with the epilogue where ``y`` is written and the kernel has it."""
        if any(self._is_y(arguments[position]) for position in writes):
            finished = None if self._epilogue is None else FINISHED.get(kernel)
            storing = None if self._stored is None else STORING.get((kernel, self._stored.dtype))
            if storing is not None and self._epilogue is not None:
                finished, self.is_stored = storing, True
                arguments = [self._stored if self._is_y(argument) else argument for argument in arguments]
            elif self._epilogue is not None and not self._epilogue.rows:
                self._emit.launch(kernel, grid, block, arguments, writes, shared_bytes, cooperative)
                self.is_finished = True
                return
            if finished is None or self._epilogue is None:
                scratch = self._divert(self._y)
                arguments = [scratch if self._is_y(argument) else argument for argument in arguments]
            else:
                self.is_finished = True
                kernel, arguments = finished, [*arguments, *self._epilogue.arguments(self._emit)]
        self._emit.launch(kernel, grid, block, arguments, writes, shared_bytes, cooperative)

    def alias(self, output: Slot, view: Slot) -> None:
        """Copy, since steps need bytes of their own."""
        self.copy(output, view)

    def in_place(self, output: Slot, source: Slot) -> None:
        """Ignore the request."""

    def place(self, source: Slot, window: Slot) -> bool:
        """Refuse the request."""
        return False

    def grow(self, output: Slot, source: Slot) -> bool:
        """Refuse the request."""
        return False

    @property
    def has_one_size(self) -> bool:
        """Whether all extents are fixed."""
        return self._emit.has_one_size

    def contiguous(self, slot: Slot) -> Slot:
        """Return the slot itself if dense, else a dense copy."""
        return self._emit.contiguous(slot)

    def copy(self, destination: Slot, source: Slot) -> None:
        """Copy between slots."""
        self._emit.copy(self._divert(destination), source)

    def fill(self, destination: Slot, value: Any) -> None:
        """Fill a slot."""
        self._emit.fill(self._divert(destination), value)

    def temp(self, shape: tuple[int, ...], dtype: Any) -> Slot:
        """Return scratch memory."""
        return self._emit.temp(shape, dtype)

    def constant(self, array: Array) -> Slot:
        """Return a table as device memory."""
        return self._emit.constant(array)

    def packed(self, slot: Slot, form: WeightForm) -> Slot | None:
        """Return a weight in another layout, or None."""
        return self._emit.packed(slot, form)

    def counters(self, count: int) -> Slot:
        """Return numbers that are 0 when a run begins."""
        return self._emit.counters(count)

    def choose(self, now: int) -> int:
        """Return a number that all sizes of a class share."""
        return self._emit.choose(now)

    def divide(self, now: int) -> int:
        """Return into how many parts work is divided."""
        return self._emit.divide(now)

    def index_type(self, *slots: Slot) -> str:
        """Return the C++ type for offsets into these slots."""
        return self._emit.index_type(*slots)

    def provide(self, pose: Callable[[], Posed], launch: Callable[[], None], *, keeps_order: bool = False) -> bool:
        """Emit a product or convolution with the steps by the cheapest of its providers."""
        before = self.unfinished, self.is_finished, self.is_stored

        def pose_finished() -> Posed:
            posed = pose()
            if self._epilogue is None:
                return Posed("its epilogue is launched behind it", posed.slots)
            return finish_posed(posed, self._functors, self._stored)

        def launch_anew() -> None:
            self.unfinished, self.is_finished, self.is_stored = before
            launch()

        is_library = self._emit.provide(pose_finished, launch_anew, keeps_order=keeps_order)
        if is_library:
            self.unfinished, self.is_finished, self.is_stored = None, True, self._stored is not None
        return is_library

    def _divert(self, slot: Slot) -> Slot:
        """Return the scratch slot for ``y``, to which steps are applied; other slots as they are."""
        if not self._is_y(slot):
            return slot
        if self.unfinished is None:
            self.unfinished = self._emit.temp(slot.shape, slot.dtype) if self._needs_scratch else slot
        return self.unfinished

    def _is_y(self, argument: Argument) -> bool:
        return isinstance(argument, Slot) and argument.buffer == self._y.buffer


class StepEmitter(FinishingEmitter):
    """The emitter that a step is lowered through by itself: views become copies, in-place requests are ignored."""

    def __init__(self, emit: Emitter, y: Slot) -> None:
        super().__init__(emit, y, None)

    def _is_y(self, argument: Any) -> bool:
        return False
