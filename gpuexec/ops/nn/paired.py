"""Operators that are two: a convolution or the like, and an operator over what it makes, as one node of a graph.

Both keep their epilogues; `infer` and `compute` are one after the other. They are lowered one after the other too, and
where one launch can take the place of those that came of it, that is offered (`Emitter.join`), to the same bits. No
file has such operators; passes make them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.geometry import channels_last_strides
from gpuexec.ir.operator import Array, Emitter, FormatUse, Join, Operator, Out, PreparedCalls, Slots, Tolerance
from gpuexec.ir.prepared_calls import has_scratch, overlay_scratch, prepare_calls, view_bytes
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.work import LAUNCH_NBYTES
from gpuexec.ops.elementwise.region_steps import RegionStep, StepRow, made_by, read_steps

_PARTS = 2  # operators that are one here


@dataclass(frozen=True, slots=True)
class PairedOperators(Operator):
    """An operator with a weight, and another one over what it makes, each perhaps with an epilogue.

    Inputs are those of the first, then those that the second has beside; outputs are those of the second.

    ``steps`` are two rows of (name, attributes, inputs), see `gpuexec.ops.elementwise.region_steps`.
    """

    steps: tuple  # type: ignore[type-arg]
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores = True
    has_blits = True
    format_use = FormatUse.FOLLOWS

    @property
    def padded_factors(self) -> tuple[int, ...]:  # type: ignore[override]
        """Positions of the inputs that are padded factors of either."""
        return self._place(lambda operator: operator.padded_factors)

    @property
    def not_images(self) -> tuple[int, ...]:  # type: ignore[override]
        """Positions of the inputs that are no images to either."""
        return self._place(lambda operator: operator.not_images)

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Infer one operator after the other.

        Raises:
            InputError: As they do, or these are not two operators.
        """
        _, second = self._read()
        return second.operator.infer(*second.pick(inputs, [self._infer_made(inputs)], TensorSpec.of))

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the type that the second operator gives."""
        first, second = self._read()
        made = first.operator.find_dtype(first.pick(dtypes, (), lambda array: array.dtype))
        return second.operator.find_dtype(second.pick(dtypes, [made], lambda array: array.dtype))

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int | None:
        """Add up those of both."""
        first, second = self._read()
        made = self._infer_made(inputs)
        own = first.operator.count_flops(first.pick(inputs, (), TensorSpec.of), [made])
        behind = second.operator.count_flops(second.pick(inputs, [made], TensorSpec.of), outputs)
        return None if own is None or behind is None else own + behind

    def reads_any_format(self, position: int, inputs: Sequence[TensorSpec | None]) -> bool:
        """Return whether the first operator does."""
        first, own = self._find_own(position)
        return own is not None and first.operator.reads_any_format(own, first.pick(inputs, (), TensorSpec.of))

    def rounds_to(self, position: int, inputs: Sequence[TensorSpec | None], target: Target) -> str:
        """Return what the first operator rounds its own inputs to."""
        first, own = self._find_own(position)
        return "" if own is None else first.operator.rounds_to(own, first.pick(inputs, (), TensorSpec.of), target)

    def count_format_gain(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], target: Target
    ) -> int:
        """Add up what both gain, and what a launch of both saves on tensor cores: to move what the first one makes."""
        first, second = self._read()
        made = self._infer_made(inputs)
        own = first.operator.count_format_gain(first.pick(inputs, (), TensorSpec.of), [made], target)
        behind = second.operator.count_format_gain(second.pick(inputs, [made], TensorSpec.of), outputs, target)
        return own + behind + (2 * made.nbytes + LAUNCH_NBYTES if behind else 0)

    def writes_windows(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], target: Target
    ) -> bool:
        """Return whether the second operator does."""
        second = self._read()[1]
        return second.operator.writes_windows(
            second.pick(inputs, [self._infer_made(inputs)], TensorSpec.of), outputs, target
        )

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array | None, ...]:
        """Compute one operator after the other."""
        first, second = self._read()
        made = first.operator.compute(*first.pick(inputs, (), np.asarray))
        return second.operator.compute(*second.pick(inputs, made, np.asarray), out=out)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what the first operator makes, and what both work in."""
        first, second = self._read()
        made = self._infer_made(inputs)
        made = TensorSpec(made.shape, made.dtype)
        own = first.operator.count_scratch(first.pick(inputs, (), TensorSpec.of), (made,))
        behind = second.operator.count_scratch(second.pick(inputs, [made], TensorSpec.of), outputs)
        return (made.nbytes, *overlay_scratch(own, behind))

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Prepare one operator after the other."""
        first, second = self._read()
        given = first.pick(inputs, (), np.asarray)
        specs = [None if x is None else TensorSpec(x.shape, x.dtype) for x in inputs]
        spec = first.operator.infer(*[None if x is None else TensorSpec.of(x) for x in given])[0]
        between = TensorSpec(spec.shape, spec.dtype)
        made_specs = [None if y is None else TensorSpec(y.shape, y.dtype) for y in out]
        count = len(first.operator.count_scratch(first.pick(specs, (), TensorSpec.of), (between,)))
        behind = len(second.operator.count_scratch(second.pick(specs, [between], TensorSpec.of), made_specs))
        if not has_scratch(scratch, (spec.nbytes,)) or not spec.size or len(scratch) <= max(count, behind):
            return None
        made = view_bytes(scratch[0], spec.shape, spec.dtype)
        known, known_behind = (
            [bool(each) for each in step.pick(constant, [False], lambda _: True)] for step in (first, second)
        )
        own = prepare_calls(first.operator, given, (made,), known, scratch[1 : 1 + count])
        operands = second.pick(inputs, [made], np.asarray)
        return [*own, *prepare_calls(second.operator, operands, out, known_behind, scratch[1 : 1 + behind])]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch both as one where that is predicted to be faster, else one after the other."""
        first, second = self._read()
        wanted = next((y for y in outputs if y is not None), None)
        if wanted is None or emit.leaves_to_host():
            return
        given = first.pick(inputs, (), emit.constant)
        (spec,) = first.operator.infer(*(None if slot is None else slot.spec for slot in given))
        made = emit.temp(spec.shape, spec.dtype)
        if not wanted.is_contiguous:
            made = replace(made, strides=channels_last_strides(spec.shape))

        def launch_apart() -> None:
            assert first.operator.lower is not None and second.operator.lower is not None
            first.operator.lower(emit, given, (made,))
            second.operator.lower(emit, second.pick(inputs, [made], emit.constant), outputs)

        join = self._prepare_join(emit, made)
        if join is None:
            launch_apart()
        else:
            emit.join(launch_apart, join)

    def _prepare_join(self, emit: Emitter, made: Slot) -> Join | None:
        """Return what joins the launches of both; None where it is known that nothing does.

        Args:
            emit: Emitter of what a launch of both needs beside.
            made: What the first operator makes.
        """
        raise NotImplementedError

    def without_roundings(self) -> Self:
        """Return the operator without roundings between the steps of epilogues."""
        rows = []
        for name, attributes, inputs in self.steps:
            has_epilogue = any(key == "steps" for key, _ in attributes)
            rows.append((name, (*attributes, ("rounds", False)) if has_epilogue else attributes, inputs))
        return type(self)(tuple(rows))

    def _place(self, find: Callable[[Operator], tuple[int, ...]]) -> tuple[int, ...]:
        """Return positions of both operators' inputs as positions of this one's."""
        places = [step.inputs[place] for step in self._read() for place in find(step.operator)]
        return tuple([place for place in places if isinstance(place, int) and place >= 0])

    def _find_own(self, position: int) -> tuple[RegionStep, int | None]:
        """Return the first operator, and the position of an input among its own; None where the second has it too."""
        first, second = self._read()
        is_own = first.inputs.count(position) == 1 and position not in second.inputs
        return first, first.inputs.index(position) if is_own else None

    def _infer_made(self, inputs: Sequence[TensorSpec | None]) -> TensorSpec:
        """Return the spec of what the first operator makes."""
        first, _ = self._read()
        return first.operator.infer(*first.pick(inputs, (), TensorSpec.of))[0]

    def _read(self) -> tuple[RegionStep, RegionStep]:
        steps = read_steps(self.steps)
        if len(steps) != _PARTS or made_by(0) not in steps[-1].inputs:
            raise InputError(f"{self.name} expects two operators, the second over what the first makes, got {steps}.")
        return steps[0], steps[1]


def list_rows(
    parts: Sequence[tuple[str, tuple[tuple[str, Any], ...]]], inputs: Sequence[Sequence[Any]], made: Any
) -> tuple[tuple[StepRow, ...], list[Any]]:
    """Return the rows of `PairedOperators` and its inputs.

    Args:
        parts: Name and attributes of both operators.
        inputs: Of both.
        made: What the second reads of the first.
    """
    own: list[Any] = []
    rows: list[StepRow] = []
    for (name, attributes), given in zip(parts, inputs, strict=True):
        places: list[int | None] = []
        for value in given:
            if value is None or (rows and value is made):
                places.append(None if value is None else made_by(0))
                continue
            if value not in own:
                own.append(value)
            places.append(own.index(value))
        rows.append((name, tuple(attributes), tuple(places)))
    return tuple(rows), own


def read_types(kernel: Kernel) -> tuple[str, list[str]]:
    """Return the name of a kernel and its template arguments."""
    name, _, types = kernel.expression.removesuffix(">").partition("<")
    return name, types.split(", ")


def guard_texts(texts: Mapping[str, str]) -> str:
    """Return the texts of types as they may stand several times in a file: kernels share types, but not texts."""
    return "".join([f"#ifndef HAS_{name}\n#define HAS_{name}\n{text}#endif\n" for name, text in texts.items() if name])
