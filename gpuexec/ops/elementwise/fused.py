"""Fused operators: a producer (Conv, Gemm, a normalization) with the elementwise operators behind it.

Each has the fields and inputs of the producer; its field ``steps`` says what follows
(`gpuexec.ops.elementwise.epilogue`), and
behind the producer's inputs come the operands of steps. The first step may be a Reshape to a shape that is its operand:
a view, which no kernel needs to know of. The result is, to the bit, what the operators would give one after the other:
`infer` and `compute` are just that, `compute` in the memory of one result. On a device the
producer's kernel takes the steps before it stores, where there is an instance for the types and operands fit; else the
steps are launched behind it. The pass `gpuexec.passes.fuse_epilogues` makes these operators; no file has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, count_elements, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.elementwise_cast import Cast, convert_commands
from gpuexec.ops.elementwise.epilogue import (
    FUSED_DOMAIN,
    MADE,
    EpilogueStep,
    FinishingEmitter,
    StepEmitter,
    fused_name,
    make_epilogue,
    name_functors,
    read_steps,
)
from gpuexec.ops.linalg.einsum import Einsum
from gpuexec.ops.linalg.matmul import Gemm, MatMul
from gpuexec.ops.linalg.scaled_matmul import ScaledMatMul
from gpuexec.ops.microsoft.matmul import FusedMatMul
from gpuexec.ops.nn.batch_norm import BatchNormalization
from gpuexec.ops.nn.conv import Conv, ConvTranspose
from gpuexec.ops.nn.dot_product_attention import ScaledDotProductAttention
from gpuexec.ops.nn.norm import LayerNormalization, RMSNormalization
from gpuexec.ops.nn.norm_channels import GroupNormalization, InstanceNormalization
from gpuexec.ops.quant import narrow
from gpuexec.ops.tensor.layout import Reshape, window

_SHAPES_KEPT = 64
# Each says by `epilogue_rank` from how many axes on its result can be finished.
PRODUCERS: dict[str, type[Operator]] = {
    cls.name: cls
    for cls in (
        Conv,
        ConvTranspose,
        Gemm,
        MatMul,
        Einsum,
        FusedMatMul,
        ScaledMatMul,
        BatchNormalization,
        InstanceNormalization,
        GroupNormalization,
        LayerNormalization,
        RMSNormalization,
        ScaledDotProductAttention,
        *(getattr(narrow, f"Narrow{name}") for name, form in narrow.FORMS.items() if form.weight > 0),
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A producer and the steps behind it.

    Attributes:
        producer: Producer of the first step's input.
        steps: The steps, but for the view.
        view: The Reshape in front of them; None: there is none.
        first_operand: Position of the first input that only steps have; None: there is none.
        last_use: The last step that reads what the producer made once more; -1: none does.
        shapes: By the shapes of all inputs, that of what the producer makes, and whether steps keep the one they see.
    """

    producer: Operator
    steps: tuple[EpilogueStep, ...]
    view: EpilogueStep | None = None
    first_operand: int | None = field(init=False)
    last_use: int = field(init=False)
    shapes: dict[tuple[tuple[int, ...] | None, ...], tuple[tuple[int, ...], bool]] = field(
        init=False, default_factory=dict
    )

    @classmethod
    def of(cls, producer: Operator, steps: tuple[EpilogueStep, ...]) -> Parts:
        """Return the parts, the first step apart where it is a view."""
        if steps and isinstance(steps[0].operator, Reshape):
            return cls(producer, steps[1:], steps[0])
        return cls(producer, steps)

    def __post_init__(self) -> None:
        steps = self.steps if self.view is None else (self.view, *self.steps)
        operands = [given for step in steps for given in step.inputs if isinstance(given, int) and given >= 0]
        uses = [place for place, step in enumerate(self.steps) if MADE in step.inputs]
        object.__setattr__(self, "first_operand", min(operands, default=None))
        object.__setattr__(self, "last_use", max(uses, default=-1))


class Fused(Operator):
    """Base of the operators here: a producer's fields, and ``steps``, rows of (name, attributes, inputs)."""

    __slots__ = ("_parts",)
    of: ClassVar[type[Operator]]
    steps: tuple[Any, ...]
    _parts: Parts

    @property
    def parts(self) -> Parts:
        """Return the producer and the steps as operators, made once."""
        try:
            return self._parts
        except AttributeError:  # new, or out of a pickle, which has fields alone
            names = [f.name for f in dataclasses.fields(self.of)]  # type: ignore[arg-type]
            producer = self.of(**{name: getattr(self, name) for name in names})
            object.__setattr__(self, "_parts", Parts.of(producer, read_steps(self.steps)))
            return self._parts

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the producer's type, or that of a Cast that is the last step."""
        last = self.parts.steps[-1].operator if self.parts.steps else None
        return last.find_dtype([]) if isinstance(last, Cast) else self.parts.producer.find_dtype(self.split(dtypes))

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Infer one operator after the other.

        Raises:
            InputError: As they do.
        """
        if not self.parts.steps:
            raise InputError(f"{self.name} expects steps, got none.")
        if any(isinstance(step.operator, Cast) for step in self.parts.steps[:-1]):
            raise InputError(f"{self.name} expects a Cast as its last step alone, got one before others.")
        made = value = self._infer_seen(inputs)
        for step in self.parts.steps:
            (value,) = step.operator.infer(*step.pick(value, made, inputs, TensorSpec.of))
        return (value,)

    def _infer_seen(self, inputs: Sequence[TensorSpec | None]) -> TensorSpec:
        """Return the spec that steps see of what the producer makes."""
        made = self.parts.producer.infer(*self.split(inputs))[0]
        view = self.parts.view
        return made if view is None else view.operator.infer(*view.pick(made, made, inputs, TensorSpec.of))[0]

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int | None:
        """Count what the producer does, and an operation of each step for each element."""
        made = self.parts.producer.count_flops(self.split(inputs), outputs)
        return None if made is None else made + len(self.parts.steps) * count_elements(outputs, 0)

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
        """Compute one after the other, in the memory of one result where shapes stay."""
        parts, wanted = self.parts, out[0] if out else None
        keeps_type = not isinstance(parts.steps[-1].operator, Cast)
        shape, stays = ((), True) if parts.first_operand is None else self._find_shapes(inputs)
        target = (wanted,) if stays and keeps_type and wanted is not None else None
        if target is not None and parts.view is not None:
            target = (target[0].reshape(shape),) if target[0].flags.c_contiguous else None
        made = parts.producer.compute(*self.split(inputs), out=target)[0]
        assert made is not None
        if parts.view is not None:
            made = parts.view.operator.compute(*parts.view.pick(made, made, inputs, np.asarray))[0]
            assert made is not None
        value: Array = made
        last = len(parts.steps) - 1
        for place, step in enumerate(parts.steps):
            if place == last and wanted is not None:
                target = (wanted,)
            elif place == last and not keeps_type:
                target = None
            else:
                target = (value,) if stays and (value is not made or place >= parts.last_use) else None
            result = step.operator.compute(*step.pick(value, made, inputs, np.asarray), out=target)[0]
            assert result is not None
            value = result
        return (value,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the producer's kernel with the steps; where that can't be, the steps behind it."""
        (y,) = outputs
        if y is None:
            return
        producer, steps, taken = self.parts.producer, self.parts.steps, self.split(inputs)
        made = producer.infer(*(None if slot is None else slot.spec for slot in taken))[0]
        seen = self._infer_seen([None if slot is None else slot.spec for slot in inputs])
        view, is_cast = self.parts.view, made.dtype != y.dtype
        is_same = seen.shape == y.shape and (view is None or y.is_contiguous)
        if isinstance(steps[-1].operator, Cast):  # what is stored as, or nothing where types are one
            steps = steps[:-1]
        result = y
        if is_cast or not is_same:
            result = emit.temp(seen.shape, made.dtype)
            if is_same and not y.is_contiguous:  # channels last
                result = Slot(result.buffer, result.offset_bytes, result.spec, y.strides)
        epilogue = None
        if is_same and not emit.target.has_textures:
            epilogue = make_epilogue(steps, inputs, result)
        if not emit.choose(epilogue is not None):
            epilogue = None
        needs_scratch = emit.target.has_textures or self.parts.last_use >= 0
        stored = y if is_cast else None
        finishing = FinishingEmitter(
            emit,
            result,
            epilogue,
            needs_scratch=needs_scratch,
            stored=stored,
            functors=name_functors(steps, inputs),
        )
        assert producer.lower is not None
        producer.lower(finishing, taken, (result if view is None else _view(result, made.shape),))
        if finishing.unfinished is not None:
            unfinished = finishing.unfinished
            self._lower_apart(emit, unfinished if view is None else _view(unfinished, seen.shape), inputs, y)
        else:
            assert finishing.is_finished or finishing.is_stored, f"{producer} wrote its result unseen"
            if is_cast and not finishing.is_stored:
                convert_commands(emit, y, result)

    def without_last_step(self) -> Operator:
        """Return the operator that ends one step before; the producer where there is no other step."""
        if len(self.steps) == 1:
            return self.parts.producer
        return dataclasses.replace(self, steps=self.steps[:-1])  # type: ignore[type-var]

    def split(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the inputs of the producer: those before the first operand."""
        return tuple(inputs[: self.parts.first_operand])

    def _find_shapes(self, inputs: Sequence[Array | None]) -> tuple[tuple[int, ...], bool]:
        """Return the shape of what the producer makes, and whether no operand broadcasts what steps see of it."""
        key = tuple([None if array is None else array.shape for array in inputs])
        known = self.parts.shapes
        if key not in known:
            if len(known) > _SHAPES_KEPT:
                known.clear()
            view = self.parts.view
            read = None if view is None else view.inputs[1]  # the shape alone is content that others follow from
            specs = [
                None
                if array is None
                else TensorSpec.of(array)
                if place == read
                else TensorSpec(array.shape, array.dtype)
                for place, array in enumerate(inputs)
            ]
            made = self.parts.producer.infer(*self.split(specs))[0]
            known[key] = (made.shape, self.infer(*specs)[0].shape == self._infer_seen(specs).shape)
        return known[key]

    def _lower_apart(self, emit: Emitter, made: Slot, inputs: Slots, y: Slot) -> None:
        """Launch each step by itself."""
        value, steps = made, self.parts.steps
        for place, step in enumerate(steps):
            given = step.pick(value, made, inputs, emit.constant)
            (spec,) = step.operator.infer(*(None if slot is None else slot.spec for slot in given))
            works_in_place = value is y and place < len(steps) - 1
            value = y if place == len(steps) - 1 or works_in_place else emit.temp(spec.shape, spec.dtype)
            lower = step.operator.lower
            assert lower is not None
            # Through an emitter that ignores in-place requests and adds no steps.
            lower(StepEmitter(emit, value), given, (value,))


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
    namespace = {
        "__doc__": f"{producer.__name__} with an epilogue; see `gpuexec.ops.elementwise.fused`.",
        "__module__": __name__,
        "of": producer,
        "tolerance": producer.tolerance,
        "uses_all_cores": producer.uses_all_cores,
        "keeps_dtype": False,  # a Cast may be the last step
        "has_blits": producer.has_blits,
        "format_use": producer.format_use,
        "padded_factors": producer.padded_factors,
        "not_images": producer.not_images,
    }
    name = fused_name(producer.name).rpartition(".")[2]
    made = dataclasses.make_dataclass(name, fields, bases=(Fused,), namespace=namespace, frozen=True, slots=True)
    globals()[name] = operator(name, FUSED_DOMAIN)(made)


for _producer in PRODUCERS.values():
    _make(_producer)
