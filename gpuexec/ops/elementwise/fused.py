"""Operators with an epilogue: a producer, and operators on the elements of what it makes, as one operator.

Each result is, to the bit, what the operators would give one after the other: `infer` and `compute` are just that. On a
device the producer's kernel takes the steps before it stores, where it takes an epilogue and operands fit; else the
steps are a region behind it. The pass `gpuexec.passes.fuse_epilogues` makes these operators; no file has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import close_gaps, contiguous_strides, max_offset, reshape_shape
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, count_elements, operator
from gpuexec.ir.prepared_calls import overlay_scratch, prepare_calls, view_bytes
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.epilogue import (
    FUSED_DOMAIN,
    Epilogue,
    FinishingEmitter,
    fused_name,
    list_library_steps,
    place_operands,
    place_outputs,
)
from gpuexec.ops.elementwise.region import Region
from gpuexec.ops.elementwise.region_steps import (
    Given,
    RegionStep,
    SpecKey,
    StepRow,
    find_forms,
    list_keys,
    read_steps,
)
from gpuexec.ops.elementwise.region_text import write_steps
from gpuexec.ops.linalg.einsum import Einsum
from gpuexec.ops.linalg.matmul import Gemm, MatMul
from gpuexec.ops.linalg.scaled_matmul import ScaledMatMul
from gpuexec.ops.microsoft.matmul import FusedMatMul
from gpuexec.ops.microsoft.matmul_nbits import MatMulNBits
from gpuexec.ops.nn.batch_norm import BatchNormalization
from gpuexec.ops.nn.conv import Conv, ConvTranspose
from gpuexec.ops.nn.dot_product_attention import ScaledDotProductAttention
from gpuexec.ops.nn.gradient import SumTo
from gpuexec.ops.nn.norm import LayerNormalization, RMSNormalization
from gpuexec.ops.nn.norm_channels import GroupNormalization, InstanceNormalization
from gpuexec.ops.nn.pool import AveragePool, LpPool, MaxPool
from gpuexec.ops.nn.softmax import LogSoftmax, Softmax
from gpuexec.ops.quant import narrow
from gpuexec.ops.reduce.reduce import REDUCTIONS
from gpuexec.ops.reduce.reduce_pool import GlobalAveragePool, GlobalLpPool, GlobalMaxPool
from gpuexec.ops.tensor.layout import window
from gpuexec.ops.vision.resize import Resize

_SPECS_KEPT = 64
_VECTOR_LANES = 16  # the most elements of a vector of 16 bytes
# Elements that a shape may depend on: of integers such as axes, of floats such as the scales of Resize.
_CONTENT_SIZES = {"i": 64, "u": 64, "f": 8}
# A shape, an element type, and the bytes of a few numbers.
_ContentKey = tuple[tuple[int, ...], np.dtype[Any], bytes]
# Each says so by `takes_epilogue`.
PRODUCERS: dict[str, type[Operator]] = {
    cls.name: cls
    for cls in (
        Conv,
        ConvTranspose,
        Gemm,
        MatMul,
        Einsum,
        FusedMatMul,
        MatMulNBits,
        ScaledMatMul,
        BatchNormalization,
        InstanceNormalization,
        GroupNormalization,
        LayerNormalization,
        RMSNormalization,
        ScaledDotProductAttention,
        Softmax,
        LogSoftmax,
        MaxPool,
        AveragePool,
        LpPool,
        GlobalAveragePool,
        GlobalMaxPool,
        GlobalLpPool,
        *REDUCTIONS.values(),
        SumTo,
        Resize,
        *(getattr(narrow, f"Narrow{name}") for name, form in narrow.FORMS.items() if form.weight > 0),
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a fused operator consists of.

    Attributes:
        producer: The operator with sums.
        steps: The steps behind it, as its rows have them.
        region: The same as one operator, which takes what the producer makes, then all inputs of the fused operator;
            its results are those of the fused operator but for what the producer makes.
        first_operand: Position of the first input that only steps have.
        operands: Positions of the inputs that steps read.
        own: Position of the output in whose memory the producer may work; -1: none.
        others: Positions of the outputs that steps make.
        specs: By shapes, types and content of all inputs, those of what steps see and make.
    """

    producer: Operator
    steps: tuple[RegionStep, ...]
    region: Region
    first_operand: int | None
    operands: frozenset[int]
    own: int
    others: tuple[int, ...]
    specs: dict[tuple[_ContentKey | None, ...], tuple[TensorSpec, ...]] = field(init=False, default_factory=dict)

    @classmethod
    def of(cls, producer: Operator, rows: tuple[StepRow, ...], results: tuple[int, ...], rounds: bool) -> Parts:
        """Return the parts of rows whose sources are as `Fused` has them."""
        shifted = tuple([(name, attributes, tuple(map(_shift, inputs))) for name, attributes, inputs in rows])
        operands = {given for _, _, inputs in rows for given in inputs if isinstance(given, int) and given >= 0}
        region = Region(shifted, tuple([result - 1 for result in results if result > 0]), rounds)
        taken = 0 if 0 in results else len(rows)
        return cls(
            producer,
            read_steps(rows),
            region,
            min(operands, default=None),
            frozenset(operands),
            results.index(taken) if taken in results else -1,
            tuple([place for place, result in enumerate(results) if result > 0]),
        )


class Fused(Operator):
    """Base of the operators here: a producer's fields, and steps on the elements of what it makes.

    Attributes:
        steps: Rows of (name, attributes, inputs) as a region has them, but that -1 stands for what the producer makes
            and -2 - k for what step k does. Inputs of the producer come first; those of steps alone follow.
        results: What the outputs are: 0 for what the producer makes, k + 1 for what step k does.
        rounds: Whether floats that pass between steps are rounded to their type.
        view: The shape under which steps and outputs see what the producer makes, as Reshape has it; None: its own.
    """

    __slots__ = ("_parts",)
    of: ClassVar[type[Operator]]
    steps: tuple[Any, ...]
    results: tuple[int, ...]
    rounds: bool
    view: tuple[int, ...] | None
    _parts: Parts

    @property
    def parts(self) -> Parts:
        """Return the producer and the steps as operators, made once."""
        try:
            return self._parts
        except AttributeError:  # new, or out of a pickle, which has fields alone
            names = [f.name for f in dataclasses.fields(self.of)]  # type: ignore[arg-type]
            producer = self.of(**{name: getattr(self, name) for name in names})
            object.__setattr__(self, "_parts", Parts.of(producer, self.steps, self.results, self.rounds))
            return self._parts

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the type that the producer gives, and steps make of it."""
        made = [self.parts.producer.find_dtype(self.split(dtypes))]
        for step in self.parts.steps:
            made.append(step.operator.find_dtype(step.pick(dtypes, made, lambda array: array.dtype)))
        return made[self.results[0]]

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Infer one operator after the other.

        Raises:
            InputError: As they do.
        """
        if not self.steps:
            raise InputError(f"{self.name} expects steps, got none.")
        if not self.results or not all(0 <= result <= len(self.steps) for result in self.results):
            raise InputError(f"{self.name} expects results among its {len(self.steps)} steps, got {self.results}.")
        made = self._infer_made(inputs)
        return tuple([made[result] for result in self.results])

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int | None:
        """Count what the producer does, and an operation of each step for each element."""
        made = self.parts.producer.count_flops(self.split(inputs), outputs)
        return None if made is None else made + len(self.steps) * count_elements(outputs, 0)

    def reads_any_format(self, position: int, inputs: Sequence[TensorSpec | None]) -> bool:
        """Return whether the producer does; the steps don't."""
        own = self.split(inputs)
        return position < len(own) and self.parts.producer.reads_any_format(position, own)

    def rounds_to(self, position: int, inputs: Sequence[TensorSpec | None], target: Target) -> str:
        """Return what the producer rounds its own inputs to; the steps round none."""
        own = self.split(inputs)
        return self.parts.producer.rounds_to(position, own, target) if position < len(own) else ""

    def count_format_gain(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], target: Target
    ) -> int:
        """Return what the producer gains."""
        return self.parts.producer.count_format_gain(self.split(inputs), outputs, target)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array | None, ...]:
        """Compute what the producer makes, then the steps block by block; the last one in the same memory."""
        wanted: list[Array | None] = list(out or (None,) * len(self.results))
        parts, specs = self.parts, self._find_made(inputs)
        seen, own, others = specs[0], parts.own, parts.others
        memory = wanted[own] if own >= 0 else None
        fits = memory is not None and (memory.shape, memory.dtype) == (seen.shape, seen.dtype)
        target = (memory,) if fits and self.view is None else None
        made = parts.producer.compute(*self.split(inputs), out=target)[0]
        assert made is not None
        if self.view is not None:
            made = made.reshape(seen.shape)
        if 0 in self.results:
            if memory is None:
                wanted[own] = made
            elif made is not memory:
                memory[...] = made
        elif own >= 0 and memory is None and specs[-1] == seen:
            wanted[own] = made
        if others:
            finished = parts.region.compute(made, *self._pick(inputs), out=[wanted[place] for place in others])
            for place, y in zip(others, finished, strict=True):
                wanted[place] = y
        return tuple(wanted)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what the producer makes, where no output has memory for it, and what producer and steps work in."""
        given, producer = self.split(inputs), self.parts.producer
        (made, *_) = producer.infer(*given)
        specs, made = self._follow(made, inputs), TensorSpec(made.shape, made.dtype)
        inner = producer.count_scratch(given, (made,))
        behind = self.parts.region.count_scratch([specs[0], *self._pick(inputs)], ())
        return (*([] if self._has_memory(outputs, specs[0]) else [made.nbytes]), *overlay_scratch(inner, behind))

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Prepare the producer, then the steps on what it makes; the last one in the same memory."""
        wanted = [y for y in out if y is not None and y.size and y.flags.c_contiguous]
        if len(wanted) < len(out):
            return None
        parts, given, seen = self.parts, self.split(inputs), self._find_made(inputs)[0]
        made = parts.producer.infer(*[None if x is None else TensorSpec.of(x) for x in given])[0]
        specs = [None if x is None else TensorSpec(x.shape, x.dtype) for x in inputs]
        rest, has_memory = list(scratch), self._has_memory(out, seen)
        count = len(parts.producer.count_scratch(self.split(specs), (made,)))
        behind = len(parts.region.count_scratch([seen, *self._pick(specs)], ()))
        if len(rest) < max(count, behind) + (not has_memory):
            return None
        memory = wanted[parts.own] if has_memory else view_bytes(rest.pop(0), made.shape, made.dtype)
        own = memory.reshape(made.shape)
        calls = [*prepare_calls(parts.producer, given, (own,), constant[: len(given)], rest[:count])]
        if 0 in self.results and memory is not wanted[self.results.index(0)]:
            calls.append(partial(np.copyto, wanted[self.results.index(0)], memory.reshape(seen.shape)))
        others = [wanted[place] for place in parts.others]
        if others:
            operands = (memory.reshape(seen.shape), *self._pick(inputs))
            calls += prepare_calls(parts.region, operands, others, (), rest[:behind])
        return calls

    def _has_memory(self, outputs: Sequence[Any], seen: TensorSpec) -> bool:
        """Return whether the output whose memory the producer may work in, by specs or arrays, is as steps see it."""
        own = outputs[self.parts.own] if self.parts.own >= 0 else None
        return own is not None and (own.shape, own.dtype) == (seen.shape, seen.dtype)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the producer's kernel with the steps; where that can't be, the steps behind it."""
        kept = [(result, y) for result, y in zip(self.results, outputs, strict=True) if y is not None]
        if not kept or emit.leaves_to_host():
            return
        producer, taken = self.parts.producer, self.split(inputs)
        specs = tuple([None if slot is None else slot.spec for slot in taken])
        made = producer.infer(*specs)[0]
        seen = made if self.view is None else made.with_shape(reshape_shape(made.shape, self.view))
        result = emit.temp(seen.shape, seen.dtype)
        if self.view is None and all(y.shape == seen.shape for _, y in kept):
            result = _lay_like(
                emit, result, [y for _, y in kept], with_gaps=producer.writes_windows(specs, (made,), emit.target)
            )
        epilogue = self._make_epilogue(emit, result, inputs, kept)
        library_steps = list_library_steps(self.parts.steps, [place for place, _ in kept], inputs)
        finishing = FinishingEmitter(emit, result, epilogue, library_steps)
        assert producer.lower is not None
        producer.lower(finishing, taken, (result if self.view is None else _view(result, made.shape),))
        if finishing.unfinished is None:
            assert finishing.is_finished, f"{producer} wrote its result unseen"
            return
        for place, y in kept:
            if place == 0:
                emit.copy(y, result)
        others = tuple([y for place, y in zip(self.results, outputs, strict=True) if place > 0])
        self.parts.region.lower(emit, (result, *self._pick(inputs)), others)

    def writes_windows(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], target: Target
    ) -> bool:
        """Return whether the producer does."""
        own, producer = self.split(inputs), self.parts.producer
        if self.view is not None:
            return False
        return producer.finishes_windows or producer.writes_windows(own, producer.infer(*own), target)

    def without_roundings(self, outputs: Collection[int]) -> tuple[Operator, tuple[int, ...]]:
        """Return the operator whose outputs are what the steps behind some outputs round.

        Args:
            outputs: Positions of outputs whose steps do nothing but round, and are to go.

        Returns:
            The operator, which is the producer where no step is left; then of each output of this one, the position
            among those of that.
        """
        taken = [
            -1 - self.steps[result - 1][2][0] if position in outputs else result
            for position, result in enumerate(self.results)
        ]
        results = tuple(dict.fromkeys(taken))
        places = tuple([results.index(result) for result in taken])
        needed: set[int] = set()
        for step in range(len(self.steps), 0, -1):
            if step in results or step in needed:
                needed |= {-1 - given for given in self.steps[step - 1][2] if isinstance(given, int) and given < 0}
                needed.add(step)
        kept = [step for step in range(1, len(self.steps) + 1) if step in needed]
        if not kept and self.view is None:
            return self.parts.producer, places
        if not kept:
            return self, tuple(range(len(self.results)))
        number = {0: 0} | {step: place for place, step in enumerate(kept, 1)}
        rows = tuple([
            (name, attributes, tuple([
                -1 - number[-1 - given] if isinstance(given, int) and given < 0 else given for given in inputs
            ]))
            for name, attributes, inputs in [self.steps[step - 1] for step in kept]
        ])  # fmt: skip
        changed = {"steps": rows, "results": tuple([number[result] for result in results])}
        return dataclasses.replace(self, **changed), places  # type: ignore[type-var]

    def split(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the inputs of the producer: those before the first operand."""
        return tuple(inputs[: self.parts.first_operand])

    def _pick(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs that steps read, None in place of others."""
        return [each if position in self.parts.operands else None for position, each in enumerate(inputs)]

    def _list_keys(self, seen: Any, inputs: Sequence[Any]) -> tuple[SpecKey | None, ...]:
        return list_keys([seen, *self._pick(inputs)])

    def _infer_made(self, inputs: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
        """Return the specs of what steps see of what the producer makes, and of what they make."""
        return self._follow(self.parts.producer.infer(*self.split(inputs))[0], inputs)

    def _follow(self, made: TensorSpec, inputs: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
        seen = made if self.view is None else made.with_shape(reshape_shape(made.shape, self.view))
        return (seen, *find_forms(self.parts.region.steps, self._list_keys(seen, inputs)).specs)

    def _find_made(self, inputs: Sequence[Array | None]) -> tuple[TensorSpec, ...]:
        """Return the same for arrays, known from calls before."""
        keys = tuple([None if x is None else (x.shape, x.dtype, _read_content(x)) for x in inputs])
        known = self.parts.specs
        if keys not in known:
            if len(known) > _SPECS_KEPT:
                known.clear()
            specs = [
                None if x is None or key is None else TensorSpec.of(x) if key[2] else TensorSpec(x.shape, x.dtype)
                for x, key in zip(inputs, keys, strict=True)
            ]
            known[keys] = self._infer_made(specs)
        return known[keys]

    def _make_epilogue(
        self, emit: Emitter, result: Slot, inputs: Slots, kept: Sequence[tuple[int, Slot]]
    ) -> Epilogue | None:
        """Return the steps for the producer's kernel; None where they can't be in one."""
        outputs = [y for _, y in kept]
        forms = find_forms(self.parts.region.steps, self._list_keys(result, inputs), self.rounds)
        is_able = (
            not emit.target.has_textures
            and forms.pointwise is not None
            and all(y.shape == result.shape for y in outputs)
        )
        if not emit.choose(is_able) or not is_able:
            return None
        used, pitches = self._pick(inputs), place_outputs(emit, outputs, result)
        if pitches is None:
            return None
        operands = place_operands(emit, [slot for slot in used if slot is not None], result)
        if operands is None:
            return None
        given = (True, *[slot is not None for slot in used])
        rows, numbers = write_steps(self.parts.region.steps, forms, given)
        names = [f"v{place - 1}" if place else "x0" for place, _ in kept]
        return Epilogue(rows, numbers, operands, tuple(names), tuple(outputs), pitches, self.rounds)


def _read_content(x: Array) -> bytes:
    """Return the bytes of a few numbers along one axis, on which the shape of a result may depend; else none."""
    return x.tobytes() if x.ndim <= 1 and x.size <= _CONTENT_SIZES.get(x.dtype.kind, 0) else b""


def _shift(given: Given) -> Given:
    """Return a source of a fused operator's row as the region has it, whose first input is what the producer makes."""
    return given + 1 if isinstance(given, int) else given


def _lay_like(emit: Emitter, result: Slot, outputs: Sequence[Slot], *, with_gaps: bool) -> Slot:
    """Return memory for what a producer makes, which lies as the output that its kernel stores, channels last, maybe.

    Where that is a window, so is this ``with_gaps``, as far from the next 16 bytes.
    """
    like = next((y for y in outputs if y.dtype == result.dtype), outputs[0])
    if not emit.choose(like.order is None):
        return Slot(result.buffer, result.offset_bytes, result.spec, like.strides)
    if not with_gaps:
        return Slot(result.buffer, result.offset_bytes, result.spec, close_gaps(like.shape, like.strides))
    itemsize, first = result.dtype.itemsize, like.offset_bytes // like.dtype.itemsize % _VECTOR_LANES
    made = emit.temp((first + max_offset(like.shape, like.strides) + 1,), result.dtype)
    return Slot(made.buffer, first * itemsize, result.spec, like.strides)


def _view(slot: Slot, shape: tuple[int, ...]) -> Slot:
    """Return a dense slot under another shape."""
    return window(slot, shape, contiguous_strides(shape))


def _make(producer: type[Operator]) -> None:
    """Register the operator for a producer: its fields, and the steps."""
    fields: list[Any] = []
    for f in dataclasses.fields(producer):  # type: ignore[arg-type]
        is_required = f.default is dataclasses.MISSING
        fields.append((f.name, f.type) if is_required else (f.name, f.type, dataclasses.field(default=f.default)))
    fields.append(("steps", tuple, dataclasses.field(default=())))
    fields.append(("results", tuple, dataclasses.field(default=(1,))))
    fields.append(("rounds", bool, dataclasses.field(default=True)))
    fields.append(("view", tuple[int, ...] | None, dataclasses.field(default=None)))
    namespace = {
        "__doc__": f"{producer.__name__} with an epilogue; see `gpuexec.ops.elementwise.fused`.",
        "__module__": __name__,
        "of": producer,
        "tolerance": producer.tolerance,
        "uses_all_cores": producer.uses_all_cores,
        "keeps_dtype": False,  # a Cast may be a step
        "has_blits": producer.has_blits,
        "finishes_windows": producer.finishes_windows,
        "format_use": producer.format_use,
        "padded_factors": producer.padded_factors,
        "not_images": producer.not_images,
    }
    name = fused_name(producer.name).rpartition(".")[2]
    made = dataclasses.make_dataclass(name, fields, bases=(Fused,), namespace=namespace, frozen=True, slots=True)
    globals()[name] = operator(name, FUSED_DOMAIN)(made)


for _producer in PRODUCERS.values():
    _make(_producer)
