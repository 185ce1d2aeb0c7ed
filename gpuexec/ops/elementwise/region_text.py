"""Text of regions: the C++ of steps on one element, as kernels of regions and epilogues of other kernels share it.

It is generated for steps and types; attributes and constants of the model are arguments, so layers that differ by them
alone share a kernel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.spec import dtype_row
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ops.elementwise.region_steps import StepForms, StepRow, read_number, read_steps, step_of

# How each step begins its line; see `count_steps`.
STEP = "= round_to<"


@dataclass(frozen=True, slots=True)
class CodeRow:
    """A step: the operator, the C++ expression of its result, and its element type."""

    name: str
    code: str
    cuda: str


@dataclass(frozen=True, slots=True)
class RegionNumbers:
    """Numbers of a launch in the order that the text counts them in: attributes, and constants of the model."""

    floats: list[float] = field(default_factory=list)
    doubles: list[float] = field(default_factory=list)
    integers: list[int] = field(default_factory=list)

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many are floats, doubles and integers."""
        return len(self.floats), len(self.doubles), len(self.integers)

    def add_float(self, number: float) -> str:
        """Add a number that float holds; return its name in the text."""
        self.floats.append(number)
        return f"numbers.floats[{len(self.floats) - 1}]"

    def add_double(self, number: float) -> str:
        """Add a number as a double; return its name in the text."""
        self.doubles.append(number)
        return f"numbers.doubles[{len(self.doubles) - 1}]"

    def add(self, text: str) -> str:
        """Add a number as `write_number` writes it; return the C++ expression of its value."""
        array = read_number(text)
        if array.dtype == np.float64:
            return self.add_double(float(array))
        if dtype_row(array.dtype).is_float:
            return self.add_float(float(array))
        self.integers.append(int(array))
        return f"{dtype_row(array.dtype).cuda}(numbers.integers[{len(self.integers) - 1}])"

    def pack(self) -> bytes:
        """Return the bytes of ``RegionNumbers`` of ``region.cuh``."""
        floats, doubles, integers = self.floats or [0.0], self.doubles or [0.0], self.integers or [0]
        packed = pack_struct(
            f"<{len(doubles)}d{len(integers)}Q", *doubles, *[each & (1 << 64) - 1 for each in integers]
        )
        return packed + pack_struct(f"<{len(floats)}f{4 * (len(floats) % 2)}x", *floats)


@memoize(4096)
def write_steps(
    rows: tuple[StepRow, ...], forms: StepForms, is_given: tuple[bool, ...]
) -> tuple[tuple[CodeRow, ...], RegionNumbers]:
    """Return the code of steps over ``x0``, ``x1`` for inputs and ``v0``, ``v1`` for results, and their numbers.

    Args:
        rows: The steps.
        forms: What they make of their inputs.
        is_given: Of each input, whether there is one; those that are there are counted.
    """
    places = {position: place for place, position in enumerate(p for p, given in enumerate(is_given) if given)}
    numbers = RegionNumbers()
    code = []
    assert forms.pointwise is not None
    for step, form, (name, _, _) in zip(read_steps(rows), forms.pointwise, rows, strict=True):
        names = []
        for given in step.inputs:
            if given is None:
                names.append("")
            elif isinstance(given, str):
                names.append(numbers.add(given))
            else:
                names.append(f"x{places[given]}" if given >= 0 else f"v{step_of(given)}")
        attributes = {f"n{place}": numbers.add_float(number) for place, number in enumerate(form.numbers)}
        code.append(CodeRow(name, form.code.format(*names, **attributes), dtype_row(form.dtype).cuda))
    return tuple(code), numbers


def write_compute(inputs: Sequence[str], rows: Sequence[CodeRow], results: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines of the function that computes the results of one element.

    Args:
        inputs: Their element types.
        rows: The steps.
        results: The name of each in the steps, and its element type.
    """
    parameters = [f"{cuda} element{k}" for k, cuda in enumerate(inputs)]
    parameters += [f"{cuda}& result{k}" for k, (_, cuda) in enumerate(results)]
    lines = [f"  static __device__ void compute(const Numbers& numbers, {', '.join(parameters)}) {{"]
    lines += [f"    const auto x{k} = widen(element{k});" for k in range(len(inputs))]
    lines += [f"    const auto v{k} {STEP}{row.cuda}>({row.code});  // {row.name}" for k, row in enumerate(rows)]
    lines += [f"    result{k} = cast<{cuda}>({name});" for k, (name, cuda) in enumerate(results)]
    return [*lines, "  }"]


def name_text(kind: str, body: str) -> tuple[str, str]:
    """Return the name of a type, and its text, in which ``@`` stood for the name.

    Args:
        kind: What the name begins with.
        body: The text.
    """
    name = f"{kind}_{hashlib.sha256(body.encode()).hexdigest()[:16]}"
    return name, body.replace("@", name)


def count_steps(text: str) -> int:
    """Return how many steps a generated text has."""
    return text.count(STEP)
