"""Blits as a GPU gets them: they read by textures, write by surfaces, and share nothing."""

from __future__ import annotations

import re

import pytest

import gpuexec.ops  # noqa: F401  (fills the table)
from gpuexec.command import Kernel
from gpuexec.instances import kernel_table
from gpuexec.ops.pixel import find_blits
from gpuexec.runtime.kernel_source import flatten, kernels_dir
from gpuexec.runtime.nvrtc import compile_cubin

BLITS = {
    (source, expression.partition("<")[0]): expression
    for source, expressions in kernel_table().items()
    if source.startswith("pixel/")
    for expression in sorted(expressions, reverse=True)
}
# What a function of CUDA's library reads of its own.
_TABLES = re.compile(r"ld\.(global|const)\S* .*__cudart")


@pytest.mark.parametrize(("source", "name"), sorted(BLITS))
def test_blit_touches_memory_by_textures_and_surfaces_alone(source: str, name: str) -> None:
    text, expression = flatten(kernels_dir() / source), BLITS[source, name]
    compiled = compile_cubin(text, [expression], "compute_75", source=source)
    # A kernel that is no template is compiled along with whatever is asked of its file.
    entries = re.split(r"^(?=\.(?:visible|weak)? ?\.entry )", compiled.image.decode(), flags=re.MULTILINE)
    (ptx,) = (each for each in entries if f".entry {compiled.kernels[0].lowered_name}(" in each)
    lines = [line.strip() for line in ptx.splitlines() if not _TABLES.search(line)]
    assert any(line.startswith("sust.b.2d.v4.b32") for line in lines)
    forbidden = [line for line in lines if re.match(r"(@\S+ )?(st|ld)\.(global|shared)|(@\S+ )?(atom|red|bar)\.", line)]
    assert forbidden == [] and ".shared" not in ptx


def test_rows_name_kernels_that_are_listed() -> None:
    table = kernel_table()
    drawn = {
        (source, expression.partition("<")[0])
        for source, expressions in table.items()
        for expression in expressions
        if find_blits(Kernel(source, expression))
    }
    from gpuexec.ops.pixel import _BLITS

    assert {(source, name) for source, names in _BLITS.items() for name in names} == drawn
    for source, name in drawn:
        for expression in table[source]:
            for blit in find_blits(Kernel(source, expression)).values():
                assert blit.expression in table[blit.source], (name, blit)
