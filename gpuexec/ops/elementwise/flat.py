"""Flat regions on a device with kernels: one launch over the elements of results of one shape, by generated text.

The text is generated for a *structure*: the steps, the types, how many axes are left once neighbours are joined, and
along which of them an operand stands still. Extents, strides and numbers are arguments, so a new size compiles
nothing, and layers and models that are alike share a kernel. What the upper end of a size class says about the
structure holds for all its sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, contiguous_strides, max_offset, memory_axes
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import dtype_row
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ir.work import Work, count_apart_bytes, count_slot_bytes, count_warps, work_of
from gpuexec.ops.elementwise.joined_axes import group_axes, join_strides, list_joined, spread_strides
from gpuexec.ops.elementwise.region_steps import StepForms, StepRow
from gpuexec.ops.elementwise.region_text import CodeRow, count_steps, name_text, write_compute, write_steps
from gpuexec.ops.lib.broadcast import THREADS, VECTOR_BYTES, vector_width
from gpuexec.ops.lib.strided import MAX_RANK, pack_fast_div32, pack_fast_div64

SOURCE = "flat.cu"
# Offsets of more need 64 bits; threads of the last block compute some beyond the end.
NARROW = 2**31 - 2 * THREADS * VECTOR_BYTES
# Instructions of a thread apart from its steps, and of a step for an element, about.
_AROUND, _STEP_INSTRUCTIONS = 40, 8
# What the names of types with index maps begin with, and how their text reads an index, behind which it reads what that
# picks (`flat_maps`).
MAPPED, PICKING = "Mapped", "= pick_slice<"


class OperandKind(IntEnum):
    """How an operand lies."""

    ONE = 0  # one element for all
    DENSE = 1  # as the results
    STRIDED = 2  # by strides along the axes, some of which are 0


@dataclass(frozen=True, slots=True)
class Operand:
    """The type of an input and how it lies.

    Attributes:
        cuda: Element type in C++.
        kind: How it lies.
        moves: Of a strided one, whether it moves along each axis, the innermost first.
    """

    cuda: str
    kind: OperandKind
    moves: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class FlatStructure:
    """All that the text of a flat region depends on.

    Attributes:
        rows: The steps, without attributes and numbers that are arguments.
        operands: The inputs.
        results: Of each result, the step that makes it and its element type in C++.
        written: How each result lies: a strided one is a window with gaps.
        counts: How many numbers are floats, doubles and integers.
        rank: Axes that are left.
        is_wide: Whether offsets need 64 bits.
        width: Lanes of a unit.
    """

    rows: tuple[CodeRow, ...]
    operands: tuple[Operand, ...]
    results: tuple[tuple[int, str], ...]
    written: tuple[Operand, ...]
    counts: tuple[int, int, int]
    rank: int
    is_wide: bool
    width: int

    @property
    def strided(self) -> list[tuple[str, Operand]]:
        """The names and operands of what lies by strides of its own, results last."""
        rows = [(f"{k}", each) for k, each in enumerate(self.operands)]
        rows += [(f"_out{k}", each) for k, each in enumerate(self.written)]
        return [(name, each) for name, each in rows if each.kind is OperandKind.STRIDED]


def launch_flat(
    emit: Emitter,
    walk: JoinedWalk,
    rows: tuple[StepRow, ...],
    forms: StepForms,
    results: Sequence[int],
    inputs: Sequence[Slot | None],
    outputs: Sequence[Slot],
) -> None:
    """Launch a region whose results have one shape, and their axes in one order.

    Args:
        emit: Emitter of the launch.
        walk: Of the inputs, and of results with gaps behind them.
        rows: The steps.
        forms: What they make of these inputs.
        results: The step that makes each output.
        inputs: The slots that steps read; None: absent.
        outputs: The slots of the results.
    """
    used = [slot for slot in inputs if slot is not None]
    code, numbers = write_steps(rows, forms, tuple([slot is not None for slot in inputs]))
    width = vector_width((*used, *outputs))
    is_vector = walk.can_vectorize(width, (*used, *outputs))
    dense = tuple([Operand(dtype_row(slot.dtype).cuda, OperandKind.DENSE) for slot in outputs])
    structure = FlatStructure(
        code,
        walk.operands[: len(used)],
        tuple([(step, dtype_row(slot.dtype).cuda) for step, slot in zip(results, outputs, strict=True)]),
        walk.operands[len(used) :] or dense,
        numbers.counts,
        len(walk.extents),
        walk.is_wide,
        width,
    )
    lanes = width if is_vector else 1
    arguments: list[Argument] = [walk.pack(lanes), numbers.pack(), *used, *outputs]
    emit.launch(
        write_kernel(structure),
        (max(1, ceil_div(ceil_div(outputs[0].spec.size, lanes), THREADS)), 1, 1),
        (THREADS, 1, 1),
        arguments,
        writes=range(len(arguments) - len(outputs), len(arguments)),
    )


def can_walk(shape: Sequence[int]) -> bool:
    """Return whether results of a shape have few enough axes."""
    return len(shape) <= MAX_RANK


@dataclass(frozen=True, slots=True)
class JoinedWalk:
    """A walk over the elements of results and the inputs that lie as they do or stretch to them.

    Attributes:
        extents: Of the joined axes, the innermost first.
        operands: How each input lies.
        strides: Of each input along every axis.
        is_wide: Whether offsets need 64 bits.
    """

    extents: tuple[int, ...]
    operands: tuple[Operand, ...]
    strides: tuple[tuple[int, ...], ...]
    is_wide: bool

    @classmethod
    def of(cls, emit: Emitter, inputs: Sequence[Slot], output: Slot) -> JoinedWalk:
        """Return the walk of operands, joined as at the upper end of the size class.

        Raises:
            PlanError: An operand does not lie as it does there.
        """
        shape = output.shape
        is_row_major = bool(emit.choose(output.is_contiguous))
        order = tuple(range(len(shape))) if is_row_major else memory_axes(shape, output.strides)
        strides = [(0,) * len(shape) if 0 in shape else spread_strides(slot, shape) for slot in inputs]
        laid = [tuple([own[axis] for axis in order]) for own in strides]
        extents = tuple([shape[axis] for axis in order])
        joined = list_joined(extents, laid)
        chosen = emit.choose(sum(1 << axis for axis in joined))
        groups = group_axes(len(extents), chosen)
        walked = [join_strides(extents, own, groups) for own in laid]
        sizes = tuple([prod(extents[axis] for axis in group) for group in groups])
        dense = contiguous_strides(sizes)
        limit = max((max_offset(slot.shape, slot.strides) for slot in (*inputs, output)), default=0)
        is_wide = bool(emit.choose(max(limit, output.spec.size) >= NARROW))
        operands = [_choose_kind(emit, slot, sizes, own, dense) for slot, own in zip(inputs, walked, strict=True)]
        return cls(sizes[::-1], tuple(operands), tuple([own[::-1] for own in walked]), is_wide)

    def can_vectorize(self, width: int, slots: Sequence[Slot]) -> bool:
        """Return whether units of several lanes can be read: neighbours that are aligned, or one element for all."""
        if width == 1 or any(slot.offset_bytes % (width * slot.dtype.itemsize) for slot in slots if slot.spec.size > 1):
            return False
        if len(self.extents) > 1 and self.extents[0] % width:
            return False
        for operand, strides in zip(self.operands, self.strides, strict=True):
            if operand.kind is OperandKind.STRIDED:
                steps = [stride for stride, extent in zip(strides[1:], self.extents[1:]) if extent > 1]
                if any(stride % width for stride in steps) and operand.moves[0]:
                    return False
                if operand.moves[0] and strides[0] != 1 and self.extents[0] > 1:
                    return False
        return True

    def pack(self, lanes: int) -> bytes:
        """Return the bytes of ``FlatWalk``."""
        sizes, offset = list(self.extents), "q" if self.is_wide else "i"
        if sizes:
            sizes[0] = ceil_div(sizes[0], lanes)
        divide = pack_fast_div64 if self.is_wide else pack_fast_div32
        packed = pack_struct("<qi4x" if self.is_wide else "<ii", prod(self.extents), lanes)
        is_strided = any(operand.kind is OperandKind.STRIDED for operand in self.operands)
        divisors = [divide(max(1, size)) for size in sizes[:-1]] if is_strided else []
        packed += join_bytes(divisors or [divide(1)])
        moved = [
            stride * (lanes if axis == 0 else 1)
            for operand, strides in zip(self.operands, self.strides, strict=True)
            for axis, stride in enumerate(strides)
            if operand.kind is OperandKind.STRIDED and operand.moves[axis]
        ]
        return packed + pack_struct(f"<{max(1, len(moved))}{offset}", *(moved or [0]))


def _choose_kind(
    emit: Emitter, slot: Slot, extents: tuple[int, ...], strides: tuple[int, ...], dense: tuple[int, ...]
) -> Operand:
    """Return how an operand lies, as at the upper end of the size class.

    Raises:
        PlanError: It does not.
    """
    lies = [(have, want) for extent, have, want in zip(extents, strides, dense, strict=True) if extent > 1]
    moves = sum(1 << axis for axis, stride in enumerate(reversed(strides)) if stride)
    is_one, is_dense = not any(have for have, _ in lies), all(have == want for have, want in lies)
    now = OperandKind.ONE if is_one and not is_dense else OperandKind.DENSE if is_dense else OperandKind.STRIDED
    chosen = emit.choose(now | moves << 2 if now is OperandKind.STRIDED else now)
    kind, mask = OperandKind(chosen & 3), chosen >> 2
    fits = is_one if kind is OperandKind.ONE else is_dense if kind is OperandKind.DENSE else not moves & ~mask
    if not fits and 0 not in extents:
        raise PlanError(f"{slot} does not lie as at the upper end of the size class.")
    kept = tuple([bool(mask >> axis & 1) for axis in range(len(extents))]) if kind is OperandKind.STRIDED else ()
    return Operand(dtype_row(slot.dtype).cuda, kind, kept)


@memoize(1024)
def write_kernel(structure: FlatStructure) -> Kernel:
    """Return the kernel of a structure, with the text of its `Region`."""
    name, text = name_text("Flat", _write_body(structure))
    operands = [f"const {operand.cuda}" for operand in structure.operands] + [cuda for _, cuda in structure.results]
    return Kernel(SOURCE, f"flat<{', '.join([name, *operands])}>", text)


def _write_body(structure: FlatStructure) -> str:
    """Return the text of a region, with ``@`` for its name."""
    offset = "i64" if structure.is_wide else "i32"
    strided = structure.strided
    moved = sum(sum(operand.moves) for _, operand in strided)
    inputs = [f"const {operand.cuda}* in{k}" for k, operand in enumerate(structure.operands)]
    outputs = [f"{cuda}* out{k}" for k, (_, cuda) in enumerate(structure.results)]
    lines = [
        f"// {', '.join(row.name for row in structure.rows)}, {structure.width} elements of a thread.",
        "struct @ {",
        f"  typedef FlatWalk<{offset}, {structure.rank - 1 if strided else 0}, {moved}> Walk;",
        f"  typedef RegionNumbers<{', '.join(map(str, structure.counts))}> Numbers;",
        f"  static constexpr int kWidth = {structure.width};",
        "",
        *_write_unit(structure, offset, strided),
        "",
        *write_compute(
            [operand.cuda for operand in structure.operands],
            structure.rows,
            [(f"v{step}", cuda) for step, cuda in structure.results],
        ),
        "",
        f"  static __device__ void run(const Unit& unit, const Numbers& numbers, {', '.join([*inputs, *outputs])}) {{",
        *_write_shared(structure),
        "    if (unit.is_whole()) {",
        *_write_loads(structure),
        *[f"      Vec<{cuda}, kWidth> made{k};" for k, (_, cuda) in enumerate(structure.results)],
        "#pragma unroll",
        f"      for (int i = 0; i < kWidth; ++i) {_call_element(structure, 'vector{}.lanes[i]', 'made{}.lanes[i]')};",
        *[f"      store_vec(out{k} + {_find_target(structure, k)}, made{k});" for k in range(len(structure.results))],
        "      return;",
        "    }",
        "#pragma unroll 1",
        f"    for (int i = 0; i < unit.count(); ++i) {_call_element(structure, 'in{}[{} + i]', 'out{}[{} + i]')};",
        "  }",
        "};",
    ]
    return "\n".join(lines) + "\n"


def _write_unit(structure: FlatStructure, offset: str, strided: Sequence[tuple[str, Operand]]) -> list[str]:
    """Return the type that finds where the unit of a thread lies in strided operands."""
    base = f"FlatUnit<kWidth, {offset}>"
    if not strided:
        return [f"  typedef {base} Unit;"]
    unsigned = "u64" if structure.is_wide else "u32"
    lines = [
        f"  struct Unit : {base} {{",
        f"    {offset} {', '.join(f'at{k}' for k, _ in strided)};  // of its first element",
        "",
        f"    __device__ explicit Unit(const Walk& walk) : {base}(walk) {{",
        f"      {unsigned} rest = {unsigned}(index);",
    ]
    last = structure.rank - 1
    for axis in range(last):
        lines += [f"      {unsigned} c{axis};", f"      rest = walk.extents[{axis}].divide(rest, c{axis});"]
    number = 0
    for k, operand in strided:
        terms = []
        for axis, moves in enumerate(operand.moves):
            if moves:
                coordinate = "rest" if axis == last else f"c{axis}"
                terms.append(f"{offset}({coordinate}) * walk.strides[{number}]")
                number += 1
        lines.append(f"      at{k} = {' + '.join(terms) or 0};")
    return [*lines, "    }", "  };"]


def _is_vector(operand: Operand) -> bool:
    """Return whether the lanes of a unit have elements of their own."""
    return operand.kind is OperandKind.DENSE or (operand.kind is OperandKind.STRIDED and operand.moves[0])


def _find_place(k: int, operand: Operand) -> str:
    """Return the offset of a unit's first element in an operand."""
    return {OperandKind.ONE: "0", OperandKind.DENSE: "unit.at"}.get(operand.kind, f"unit.at{k}")


def _find_target(structure: FlatStructure, k: int) -> str:
    """Return the offset of a unit's first element in a result."""
    return f"unit.at_out{k}" if structure.written[k].kind is OperandKind.STRIDED else "unit.at"


def _call_element(structure: FlatStructure, given: str, made: str) -> str:
    """Return a call of that function; ``given`` and ``made`` spell an element by an operand's number and its place."""
    inputs = [
        given.format(k, _find_place(k, operand)) if _is_vector(operand) else f"shared{k}"
        for k, operand in enumerate(structure.operands)
    ]
    outputs = [made.format(k, _find_target(structure, k)) for k in range(len(structure.results))]
    return f"compute({', '.join(['numbers', *inputs, *outputs])})"


def _write_shared(structure: FlatStructure) -> list[str]:
    """Return the loads of elements that all lanes of a unit share."""
    return [
        f"    const {operand.cuda} shared{k} = in{k}[{_find_place(k, operand)}];"
        for k, operand in enumerate(structure.operands)
        if not _is_vector(operand)
    ]


def _write_loads(structure: FlatStructure) -> list[str]:
    return [
        f"      const auto vector{k} = load_vec<kWidth>(in{k} + {_find_place(k, operand)});"
        for k, operand in enumerate(structure.operands)
        if _is_vector(operand)
    ]


@work_of(SOURCE, "flat")
def count_flat(launch: Launch) -> Work:
    """Count the steps of a flat region by the lines of its text; of an input it reads no more than it has results."""
    steps = count_steps(launch.kernel.text)
    written = launch.writes_to()
    elements = written[0].spec.size
    own = elements / max(1, prod(launch.grid) * prod(launch.block))
    is_mapped = MAPPED in launch.kernel.text
    touched = {
        position: min(count_slot_bytes(slot), elements * slot.dtype.itemsize)
        if is_mapped or position in launch.writes
        else count_apart_bytes(slot, written[0], THREADS)
        for position, slot in enumerate(launch.arguments)
        if isinstance(slot, Slot)
    }
    return Work(
        flops=steps * elements,
        instructions=count_warps(launch) * (_AROUND + own * steps * _STEP_INSTRUCTIONS),
        l2_nbytes=sum(touched.values()),
        rounds=1 + (PICKING in launch.kernel.text),
        operand_nbytes=touched,
    )
