"""Products whose left operand is made by operators on rows in front, as one operator: a prologue.

In decoding, operands have few rows, and what makes them is little work, but a launch. So every block of the product
makes all rows itself, and keeps what it multiplies in shared memory. Results are, to the bit, those of one operator
after the other: `infer` and `compute` are just that. Where the product's kernel takes no prologue, or where to make
rows in every block would take longer than a launch, they are made by a launch in front. The pass
`gpuexec.passes.fuse_prologues` makes these operators; no file has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuexec.errors import InputError, PlanError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import contiguous_strides, reshape_shape
from gpuexec.ir.gpus import Gpu, find_gpu
from gpuexec.ir.operator import (
    Array,
    Emitter,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    build,
    describe,
    operator,
)
from gpuexec.ir.prepared_calls import has_scratch, overlay_scratch, prepare_calls, view_bytes
from gpuexec.ir.provider import Posed
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.weight_forms import WeightForm
from gpuexec.ops.elementwise.epilogue import FUSED_DOMAIN, StepEmitter, fused_name, without_epilogue
from gpuexec.ops.elementwise.prologue_text import (
    MAX_OPERANDS,
    MadeRows,
    count_read_bytes,
    describe_work,
    guard_text,
    make_rows,
)
from gpuexec.ops.elementwise.region import Steps
from gpuexec.ops.elementwise.region_steps import SpecKey, StepForms, StepRow, find_forms, list_keys
from gpuexec.ops.elementwise.row_kernel import can_launch
from gpuexec.ops.elementwise.row_layout import Level, RowLayout, find_row_layout
from gpuexec.ops.lib.team import BLOCK_THREADS
from gpuexec.ops.tensor.layout import window

MOST_ROWS = 8
# Of a product without an epilogue; and those that a prologue puts behind them.
OWN_ARGUMENTS, MORE_ARGUMENTS = 7, MAX_OPERANDS + 1
# What a launch of the rows takes: it begins, waits for what it reads, and drains (`gpuexec.planner.time_model`).
_LAUNCH_US, _BARRIER_CYCLES, _SCHEDULERS = 2.5, 40, 4


@dataclass(frozen=True, slots=True)
class ProductSizes:
    """Sizes of a product's launch: rows and terms of its left operand, and the terms that a block multiplies at most.

    ``is_able`` is whether its kernel with a prologue takes operands that lie so, and ``held_rows`` for how many rows
    that has room in shared memory.
    """

    rows: int
    inner: int
    kept: int
    is_able: bool
    held_rows: int


@dataclass(frozen=True, slots=True)
class PrologueForm:
    """A kernel of products as it is with a prologue.

    Attributes:
        source: Its file.
        expression: Its name expression, in front of the type of the rows and the epilogue, without ``>``.
        dtype: Of the left operand.
        registers: Of a thread.
        read_sizes: Reads a launch's arguments and grid.
    """

    source: str
    expression: str
    dtype: np.dtype[Any]
    registers: int
    read_sizes: Callable[[Sequence[Argument], tuple[int, int, int]], ProductSizes]


_FORMS: dict[Kernel, PrologueForm] = {}


def allow_prologue(kernels: Iterable[tuple[Kernel, PrologueForm]]) -> None:
    """Note kernels that take a prologue.

    Arguments begin with the left operand, the right one, two more slots and a struct, then scratch and counters. With a
    prologue the first operand of the rows takes the place of the left one; behind the counters stand the others, the
    walk and the numbers.
    """
    _FORMS.update(kernels)


@dataclass(frozen=True, slots=True, eq=False)
class ProductParts:
    """What a product of rows consists of: what makes its left operand, and the product."""

    maker: Operator
    product: Operator


class Prefixed(Operator):
    """Base of the operator here: its parts, made once."""

    __slots__ = ("_parts",)
    maker: tuple[Any, ...]
    product: tuple[Any, ...]
    _parts: ProductParts

    @property
    def parts(self) -> ProductParts:
        """Return the maker of rows and the product as operators, made once."""
        try:
            return self._parts
        except AttributeError:  # new, or out of a pickle, which has fields alone
            maker, product = (build(name, dict(attributes)) for name, attributes in (self.maker, self.product))
            parts = ProductParts(maker, product)
            object.__setattr__(self, "_parts", parts)
            return parts


@operator("ProductOfRows", FUSED_DOMAIN)
@dataclass(frozen=True, slots=True)
class ProductOfRows(Prefixed):
    """A product of few rows with the operator that makes them: MatMul, Gemm or MatMulNBits, perhaps with an epilogue.

    Inputs are those of the maker, then those of the product behind its left operand.

    Attributes:
        maker: Name and attributes of what makes the left operand, its first output: a region, or an operator on rows or
            elements, perhaps with an epilogue.
        product: Name and attributes of the product.
        taken: How many inputs are the maker's.
        view: The shape under which the product sees what the maker makes, as Reshape has it; None: its own.
    """

    maker: tuple  # type: ignore[type-arg]
    product: tuple  # type: ignore[type-arg]
    taken: int
    view: tuple[int, ...] | None = None
    tolerance = Tolerance.REDUCTION
    uses_all_cores = True
    has_blits = True
    example = "float32[2,3] float32[3,4] maker=('Softmax',()) product=('MatMul',()) taken=1"

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Infer the maker, then the product.

        Raises:
            InputError: As they do.
        """
        if not 0 < self.taken <= len(inputs):
            raise InputError(f"{self.name} expects taken of 1 to {len(inputs)} inputs, got {self.taken}.")
        return self.parts.product.infer(self._infer_operand(inputs), *inputs[self.taken :])

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the type that the product gives of what the maker makes."""
        made = self.parts.maker.find_dtype(dtypes[: self.taken])
        return self.parts.product.find_dtype([made, *dtypes[self.taken :]])

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int | None:
        """Add up what both do, the maker once."""
        parts, operand = self.parts, self._infer_operand(inputs)
        own = parts.product.count_flops([operand, *inputs[self.taken :]], outputs)
        return None if own is None else own + (parts.maker.count_flops(inputs[: self.taken], [operand]) or 0)

    def rounds_to(self, position: int, inputs: Sequence[TensorSpec | None], target: Target) -> str:
        """Return what the product rounds its own inputs to; those of the maker are taken as they are."""
        if position < self.taken:
            return ""
        own = [self._infer_operand(inputs), *inputs[self.taken :]]
        return self.parts.product.rounds_to(position - self.taken + 1, own, target)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array | None, ...]:
        """Compute the maker, then the product."""
        made = self.parts.maker.compute(*inputs[: self.taken])[0]
        assert made is not None
        if self.view is not None:
            made = made.reshape(reshape_shape(made.shape, self.view))
        return self.parts.product.compute(made, *inputs[self.taken :], out=out)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what the maker makes, and what one and then the other works in."""
        made, *others = self.parts.maker.infer(*inputs[: self.taken])
        inner = self.parts.maker.count_scratch(inputs[: self.taken], [made, *[None] * len(others)])
        behind = self.parts.product.count_scratch([self._see(made), *inputs[self.taken :]], outputs)
        return (made.nbytes, *overlay_scratch(inner, behind))

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Prepare the maker, then the product."""
        parts, count = self.parts, self.taken
        specs = [None if x is None else TensorSpec(x.shape, x.dtype) for x in inputs]
        wanted = [None if y is None else TensorSpec(y.shape, y.dtype) for y in out]
        if not has_scratch(scratch, self.count_scratch(specs, wanted)):
            return None
        made, *others = parts.maker.infer(*specs[:count])
        memory = view_bytes(scratch[0], made.shape, made.dtype)
        operands = [memory.reshape(self._see(made).shape), *inputs[count:]]
        making = prepare_calls(
            parts.maker, inputs[:count], [memory, *[None] * len(others)], constant[:count], scratch[1:]
        )
        product = prepare_calls(parts.product, operands, out, [False, *constant[count:]], scratch[1:])
        return [*making, *product]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the product's kernel with the rows in front; where that can't be, the maker's before it."""
        parts, given = self.parts, inputs[: self.taken]
        made = parts.maker.infer(*(None if slot is None else slot.spec for slot in given))[0]
        operand = emit.temp(made.shape, made.dtype)
        assert parts.product.lower is not None
        seen = operand
        if self.view is not None:
            shape = reshape_shape(operand.shape, self.view)
            seen = window(operand, shape, contiguous_strides(shape))
        leading = PrologueEmitter(emit, Prologue(parts.maker, given, operand))
        parts.product.lower(leading, (seen, *inputs[self.taken :]), outputs)

    def _infer_operand(self, inputs: Sequence[TensorSpec | None]) -> TensorSpec:
        """Return the spec of what the product sees of what the maker makes."""
        return self._see(self.parts.maker.infer(*inputs[: self.taken])[0])

    def _see(self, made: TensorSpec) -> TensorSpec:
        """Return the spec of what the maker makes as the product sees it."""
        return made if self.view is None else made.with_shape(reshape_shape(made.shape, self.view))


@dataclass(frozen=True, slots=True)
class RowSteps:
    """An operator as the steps of a region of rows, the last one of which makes its result.

    Attributes:
        rows: The steps.
        forms: What they make of their inputs.
        layout: Of their rows.
    """

    rows: tuple[StepRow, ...]
    forms: StepForms
    layout: RowLayout


def read_maker(maker: Operator, keys: tuple[SpecKey | None, ...]) -> RowSteps | None:
    """Return an operator as steps on rows; None where it is no such operator, or not of such inputs.

    Args:
        maker: The operator, of whose outputs the first one alone is wanted.
        keys: Shapes and types of its inputs; None: absent.
    """
    places: tuple[Any, ...] = tuple([None if key is None else place for place, key in enumerate(keys)])
    rounds = bool(getattr(maker, "rounds", True))
    if isinstance(maker, Steps):
        rows = maker.steps if maker.results == (len(maker.steps) - 1,) else ()
    elif maker.name.startswith(fused_name("")):
        rows = _read_fused(maker, places)
    else:
        rows = ((*describe(maker), places),)
    forms = find_forms(rows, keys, rounds) if rows else None
    if forms is None or forms.forms is None:
        return None
    layout = find_row_layout(rows, forms, keys, is_reduced=False)
    return None if layout is None or layout.levels[-1] is not Level.ELEMENT else RowSteps(rows, forms, layout)


def _read_fused(fused: Any, places: tuple[Any, ...]) -> tuple[StepRow, ...]:
    """Return an operator with an epilogue as steps; none where it is seen under another shape, or stores others too.

    Its steps count what the producer makes as the first of those before them, as a region does.
    """
    if fused.view is not None or fused.results != (len(fused.steps),):
        return ()
    return ((*describe(fused.parts.producer), fused.split(places)), *fused.steps)


@dataclass(frozen=True, slots=True)
class Prologue:
    """What makes a product's left operand.

    Attributes:
        maker: The operator.
        inputs: What it reads; None: absent.
        operand: Where launches of its own store what it makes.
    """

    maker: Operator
    inputs: Slots
    operand: Slot

    def lead(
        self,
        emit: Emitter,
        kernel: Kernel,
        grid: tuple[int, int, int],
        arguments: Sequence[Argument],
        shared_bytes: int,
    ) -> tuple[Kernel, list[Argument], int] | None:
        """Return a launch of a product with these rows: kernel, arguments, and bytes of shared memory beside its own.

        None where they are to be made in front.

        Args:
            emit: Emitter of the launch.
            kernel: Of the product.
            grid: The same.
            arguments: The same.
            shared_bytes: The same.

        Raises:
            PlanError: They can't be made as at the upper end of the size class.
        """
        form = _FORMS.get(replace(kernel, expression=without_epilogue(kernel.expression), text=""))
        sizes = None if form is None else form.read_sizes(arguments, grid)
        given = [slot for slot in self.inputs if slot is not None]
        steps = read_maker(self.maker, list_keys(self.inputs))
        is_able = (
            form is not None
            and sizes is not None
            and sizes.is_able
            and arguments[0] == self._see(arguments[0])
            and steps is not None
            and 0 < len(given) <= MAX_OPERANDS
            and self.operand.dtype == form.dtype
            and (steps.layout.rows, steps.layout.columns) == (sizes.rows, sizes.inner)
            and can_launch(steps.rows, steps.forms, steps.layout, self.inputs, [self.operand])
        )
        if not emit.choose(is_able):
            return None
        if form is None or sizes is None or steps is None or not is_able:
            raise PlanError("Rows of a product can't be made by its blocks, as they are at the upper end.")
        made = make_rows(emit, steps.rows, steps.forms, steps.layout, self.inputs, self.operand)
        blocks = grid[0] * grid[1] * grid[2]
        more = sizes.held_rows * sizes.kept * form.dtype.itemsize
        room = emit.choose(more)
        if more > room:
            raise PlanError(f"Rows of a product take {more} bytes of shared memory, more than {room} at the upper end.")

        def is_worth() -> bool:
            gpu, whole = find_gpu(emit.target.architecture), shared_bytes + room
            fits = _fits_alike(gpu, form, blocks, shared_bytes, room) and whole <= emit.target.shared_bytes_per_block
            return fits and _is_worth(gpu, made, sizes, blocks)

        if not emit.choose(is_worth):
            return None
        own = kernel.expression.removesuffix(">")
        rest = own[len(without_epilogue(kernel.expression)) - 1 :]
        text = made.text + (guard_text(rest.split(", ")[1], kernel.text) if kernel.text else "")
        filled: list[Argument] = [*made.operands, *[None] * (MAX_OPERANDS - len(made.operands))]
        led = [
            *filled[:1],
            *arguments[1:OWN_ARGUMENTS],
            *filled[1:],
            made.walk.pack(),
            made.numbers.pack(),
            *arguments[OWN_ARGUMENTS:],
        ]
        return Kernel(form.source, f"{form.expression}, {made.name}{rest}>", text), led, room

    def _see(self, argument: Argument) -> Argument:
        """Return an argument if it is the whole operand, dense."""
        is_seen = isinstance(argument, Slot) and argument.buffer == self.operand.buffer and argument.is_contiguous
        return argument if is_seen else None

    def is_read(self, argument: Argument) -> bool:
        """Return whether an argument is what the steps make."""
        return isinstance(argument, Slot) and argument.buffer == self.operand.buffer


def _fits_alike(gpu: Gpu, form: PrologueForm, blocks: int, own: int, more: int) -> bool:
    """Return whether as many blocks are on a multiprocessor with shared memory for rows as without, if that counts."""
    with_rows, without = (gpu.count_blocks(BLOCK_THREADS, form.registers, nbytes) for nbytes in (own + more, own))
    return with_rows == without or blocks <= gpu.multiprocessors * with_rows


def _is_worth(gpu: Gpu, made: MadeRows, sizes: ProductSizes, blocks: int) -> bool:
    """Return whether blocks make rows in less time than a launch of them takes."""
    walk = made.walk
    own = describe_work(made.text, (walk.rows, walk.columns, walk.team.lanes), sizes.kept)
    cycles = own.rounds * gpu.l2_latency_cycles + own.instructions / _SCHEDULERS + own.barriers * _BARRIER_CYCLES
    nbytes = blocks * count_read_bytes(made.text, made.operands, (walk.columns, sizes.kept))
    return cycles / gpu.clock_hertz + nbytes / gpu.l2_bytes_per_second <= _LAUNCH_US * 1e-6


class PrologueEmitter(StepEmitter):
    """The emitter that a product is lowered through: its launch makes its rows, or stands behind one that does.

    No library makes rows, so none is asked.
    """

    def __init__(self, emit: Emitter, prologue: Prologue) -> None:
        super().__init__(emit, prologue.operand)
        self._prologue, self._is_made = prologue, False

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
        """Launch, with the rows where they are read and the kernel takes them."""
        if not self._is_made and any(map(self._prologue.is_read, arguments)):
            led = self._prologue.lead(self._emit, kernel, grid, arguments, shared_bytes)
            if led is not None:
                kernel, arguments, more = led
                shared_bytes += more
                writes = [each if each < OWN_ARGUMENTS else each + MORE_ARGUMENTS for each in writes]
            else:
                self._make()
        self._emit.launch(kernel, grid, block, arguments, writes, shared_bytes, cooperative)

    def copy(self, destination: Slot, source: Slot) -> None:
        """Copy between slots."""
        if self._prologue.is_read(source):
            self._make()
        self._emit.copy(destination, source)

    def packed(self, slot: Slot, form: WeightForm) -> Slot | None:
        """Return a weight in another layout, or None: what is made is none."""
        return None if self._prologue.is_read(slot) else self._emit.packed(slot, form)

    def provide(self, pose: Callable[[], Posed], launch: Callable[[], None], *, keeps_order: bool = False) -> bool:
        """Emit the product by our kernels."""

        def pose_made() -> Posed:
            return Posed("its left operand is made by its own blocks", pose().slots)

        return self._emit.provide(pose_made, launch, keeps_order=keeps_order)

    def _make(self) -> None:
        """Emit the launches that make the operand, once."""
        if not self._is_made:
            self._is_made = True
            prologue = self._prologue
            assert prologue.maker.lower is not None
            prologue.maker.lower(StepEmitter(self._emit, prologue.operand), prologue.inputs, (prologue.operand,))
