"""Flat regions on a device with textures: a blit for each result, by generated text.

A blit writes one tensor, so each of several results is computed by itself. With index maps, a blit finds the
coordinates of each element in every space (`region_spaces`) as the kernel of `flat_maps` does, and fetches inputs where
they lie by them; its spaces are those of its own result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import broadcast_strides, ceil_div
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import dtype_row
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ops.elementwise.flat_maps import MapsWriter, SpaceWalk
from gpuexec.ops.elementwise.region_spaces import Spaces
from gpuexec.ops.elementwise.region_steps import StepForms, StepRow
from gpuexec.ops.elementwise.region_text import CodeRow, name_text, write_compute, write_steps
from gpuexec.ops.lib.broadcast import THREADS
from gpuexec.ops.lib.strided import join

SOURCE = "pixel/flat.cu"
DRAWN = "Drawn"  # what the names of types begin with
TEXEL_BYTES = 16
# Element types that textures are read and written as, in C++; others are computed on the host.
_DRAWN = ("float", "half", "i32", "i64", "u8", "u16", "u32", "u64", "bool")


def can_draw(slots: Sequence[Slot]) -> bool:
    """Return whether blits of regions read and write the types of inputs and results."""
    return not list_undrawn([slot.dtype for slot in slots])


def list_undrawn(dtypes: Iterable[np.dtype[Any]]) -> list[str]:
    """Return the names of the types that no blit of a region reads or writes."""
    rows = dict.fromkeys(map(dtype_row, dtypes))
    return [row.name for row in rows if row.cuda not in _DRAWN]


def launch_blit(emit: Emitter, kernel: Kernel, y: Slot, arguments: Sequence[Argument]) -> None:
    """Launch a blit that writes its first argument: a thread for each texel of that, wherever in one it begins."""
    texels = ceil_div(y.spec.nbytes, TEXEL_BYTES) + 1
    emit.launch(kernel, (ceil_div(texels, THREADS), 1, 1), (THREADS, 1, 1), arguments, writes=[0])


def draw_region(
    emit: Emitter,
    rows: tuple[StepRow, ...],
    forms: StepForms,
    results: Sequence[int],
    inputs: Sequence[Slot | None],
    outputs: Sequence[Slot],
) -> None:
    """Launch the blits of a region whose results have one shape.

    Args:
        emit: Emitter of the launches.
        rows: The steps.
        forms: What they make of these inputs.
        results: The step that makes each output.
        inputs: The slots that steps read; None: absent.
        outputs: The slots of the results, each dense in some order of its axes.
    """
    used = [slot for slot in inputs if slot is not None]
    code, numbers = write_steps(rows, forms, tuple([slot is not None for slot in inputs]))
    types = tuple([dtype_row(slot.dtype).cuda for slot in used])
    for step, y in zip(results, outputs, strict=True):
        strides = [
            (0,) * y.spec.rank if slot.spec.size == 1 else broadcast_strides(slot.shape, slot.strides, y.shape)
            for slot in used
        ]
        walk = join(y.shape, [*strides, y.strides])
        kernel = _write_blit(code, numbers.counts, types, step, dtype_row(y.dtype).cuda)
        launch_blit(emit, kernel, y, [y, walk.pack(), int64(walk.count), numbers.pack(), *used])


def draw_mapped(
    emit: Emitter,
    rows: tuple[StepRow, ...],
    forms: StepForms,
    results: Sequence[int],
    inputs: Sequence[Slot | None],
    outputs: Sequence[Slot],
) -> None:
    """Launch the blits of a region with index maps whose results have one shape.

    Args:
        emit: Emitter of the launches.
        rows: The steps.
        forms: What they make of these inputs.
        results: The step that makes each output.
        inputs: The slots that steps read; None: absent.
        outputs: The slots of the results, each dense in some order of its axes.

    Raises:
        PlanError: An input does not lie as it does at the upper end of the size class.
    """
    for step, y in zip(results, outputs, strict=True):
        spaces, (name,) = Spaces.of(rows, forms, [step], inputs, emit.choose)
        given = {place.source: inputs[place.source] for place in spaces.places}
        slots = {position: slot for position, slot in sorted(given.items()) if slot is not None}
        walk = SpaceWalk.of(emit, spaces, slots, y)
        writer = _DrawnMapsWriter(walk, slots, width=1)
        type_name, text = name_text(DRAWN, writer.write_find(rows, forms, name, y))
        types = [dtype_row(slot.dtype).cuda for slot in (y, *slots.values())]
        kernel = Kernel(SOURCE, f"draw_flat<{', '.join([type_name, *types])}>", text)
        packed = walk.pack(1, writer.places.numbers)
        arguments: list[Argument] = [y, packed, int64(y.spec.size), writer.numbers.pack(), *slots.values()]
        launch_blit(emit, kernel, y, arguments)


@memoize(1024)
def _write_blit(
    rows: tuple[CodeRow, ...], counts: tuple[int, int, int], inputs: tuple[str, ...], step: int, made: str
) -> Kernel:
    """Return the kernel that makes the result of a step."""
    textures = "".join(f", const Texture<{cuda}>& in{k}" for k, cuda in enumerate(inputs))
    elements = "".join(f", in{k}[place.at[{k}]]" for k in range(len(inputs)))
    lines = [
        f"// {', '.join(row.name for row in rows)}.",
        "struct @ {",
        f"  typedef Strided<kMaxRank, {len(inputs) + 1}> Walk;",
        f"  typedef RegionNumbers<{', '.join(map(str, counts))}> Numbers;",
        "",
        *write_compute(inputs, rows, [(f"v{step}", made)]),
        "",
        f"  static __device__ {made} find(const Walk& walk, const Numbers& numbers, i64 element{textures}) {{",
        f"    const Place<1, {len(inputs) + 1}> place(walk, element, false);",
        f"    {made} made;",
        f"    compute(numbers{elements}, made);",
        "    return made;",
        "  }",
        "};",
    ]
    name, text = name_text(DRAWN, "\n".join(lines) + "\n")
    return Kernel(SOURCE, f"draw_flat<{', '.join([name, made, *inputs])}>", text)


class _DrawnMapsWriter(MapsWriter):
    """The text of a blit, whose unit is one element."""

    unit = "DrawnUnit<{offset}>"
    made_of = (", i64 element", "element")
    lanes = ""

    def write_find(self, rows: tuple[StepRow, ...], forms: StepForms, name: str, output: Slot) -> str:
        """Return the text, with ``@`` for the name of the type.

        Args:
            rows: The steps.
            forms: What they make of the inputs.
            name: Of the result.
            output: Where it goes.
        """
        walk, cuda = self._walk, dtype_row(output.dtype).cuda
        unit, compute = self._write_unit(), self._write_compute(rows, forms, [name], [cuda])
        textures = [f"const Texture<{self._find_type(position)}>& in{position}" for position in self._slots]
        parameters = ["const Walk& walk, const Numbers& numbers, i64 element", *textures]
        elements = [self._load(k, place) if self._walk.is_vector(k) else f"shared{k}" for k, place in self._list_read()]
        lines = [
            f"// {', '.join(name for name, _, _ in rows)}.",
            "struct @ {",
            f"  typedef FlatWalk<{self._offset}, {max(0, len(walk.extents) - 1)}, {len(self.places.numbers)}> Walk;",
            f"  typedef RegionNumbers<{', '.join(map(str, self.numbers.counts))}> Numbers;",
            "",
            *unit,
            "",
            *compute,
            "",
            f"  static __device__ {cuda} find({', '.join(parameters)}) {{",
            "    const Unit unit(walk, element);",
            *self._write_loads(),
            f"    {cuda} made;",
            f"    compute({', '.join(['unit', 'numbers', *elements, 'made'])});",
            "    return made;",
            "  }",
            "};",
        ]
        return "\n".join(lines) + "\n"
