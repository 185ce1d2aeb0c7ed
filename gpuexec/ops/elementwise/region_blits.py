"""Regions on a device with textures: a blit for each result, by generated text.

A blit writes one tensor, so each of several results is computed by itself, from the same inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import broadcast_strides
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import dtype_row
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ops.elementwise.region_steps import StepForms, StepRow
from gpuexec.ops.elementwise.region_text import CodeRow, name_text, write_compute, write_steps
from gpuexec.ops.lib.broadcast import THREADS
from gpuexec.ops.lib.strided import join

SOURCE = "pixel/flat.cu"
_TEXEL_BYTES = 16
# Element types that textures are read and written as, in C++; others are computed on the host.
_DRAWN = ("float", "half", "i32", "i64", "u8", "u16", "u32", "u64", "bool")


def can_draw(slots: Sequence[Slot]) -> bool:
    """Return whether textures hold the types of inputs and results."""
    return all(dtype_row(slot.dtype).cuda in _DRAWN for slot in slots)


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
        texels = -(-y.spec.nbytes // _TEXEL_BYTES) + 1  # it may begin within one
        arguments: list[Argument] = [y, walk.pack(), int64(walk.count), numbers.pack(), *used]
        emit.launch(kernel, (-(-texels // THREADS), 1, 1), (THREADS, 1, 1), arguments, writes=[0])


@memoize(1024)
def _write_blit(
    rows: tuple[CodeRow, ...], counts: tuple[int, int, int], inputs: tuple[str, ...], step: int, made: str
) -> Kernel:
    """Return the kernel that makes the result of a step."""
    textures = "".join(f", const Texture<{cuda}>& in{k}" for k, cuda in enumerate(inputs))
    elements = "".join(f", in{k}[at[{k}]]" for k in range(len(inputs)))
    lines = [
        f"// {', '.join(row.name for row in rows)}.",
        "struct @ {",
        f"  typedef Strided<kMaxRank, {len(inputs) + 1}> Walk;",
        f"  typedef RegionNumbers<{', '.join(map(str, counts))}> Numbers;",
        "",
        *write_compute(inputs, rows, [(f"v{step}", made)]),
        "",
        f"  static __device__ {made} find(const Numbers& numbers, const i64* at{textures}) {{",
        f"    {made} made;",
        f"    compute(numbers{elements}, made);",
        "    return made;",
        "  }",
        "};",
    ]
    name, text = name_text("Drawn", "\n".join(lines) + "\n")
    return Kernel(SOURCE, f"draw_flat<{', '.join([name, made, *inputs])}>", text)
