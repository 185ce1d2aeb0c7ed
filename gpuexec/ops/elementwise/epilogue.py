"""Epilogues: operators on elements that a kernel applies to its results before it stores them.

A kernel of `FINISHED` has a pack of template parameters behind its own (``epilogue.cuh``). `FinishingEmitter` puts the
steps of a region into the launch that an operator makes as it always does: generated text for them, the places of
operands and numbers as an argument, then operands and further results. So no lowering and no kernel is written twice.
Kernels of doubles take none: their sums leave a kernel of tiles no registers.

The text is generated for a *structure*: the steps, the types, and how each operand lies beside the result. Extents and
numbers are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Any

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import find_rows, max_offset, permute
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes
from gpuexec.ir.operator import Array, Emitter, Join, Operator, Slots
from gpuexec.ir.provider import Posed
from gpuexec.ir.spec import BFLOAT16, accumulator, dtype_row
from gpuexec.ir.symbolic_int import distinct, memoize
from gpuexec.ir.weight_forms import WeightForm
from gpuexec.ops.elementwise.elementwise import Elementwise
from gpuexec.ops.elementwise.region_steps import RegionStep
from gpuexec.ops.elementwise.region_text import CodeRow, RegionNumbers, count_steps, name_text, write_compute
from gpuexec.ops.lib.posing import finish_posed
from gpuexec.ops.lib.strided import pack_fast_div32

FUSED_DOMAIN = "gpuexec"
# Instructions of a thread for a step and an element: of an operator whose other input is an operand, in `gemm`.
STEP_INSTRUCTIONS = 11
_MAX_ELEMENTS = 2**31  # kernels find the elements of operands by 32 bits, of which one is a sign
_FLOATS = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
# Types that floats are stored in, rounded behind the last step.
STORED = (np.dtype(np.float16), BFLOAT16)
_PREFIX = "Epilogue"
_PACK = re.compile(rf", ({_PREFIX}_\w+)((?:, (?:const )?\w+\*)*)>$")


@dataclass(frozen=True, slots=True)
class FinishedForm:
    """What a kernel makes for an epilogue.

    Attributes:
        dtype: The type that sums are rounded to in front of the steps.
        stored: Further types that it can store in place of that.
        vector: Elements of the vectors that it stores where the epilogue says, so that its own output may be a window;
            0: it stores where its strides say.
        addend: The argument that it adds in front of the steps; its code for that is left out where a launch has None.
            -1: there is none, or the code stays.
    """

    dtype: np.dtype[Any]
    stored: tuple[np.dtype[Any], ...] = ()
    vector: int = 0
    addend: int = -1


FINISHED: dict[Kernel, FinishedForm] = {}


def allow_epilogue(
    dtype: np.dtype[Any],
    kernels: Iterable[Kernel],
    *,
    stored: Iterable[np.dtype[Any]] = (),
    vector: int = 0,
    addend: int = -1,
) -> None:
    """Note kernels that take an epilogue.

    Args:
        dtype: The type that they make.
        kernels: The kernels.
        stored: Types that they store behind an epilogue, too.
        vector: As of `FinishedForm`.
        addend: As of `FinishedForm`.
    """
    FINISHED.update({kernel: FinishedForm(dtype, tuple(stored), vector, addend) for kernel in kernels})


def allow_for_floats(source: str, *forms: str, stores_others: bool = True, vector: int = 0) -> None:
    """Note kernels that take an epilogue in each type of float but double.

    Args:
        source: Their file.
        forms: Their name expressions, with ``{t}`` for the type.
        stores_others: Whether instances of float store half and bfloat16, too.
        vector: As of `FinishedForm`.
    """
    for dtype in _FLOATS:
        kernels = [Kernel(source, form.format(t=dtype_row(dtype).cuda)) for form in forms]
        stored = STORED if stores_others and dtype == np.float32 else ()
        allow_epilogue(dtype, kernels, stored=stored, vector=vector)


def instantiate_finished(
    dtype: np.dtype[Any],
    kernels: Iterable[Kernel],
    *,
    stored: Iterable[np.dtype[Any]] = (),
    vector: int = 0,
    addend: int = -1,
) -> None:
    """Add kernels that take an epilogue to the table of instances; see `allow_epilogue`."""
    kernels = list(kernels)
    for kernel in kernels:
        instantiate(kernel.source, [kernel.expression])
    allow_epilogue(dtype, kernels, stored=stored, vector=vector, addend=addend)


class OperandWay(IntEnum):
    """How the elements of an operand go with those of the result; each takes in the ones before it."""

    ONE = 0  # one element with all
    SAME = 1  # they lie as those of the result do
    ROW = 2  # as those of the result's last axes do
    SHARED = 3  # each with several neighbours
    PITCHED = 4  # as those of the result do, in rows of another pitch


_PLACED = (OperandWay.ROW, OperandWay.SHARED, OperandWay.PITCHED)
_OF_EACH = (OperandWay.SAME, OperandWay.PITCHED)  # as many elements as the result


@dataclass(frozen=True, slots=True)
class EpilogueOperand:
    """An operand that is dense, or a single element: element i of the result goes with ``i // inner % extent``.

    Gaps between rows of the result count. One that is ``PITCHED`` may have gaps of its own: its rows are ``extent``
    elements apart, and those of the result ``inner``.
    """

    slot: Slot
    way: OperandWay
    inner: int
    extent: int
    lies: bool = False  # whether it is read as it lies, where others are dense or copied

    @property
    def has_place(self) -> bool:
        """Whether the kernel is told extents."""
        return self.way in _PLACED


@dataclass(frozen=True, slots=True)
class EpilogueStructure:
    """All that the text of an epilogue depends on.

    Attributes:
        dtype: Element type of what the kernel makes, in C++.
        rows: The steps.
        operands: Of each operand, the element type and the way.
        results: The name in the steps of each result, its element type, and whether its rows have another pitch than
            those of what the kernel makes; the first one is the kernel's own output.
        counts: How many numbers are floats, doubles and integers.
        has_addend: Whether the kernel may add something in front of the steps.
    """

    dtype: str
    rows: tuple[CodeRow, ...]
    operands: tuple[tuple[str, OperandWay], ...]
    results: tuple[tuple[str, str, bool], ...]
    counts: tuple[int, int, int]
    has_addend: bool


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Steps for the launch of a kernel.

    Attributes:
        rows: Their code, over ``x0`` for what the kernel makes and ``x1``, ``x2`` for operands.
        numbers: Those of the code.
        operands: In the order of the code.
        results: The name of each result in the code.
        outputs: Where each goes.
        pitches: Of each output, the pitch of the rows of what the kernel makes and its own; None: it lies as that does.
        rounds: Whether what the kernel makes is rounded to its type in front of the steps.
    """

    rows: tuple[CodeRow, ...]
    numbers: RegionNumbers
    operands: tuple[EpilogueOperand, ...]
    results: tuple[str, ...]
    outputs: tuple[Slot, ...]
    pitches: tuple[tuple[int, int] | None, ...]
    rounds: bool = True

    def find_first(self, form: FinishedForm) -> int | None:
        """Return the result that a kernel of this form stores as its own; None where it can store none."""
        for dtype in (form.dtype, *form.stored):
            for place, y in enumerate(self.outputs):
                if y.dtype == dtype and (self.pitches[place] is None or self._takes_vectors(place, form.vector)):
                    return place
        return None

    def _takes_vectors(self, place: int, vector: int) -> bool:
        """Return whether vectors of so many elements can be stored in an output that is a window."""
        y, pitches = self.outputs[place], self.pitches[place]
        is_aligned = vector > 0 and y.offset_bytes % (vector * y.dtype.itemsize) == 0
        return is_aligned and pitches is not None and not any(pitch % vector for pitch in pitches)

    def finish(
        self, kernel: Kernel, form: FinishedForm, first: int, arguments: Sequence[Argument], emit: Emitter
    ) -> tuple[Kernel, list[Argument]]:
        """Return the kernel with this epilogue, and its further arguments, the last of which are further outputs.

        Args:
            kernel: The kernel without.
            form: Of the kernel.
            first: The result that it stores as its own.
            arguments: Of the launch without.
            emit: Emitter of the launch.
        """
        order = [first, *[place for place in range(len(self.outputs)) if place != first]]
        structure = EpilogueStructure(
            dtype_row(form.dtype if self.rounds else accumulator(form.dtype)).cuda,
            self.rows,
            tuple([(dtype_row(operand.slot.dtype).cuda, operand.way) for operand in self.operands]),
            tuple([
                (self.results[place], dtype_row(self.outputs[place].dtype).cuda, self.pitches[place] is not None)
                for place in order
            ]),
            self.numbers.counts,
            form.addend < 0 or arguments[form.addend] is not None,
        )  # fmt: skip
        name, text, pointers = write_epilogue(structure)
        pairs = [(operand.inner, operand.extent) for operand in self.operands if operand.has_place]
        pairs += [pair for pair in [self.pitches[place] for place in (*order[1:], first)] if pair is not None]
        places = [pack_fast_div32(max(1, inner)) + pack_fast_div32(max(1, extent)) for inner, extent in pairs]
        slots = [
            operand.slot if operand.lies or operand.way is OperandWay.ONE else emit.contiguous(operand.slot)
            for operand in self.operands
        ]
        finished = Kernel(kernel.source, f"{', '.join([kernel.expression[:-1], name, *pointers])}>", text)
        packed = self.numbers.pack() + join_bytes(places or [bytes(24)])
        return finished, [packed + bytes(-len(packed) % 8), *slots, *[self.outputs[place] for place in order[1:]]]


def place_operands(emit: Emitter, operands: Sequence[Slot], y: Slot) -> tuple[EpilogueOperand, ...] | None:
    """Return how operands go with a result that is rows, dense or a window, as at the upper end of the size class.

    None where one can't: it stretches the result, or its axes stand between others.

    Args:
        emit: Emitter of the launch.
        operands: The operands.
        y: The result.

    Raises:
        PlanError: An operand does not lie as it does at the upper end of the size class.
    """
    rows = find_rows(y.shape, y.strides)
    order, width, pitch = rows or ((), 1, 1)
    shape, strides = permute(y.shape, order), permute(y.strides, order)
    laid = [_reorder(operand, order) for operand in operands if rows and operand.spec.rank <= y.spec.rank]
    places = [_find_pitched_place(operand.shape, shape, width, pitch) for operand in laid]
    is_placed = len(laid) == len(operands) and None not in places and fits_epilogue(y)
    if not emit.choose(is_placed):
        return None
    if not is_placed:
        raise PlanError("An operand of an epilogue does not lie as at the upper end of the size class.")
    placed = []
    for operand, slot, place in zip(operands, laid, places, strict=True):
        assert place is not None
        inner, extent = place
        is_row, is_whole = inner == 1 or extent == 1, slot.spec.size == y.spec.size
        pitches = find_pitches(shape, strides, slot) if slot.shape == shape and not slot.is_contiguous else None
        lies = bool(emit.choose(pitches is not None))
        pair = pitches if lies and pitches else (pitch, width) if pitch != width else (1, 1)
        now = (
            OperandWay.ONE if slot.spec.size == 1
            else OperandWay.PITCHED if is_whole and pair[0] != pair[1]
            else OperandWay.SHARED if not is_row
            else OperandWay.SAME if is_whole
            else OperandWay.ROW
        )  # fmt: skip
        way = OperandWay(emit.choose(now))
        fits = {
            OperandWay.ONE: slot.spec.size == 1,
            OperandWay.SAME: is_whole and pair[0] == pair[1],
            OperandWay.ROW: is_row,
            OperandWay.SHARED: True,
            OperandWay.PITCHED: is_whole,
        }
        if not fits[way] or (lies and not slot.is_contiguous and pitches is None):
            raise PlanError(f"{slot} does not lie as at the upper end of the size class.")
        inner, extent = pair if way is OperandWay.PITCHED else (1 if way is OperandWay.ROW else inner, extent)
        placed.append(EpilogueOperand(operand if lies else slot, way, inner, extent, lies))
    return tuple(placed)


def place_outputs(emit: Emitter, outputs: Sequence[Slot], y: Slot) -> tuple[tuple[int, int] | None, ...] | None:
    """Return the pitches of outputs that lie as rows beside those of what a kernel makes; see `Epilogue.pitches`.

    None where one lies otherwise.

    Args:
        emit: Emitter of the launch.
        outputs: The outputs, of the shape of the result.
        y: What the kernel makes.

    Raises:
        PlanError: An output does not lie as it does at the upper end of the size class.
    """
    rows = find_rows(y.shape, y.strides)
    order = rows[0] if rows else ()
    shape, strides = permute(y.shape, order), permute(y.strides, order)
    pairs = [find_pitches(shape, strides, _reorder(each, order)) if rows else None for each in outputs]
    is_placed = None not in pairs and fits_epilogue(y)
    if not emit.choose(is_placed):
        return None
    placed: list[tuple[int, int] | None] = []
    for pair in pairs:
        if pair is None or not is_placed:
            raise PlanError("An output of an epilogue does not lie as at the upper end of the size class.")
        is_pitched = emit.choose(pair[0] != pair[1])
        if not is_pitched and pair[0] != pair[1]:
            raise PlanError("An output of an epilogue has gaps that it has not at the upper end of the size class.")
        placed.append(pair if is_pitched else None)
    return tuple(placed)


def fits_epilogue(y: Slot) -> bool:
    """Return whether kernels find the elements of a result that is finished."""
    return max(y.spec.size, max_offset(y.shape, y.strides)) < _MAX_ELEMENTS


def find_pitches(shape: tuple[int, ...], strides: tuple[int, ...], slot: Slot) -> tuple[int, int] | None:
    """Return the pitches of the rows of a result, and of a slot of its shape that has such rows, too.

    They are equal where the two lie alike. None where the slot lies otherwise.

    Args:
        shape: Of the result, its axes in the order of memory.
        strides: Its strides, in elements.
        slot: The slot, its axes in the same order.
    """
    found = find_rows(shape, strides), find_rows(shape, slot.strides)
    kept = [stride for stride, extent in zip(slot.strides, shape, strict=True) if extent > 1]
    if None in found or kept != sorted(kept, reverse=True) or not fits_epilogue(slot):
        return None
    widths = distinct(each[1] for each in found if each and each[1] != each[2])
    if len(widths) > 1:
        return None
    width = widths[0] if widths else prod(shape)
    own, other = (each[2] if each and each[1] != each[2] else width for each in found)
    return own, other


@memoize(1024)
def write_epilogue(structure: EpilogueStructure) -> tuple[str, str, tuple[str, ...]]:
    """Return the name of the type of an epilogue, its text, and the types of the pointers behind it."""
    sources = [f"const {cuda}*" for cuda, _ in structure.operands]
    others = [cuda for _, cuda, _ in structure.results[1:]]
    stored = structure.results[0][1]
    placed = [k for k, (_, way) in enumerate(structure.operands, 1) if way in _PLACED]
    pitched = [k for k, (_, _, is_pitched) in enumerate(structure.results[1:], 1) if is_pitched]
    has_gaps = structure.results[0][2]
    parameters = [f"{source} in{k}" for k, source in enumerate(sources, 1)]
    parameters += [f"{cuda}* out{k}" for k, cuda in enumerate(others, 1)]
    given = [f"cast<{structure.dtype}>(values[group][lane])"]
    reads_each = any(way in _OF_EACH for _, way in structure.operands)
    reads, whole = [], []
    for k, (cuda, way) in enumerate(structure.operands, 1):
        if way is OperandWay.ONE:
            reads.append(f"    const {cuda} one{k} = *in{k};")
            given.append(f"one{k}")
            continue
        reads.append(f"    {cuda} lanes{k}[Groups][N] = {{}};")
        where = f"places[{placed.index(k)}], " if k in placed else ""
        whole.append(f"is_{way.name.lower()}_whole(in{k}{', ' * bool(where)}{where.removesuffix(', ')})")
        reads.append(f"    read_{way.name.lower()}(in{k}, {where}indices, counts, stride, lanes{k});")
        given.append(f"lanes{k}[group][lane]")
    made = [f"made{k}[group][lane]" for k in range(1, len(others) + 1)]
    whole += [
        f"is_pitched_whole(out{k}, places[{len(placed) + pitched.index(k)}])"
        if k in pitched
        else f"is_same_whole(out{k})"
        for k in range(1, len(others) + 1)
    ]
    body = [
        f"// {', '.join(row.name for row in structure.rows)}, behind sums that are {structure.dtype}.",
        "struct @ {",
        f"  typedef {stored} Stored;",
        f"  typedef RegionNumbers<{', '.join(map(str, structure.counts))}> Numbers;",
        f"  static constexpr bool kReadsEach = {str(reads_each).lower()};",
        f"  static constexpr bool kHasAddend = {str(structure.has_addend).lower()};",
        "  Numbers numbers;",
        f"  OperandPlace places[{max(1, len(placed) + len(pitched) + has_gaps)}];",
        "",
        *write_compute(
            [structure.dtype, *[cuda for cuda, _ in structure.operands]],
            structure.rows,
            [(result, cuda) for result, cuda, _ in structure.results],
        ),
        "",
        *_write_where(len(placed) + len(pitched) if has_gaps else None),
        "",
        f"  __device__ bool are_whole({', '.join(parameters)}) const {{",
        f"    return {' && '.join(whole) or 'true'};",
        "  }",
        "",
        "  template <class A, int Groups, int N, class Stride>",
        "  __device__ void finish(A (&values)[Groups][N], const i64 (&indices)[Groups], const int (&counts)[Groups],",
        f"                         {', '.join(['Stride stride', *parameters])}) const {{",
        *reads,
        *[f"    {cuda} made{k}[Groups][N];" for k, cuda in enumerate(others, 1)],
        "#pragma unroll",
        "    for (int group = 0; group < Groups; ++group) {",
        "#pragma unroll",
        "      for (int lane = 0; lane < N; ++lane) {",
        f"        {stored} made0;",
        f"        compute({', '.join(['numbers', *given, 'made0', *made])});",
        "        values[group][lane] = A(widen(made0));",
        "      }",
        *[
            f"      write_pitched(out{k}, places[{len(placed) + pitched.index(k)}], indices[group], counts[group], "
            f"stride, made{k}[group]);"
            if k in pitched
            else f"      write_lanes(out{k} + indices[group], counts[group], stride, made{k}[group]);"
            for k in range(1, len(others) + 1)
        ],
        "    }",
        "  }",
        "};",
    ]
    name, text = name_text(_PREFIX, "\n".join(body) + "\n")
    return name, text, (*sources, *[f"{cuda}*" for cuda in others])


def _write_where(place: int | None) -> list[str]:
    """Return the function that finds where the kernel's own output has an element, by the number of its place."""
    if place is None:
        return ["  __device__ i64 where(i64 index) const { return index; }"]
    return [
        "  __device__ i64 where(i64 index) const {",
        "    u32 among;",
        f"    return places[{place}].shift(u32(index), among);",
        "  }",
    ]


def list_library_steps(
    steps: Sequence[RegionStep], results: Sequence[int], inputs: Slots
) -> list[tuple[str, Slot | None]] | None:
    """Return the operator of each step, with the operand that it adds; None where steps are no chain to one result.

    Args:
        steps: The steps, which take what the producer makes as input -1 and what step k makes as input -2 - k.
        results: Of them, 0 for the producer's.
        inputs: Of the fused operator.
    """
    if tuple(results) != (len(steps),):
        return None
    rows: list[tuple[str, Slot | None]] = []
    for place, step in enumerate(steps):
        made = [given for given in step.inputs if isinstance(given, int) and given < 0]
        beside = [given for given in step.inputs if isinstance(given, int) and given >= 0]
        if made != [-1 - place]:
            return None
        is_sum = step.operator.name == "Add" and len(beside) == 1
        rows.append((_name(step.operator), inputs[beside[0]] if is_sum else None))
    return rows


def _name(step: Operator) -> str:
    """Return the functor of an elementwise operator, which tells forms apart; of others the name."""
    return step.pick_form().functor if isinstance(step, Elementwise) else step.name


def _reorder(operand: Slot, order: tuple[int, ...]) -> Slot:
    """Return an operand, which may have fewer axes, with those of the result in the order of memory."""
    if order == tuple(range(len(order))):
        return operand
    missing = len(order) - operand.spec.rank
    shape, strides = (1,) * missing + operand.shape, (0,) * missing + operand.strides
    spec = operand.spec.with_shape(permute(shape, order))
    return Slot(operand.buffer, operand.offset_bytes, spec, permute(strides, order))


def find_place(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, int] | None:
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


def _find_pitched_place(
    shape: tuple[int, ...], whole: tuple[int, ...], width: int, pitch: int
) -> tuple[int, int] | None:
    """Return the same where ``whole`` has rows of a pitch, and i counts the gaps between them, too.

    Of an operand that has an element for each of ``whole``, which has a pitch of its own, what it is without gaps.
    """
    place = find_place(shape, whole)
    if place is None or width == pitch or prod(shape) in (1, prod(whole)):
        return place
    inner, extent = place
    if inner % width == 0:
        return inner // width * pitch, extent
    if inner * extent == width and pitch % inner == 0:
        return inner, pitch // inner
    return place if width % (inner * extent) == 0 == pitch % (inner * extent) else None


def fused_name(name: str) -> str:
    """Return the name of the operator that a producer is with an epilogue."""
    return f"{FUSED_DOMAIN}.Fused{name.rpartition('.')[2]}"


def count_epilogue_steps(launch: Launch) -> int:
    """Return how many steps a launch applies to each of its results; 0 for a kernel without an epilogue."""
    return count_type_steps(launch.kernel.text, split_epilogue(launch.kernel)[0])


def count_type_steps(text: str, name: str) -> int:
    """Return how many steps a type of a generated text has; 0 where the text has no such type."""
    _, _, body = text.partition(f"struct {name} {{")
    return count_steps(body.partition("\n};")[0]) if name else 0


def split_epilogue(kernel: Kernel) -> tuple[str, tuple[str, ...]]:
    """Return the type of the epilogue that a kernel has, empty where it has none, and the types of its pointers."""
    found = _PACK.search(kernel.expression)
    if found is None:
        return "", ()
    return found[1], tuple([each for each in found[2].split(", ") if each])


def without_epilogue(expression: str) -> str:
    """Return the name expression of a kernel without the epilogue that it has."""
    return _PACK.sub(">", expression)


class FinishingEmitter:
    """The emitter that a producer is lowered through: its launch of ``y`` gets the epilogue, and stores its outputs.

    What can't take it is ``unfinished`` then: ``y``, to which the steps are to be applied. In-place requests are
    ignored: a step may read bytes that would be overwritten. A library that takes the producer takes the steps too, by
    their names, or neither.
    """

    def __init__(
        self,
        emit: Emitter,
        y: Slot,
        epilogue: Epilogue | None,
        library_steps: Sequence[tuple[str, Slot | None]] | None = None,
    ) -> None:
        self.target = emit.target
        self.unfinished: Slot | None = None
        self.is_finished = False
        self._emit, self._y, self._epilogue, self._library_steps = emit, y, epilogue, library_steps

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
            epilogue, form = self._epilogue, FINISHED.get(kernel)
            first = None if epilogue is None or form is None else epilogue.find_first(form)
            if epilogue is None or form is None or first is None:
                self.unfinished = self._y
            else:
                self.is_finished = True
                kernel, more = epilogue.finish(kernel, form, first, arguments, self._emit)
                own = [epilogue.outputs[first] if self._is_y(argument) else argument for argument in arguments]
                arguments = [*own, *more]
                writes = [*writes, *range(len(arguments) - len(epilogue.outputs) + 1, len(arguments))]
        self._emit.launch(kernel, grid, block, arguments, writes, shared_bytes, cooperative)

    def leaves_to_host(self) -> bool:
        """Return whether there are no kernels."""
        return self._emit.leaves_to_host()

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
        self._leave(destination)
        self._emit.copy(destination, source)

    def fill(self, destination: Slot, value: Any) -> None:
        """Fill a slot."""
        self._leave(destination)
        self._emit.fill(destination, value)

    def temp(self, shape: tuple[int, ...], dtype: Any) -> Slot:
        """Return scratch memory."""
        return self._emit.temp(shape, dtype)

    def constant(self, array: Array) -> Slot:
        """Return a table as device memory."""
        return self._emit.constant(array)

    def is_weight(self, slot: Slot) -> bool:
        """Return whether a slot lies in a weight."""
        return self._emit.is_weight(slot)

    def packed(self, slot: Slot, form: WeightForm) -> Slot | None:
        """Return a weight in another layout, or None."""
        return self._emit.packed(slot, form)

    def counters(self, count: int) -> Slot:
        """Return numbers that are 0 when a run begins."""
        return self._emit.counters(count)

    def choose(self, now: int | Callable[[], int]) -> int:
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
        before = self.unfinished, self.is_finished

        def pose_finished() -> Posed:
            posed = pose()
            if self._epilogue is None:
                return Posed("its epilogue is launched behind it", posed.slots)
            if self._library_steps is None:
                return Posed("its epilogue is no chain of steps to one result", posed.slots)
            return finish_posed(posed, self._library_steps, self._epilogue.outputs[0])

        def launch_anew() -> None:
            self.unfinished, self.is_finished = before
            launch()

        is_library = self._emit.provide(pose_finished, launch_anew, keeps_order=keeps_order)
        if is_library:
            self.unfinished, self.is_finished = None, True
        return is_library

    def join(self, launch: Callable[[], None], join: Join) -> None:
        """Emit launches as they are."""
        launch()

    def _leave(self, slot: Slot) -> None:
        """Note that ``y`` is written without the epilogue, if that is the slot."""
        if self._is_y(slot):
            self.unfinished = self._y

    def _is_y(self, argument: Argument) -> bool:
        return isinstance(argument, Slot) and argument.buffer == self._y.buffer


class StepEmitter(FinishingEmitter):
    """The emitter that a step is lowered through by itself: views become copies, in-place requests are ignored."""

    def __init__(self, emit: Emitter, y: Slot) -> None:
        super().__init__(emit, y, None)

    def _is_y(self, argument: Any) -> bool:
        return False
