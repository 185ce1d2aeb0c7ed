"""Blits as a GPU gets them: texture reads, surface writes, and no sharing."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

import gpuexec.ops  # noqa: F401  (fills the table)
from gpuexec.devices.kernels.kernel_source import find_source, flatten, read_text
from gpuexec.devices.kernels.nvrtc import compile_cubin
from gpuexec.ir.command import Kernel
from gpuexec.ir.instances import kernel_table
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.region import Region, RowRegion
from gpuexec.ops.lib.pixel import find_blits
from gpuexec.planner.template import plan_graph
from tests.devices.cuda_wheels import needs_cuda_wheels
from tests.ir.graph_builder import GraphBuilder
from tests.ops.step_by_step import Steps

BLITS = {
    (source, expression.partition("<")[0]): expression
    for source, expressions in kernel_table().items()
    if source.startswith("pixel/")
    for expression in sorted(expressions, reverse=True)
}
# Regions by the blits that they are, with the shapes of their inputs.
_ROWS: Steps = (("Add", (), (0, 1)), ("Softmax", (), (-1,)))
REGIONS: dict[str, tuple[Operator, list[tuple[int, ...]]]] = {
    "draw_flat": (
        Region((("Neg", (), (0,)), ("Concat", (("axis", 1),), (-1, 1)), ("Relu", (), (-2,))), (2,)),
        [(3, 4), (3, 5)],
    ),
    "draw_rows": (RowRegion(_ROWS, (1,)), [(3, 40), (40,)]),
    "draw_kept_values draw_rows": (RowRegion(_ROWS, (1,)), [(64, 300), (300,)]),
    "draw_row_values": (RowRegion((*_ROWS, ("ArgMax", (("axis", 1),), (-2,))), (2,)), [(3, 40), (40,)]),
}
# What a function of CUDA's library reads of its own: its tables, by name or by a register that has their address.
_TABLE = re.compile(r"ld\.(?:global|const)\S* .*\[(?:__cudart|(%rd\d+))")
_ADDRESS = re.compile(r"(?:mov|add|cvta)\S* (%rd\d+), (?:__cudart|(%rd\d+))")


@needs_cuda_wheels
@pytest.mark.parametrize(("source", "name"), sorted(BLITS))
def test_blit_touches_memory_by_textures_and_surfaces_alone(source: str, name: str) -> None:
    check_memory(Kernel(source, BLITS[source, name]))


@needs_cuda_wheels
@pytest.mark.parametrize("name", sorted(REGIONS))
def test_blits_of_regions_touch_memory_by_textures_and_surfaces_alone(name: str) -> None:
    op, shapes = REGIONS[name]
    specs = {f"x{number}": TensorSpec(shape, np.dtype(np.float32)) for number, shape in enumerate(shapes)}
    builder = GraphBuilder()
    made = builder.node(op, *[builder.input(label, *spec.shape) for label, spec in specs.items()])
    plan = plan_graph(builder.graph(made), specs, Target.named("pixel_75")).plan
    kernels = plan.kernels()
    assert [kernel.expression.partition("<")[0] for kernel in kernels] == name.split()
    for kernel in kernels:
        check_memory(kernel)


def check_memory(kernel: Kernel) -> None:
    """Check that a blit compiled for a GPU reads and writes by textures and surfaces, and shares nothing."""
    source, expression = kernel.source, kernel.expression
    text = read_text(find_source(source), [kernel.text]) if kernel.text else flatten(find_source(source))
    compiled = compile_cubin(text, [expression], "compute_75", source=source)
    # A kernel that is no template is compiled along with whatever is asked of its file.
    entries = re.split(r"^(?=\.(?:visible|weak)? ?\.entry )", compiled.image.decode(), flags=re.MULTILINE)
    (ptx,) = (each for each in entries if f".entry {compiled.kernels[0].lowered_name}(" in each)
    lines = leave_out_tables([" ".join(line.split()) for line in ptx.splitlines()])
    assert any(line.startswith("sust.b.2d.v4.b32") for line in lines)
    forbidden = [line for line in lines if re.match(r"(@\S+ )?(st|ld)\.(global|shared)|(@\S+ )?(atom|red|bar)\.", line)]
    assert forbidden == [] and ".shared" not in ptx


def leave_out_tables(lines: Sequence[str]) -> list[str]:
    """Return the lines without loads from tables of CUDA's library."""
    addresses, kept = set[str](), []
    for line in lines:
        made = _ADDRESS.match(line)
        if made and (made[2] is None or made[2] in addresses):
            addresses.add(made[1])
        read = _TABLE.match(line)
        if not read or (read[1] is not None and read[1] not in addresses):
            kept.append(line)
    return kept


def test_loads_from_tables_alone_are_left_out() -> None:
    lines = ["mov.u64 %rd1, __cudart_t;", "add.s64 %rd2, %rd1, %rd9;", "ld.global.nc.f64 %fd1, [%rd2+8];"]
    others = ["mov.u64 %rd3, mine;", "ld.global.f64 %fd2, [%rd3];", "ld.global.f64 %fd2, [%rd9];"]
    assert leave_out_tables([*lines, *others]) == [*lines[:2], *others]


def test_rows_name_kernels_that_are_listed() -> None:
    table = kernel_table()
    drawn = {
        (source, expression.partition("<")[0])
        for source, expressions in table.items()
        for expression in expressions
        if find_blits(Kernel(source, expression))
    }
    from gpuexec.ops.lib.pixel import _BLITS

    assert {(source, name) for source, names in _BLITS.items() for name in names} == drawn
    for source, name in drawn:
        for expression in table[source]:
            for blit in find_blits(Kernel(source, expression)).values():
                assert blit.expression in table[blit.source], (name, blit)
