"""Tiled regions: operands that lie across, bit-equal to operators one after the other, and by whole sectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.kernels import nvrtc
from gpuexec.devices.kernels.kernel_source import find_source, read_text
from gpuexec.devices.kernels.machine_code import read_figures
from gpuexec.errors import PlanError
from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.operator import build
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ops.elementwise import tiled
from gpuexec.ops.elementwise.region import Region
from gpuexec.ops.lib.across import read_lanes
from tests.devices.cuda_wheels import needs_nvdisasm
from tests.ops.direct import DirectEmitter, lower_and_run
from tests.ops.harness import Array, Case, run_case
from tests.ops.step_by_step import Steps
from tests.ops.test_region import AFFINE, DOUBLE, FLOAT, HALF, INT, LONG, apply_steps, numbers, region
from tests.ops.tolerance import to_bits

SUM: Steps = (("Add", (), (0, 1)), ("Relu", (), (-1,)))


@pytest.fixture
def tiles_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small operands that lie across tiled as well, by squares as large as can be."""
    for name in ("MIN_EXCESS", "MIN_TILED_ELEMENTS", "_FILLING_SQUARES"):
        monkeypatch.setattr(tiled, name, 0)


def turned(dtype: Any, *shape: int) -> Array:
    """Return random elements with the last two axes exchanged in memory."""
    *lead, rows, columns = shape
    return numbers(dtype, *lead, columns, rows).swapaxes(-1, -2)


def add(label: str, *inputs: Array) -> Case:
    """Return a case of the sum of all inputs, by one region."""
    steps: Steps = (("Neg", (), (0,)), *(("Add", (), (-k, k)) for k in range(1, len(inputs))))
    return region(label, inputs, steps)


CASES = [
    # Squares.
    *(
        add(f"squares_{np.dtype(dtype).name}", turned(dtype, 64, 64), numbers(dtype, 64, 64))
        for dtype in (FLOAT, HALF, BFLOAT16, DOUBLE, INT, LONG, np.dtype(np.int8))
    ),
    region(
        "flags", [turned(INT, 64, 64) > 0, numbers(HALF, 64, 64), turned(FLOAT, 64, 64)],
        (("Cast", (("to", 1),), (1,)), ("Where", (), (0, -1, 2))),
    ),
    add("rows_of_squares", turned(FLOAT, 16, 160), numbers(FLOAT, 16, 160)),
    add("columns_of_squares", turned(FLOAT, 160, 8), numbers(FLOAT, 160, 8)),
    add("batches", turned(FLOAT, 2, 3, 32, 64), numbers(FLOAT, 2, 3, 32, 64)),
    add("between", numbers(FLOAT, 2, 32, 3, 16).transpose(0, 3, 2, 1), numbers(FLOAT, 2, 16, 3, 32)),
    add("channels", numbers(HALF, 2, 32, 4, 12).transpose(0, 2, 3, 1), numbers(HALF, 2, 4, 12, 32), numbers(HALF, 32)),
    add("all_across", turned(FLOAT, 32, 64), turned(FLOAT, 32, 64), turned(FLOAT, 32, 64)),
    add("many", *(turned(FLOAT, 16, 32) for _ in range(11))),
    add("stretched", turned(FLOAT, 64, 64), numbers(FLOAT, 64), numbers(FLOAT, 64, 1), numbers(FLOAT, 1, 1)),
    add("stretched_across", turned(FLOAT, 1, 64, 64), numbers(FLOAT, 3, 1, 1), numbers(FLOAT, 3, 64, 64)),
    # Along different axes: the one with most bytes decides.
    add("axes", numbers(FLOAT, 16, 32, 64).transpose(2, 1, 0), numbers(FLOAT, 32, 64, 16).transpose(1, 0, 2),
        numbers(FLOAT, 32, 16, 64).transpose(2, 0, 1)),
    region("results", [turned(FLOAT, 32, 64), numbers(FLOAT, 32, 64)],
           (("Add", (), (0, 1)), ("Cast", (("to", 10),), (-1,)), ("Exp", (), (-1,))), (0, 1, 2)),
    # Tiles in shared memory.
    *(add(f"staged_{n}", turned(FLOAT, n, n), numbers(FLOAT, n, n)) for n in (31, 32, 33)),
    *(
        add(f"staged_{np.dtype(dtype).name}", turned(dtype, 37, 41), numbers(dtype, 37, 41), numbers(dtype, 41))
        for dtype in (HALF, BFLOAT16, DOUBLE, LONG, np.dtype(np.int8))
    ),
    region("staged_types", [turned(INT, 35, 47) > 0, turned(HALF, 35, 47), numbers(DOUBLE, 35, 47)],
           (("Cast", (("to", 11),), (1,)), ("Where", (), (0, -1, 2)))),
    add("few_columns", turned(FLOAT, 300, 3), numbers(FLOAT, 300, 3)),
    add("few_columns_of_halves", turned(HALF, 300, 3), numbers(HALF, 300, 3)),
    add("few_rows", turned(HALF, 3, 300), numbers(HALF, 3, 300)),
    add("reversed", turned(FLOAT, 32, 64)[::-1, ::-1], numbers(FLOAT, 32, 64)),
    add("gaps", numbers(FLOAT, 70, 40)[3:, 2:].T, numbers(FLOAT, 38, 80)[:, 5:72]),
    add("odd_rows", numbers(FLOAT, 64, 65)[:, :64].T, numbers(FLOAT, 64, 64)),
    add("shifted", numbers(FLOAT, 64, 68)[:, 1:65].T, numbers(FLOAT, 64, 64)),
]  # fmt: skip


@pytest.mark.usefixtures("tiles_all")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_tiled(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.usefixtures("tiles_all")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_kernel_of_a_tiled_region_gives_the_bits_of_those_of_its_steps(case: Case) -> None:
    steps: Steps = case.attributes["steps"]
    made: list[Array] = []
    for name, attributes, given in steps:
        taken = [case.inputs[g] if isinstance(g, int) and g >= 0 else made[-1 - g] for g in given]  # type: ignore[operator]
        made += lower_and_run(build(name, dict(attributes)), taken)
    emit, outputs = lower(Region(steps, case.attributes["results"]), case.inputs)
    assert [kernel.source for kernel, _ in emit.launches] == [tiled.SOURCE]
    for y, step in zip(outputs, case.attributes["results"], strict=True):
        np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(made[step]))


def lower(
    op: Region, inputs: Sequence[Array | None], choices: Sequence[int] | None = None
) -> tuple[DirectEmitter, tuple[Slot, ...]]:
    emit = DirectEmitter(choices)
    slots = tuple([None if x is None else emit.slot(x) for x in inputs])
    specs = op.infer(*[None if slot is None else slot.spec for slot in slots])
    outputs = tuple([emit.fresh(spec.shape, spec.dtype) for spec in specs])
    op.lower(emit, slots, outputs)
    return emit, outputs


def list_sizes() -> Iterator[tuple[int, int]]:
    for rows in (0, 1, 2, 31, 32, 33, 64, 97):
        for columns in (0, 1, 3, 31, 32, 33, 64, 128):
            yield rows, columns


@pytest.mark.usefixtures("tiles_all")
@pytest.mark.parametrize("dtype", [FLOAT, HALF, DOUBLE], ids=str)
def test_sizes_of_a_class_take_the_kernel_of_its_upper_end(dtype: Any) -> None:
    def make(rows: int, columns: int) -> list[Array]:
        return [turned(dtype, 2, rows, columns), numbers(dtype, 2, rows, columns), numbers(dtype, rows, 1)]

    op, end = Region(AFFINE, (2,)), make(97, 128)
    emit, _ = lower(op, end)
    choices, (kernel, _) = emit.choices, emit.launches[0]
    assert kernel.source == tiled.SOURCE
    lanes = set()
    for rows, columns in list_sizes():
        inputs = make(rows, columns)
        emit, (y,) = lower(op, inputs, choices)
        ((again, arguments),) = emit.launches
        assert again == kernel
        assert isinstance(arguments[0], bytes)
        lanes.add(read_lanes(arguments[0]))
        np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(apply_steps(AFFINE, inputs)[2]))
    assert lanes == {1, tiled.Tiling.unpack(max(choices), 3).width}
    with pytest.raises(PlanError, match="upper end"):
        lower(op, [turned(dtype, 2, 97, 128), numbers(dtype, 2, 97, 128), numbers(dtype, 97, 128)], choices)


@pytest.mark.parametrize(
    ("shape", "dtype", "source"),
    [
        ((32, 32), FLOAT, "flat.cu"),
        ((512, 512), FLOAT, "tiled.cu"),
        ((512, 512), DOUBLE, "tiled.cu"),
        ((4096, 16), FLOAT, "flat.cu"),  # a block finds in L1 what its 16 rows share
        ((1, 1 << 20), FLOAT, "flat.cu"),
        ((1 << 20, 1), FLOAT, "flat.cu"),
    ],
    ids=str,
)
def test_small_operands_stay_flat(shape: tuple[int, int], dtype: Any, source: str) -> None:
    emit, _ = lower(Region(SUM, (1,)), [turned(dtype, *shape), numbers(dtype, *shape)])
    assert [kernel.source for kernel, _ in emit.launches] == [source]


def plan_turned(dtype: Any, rows: int, columns: int) -> tuple[Kernel, tuple[int, ...], tuple[Any, ...]]:
    """Return the kernel, grid and arguments of a sum with a turned operand, none of which is there."""
    kept: list[Launch] = []

    class Planning(DirectEmitter):
        def launch(
            self, kernel: Kernel, grid: Any, block: Any, arguments: Any, writes: Any, *_: Any, **__: Any
        ) -> None:
            kept.append(Launch(kernel, grid, block, tuple(arguments), tuple(writes)))

    spec, strides = TensorSpec((rows, columns), np.dtype(dtype)), (1, rows)
    slots = (Slot(0, 0, spec, strides), Slot(1, 0, spec, (columns, 1)))
    Region(SUM, (1,)).lower(Planning(), slots, (Slot(2, 0, spec, (columns, 1)),))
    (launch,) = kept
    return launch.kernel, launch.grid, launch.arguments


def test_offsets_of_many_elements_have_64_bits() -> None:
    kernel, grid, arguments = plan_turned(FLOAT, 2**16, 2**16)
    assert "TileWalk<i64" in kernel.text and grid == (2**32 // 16 // 256, 1, 1)
    assert len(arguments[0]) == 40 + 2 * 8 + 12 + 4 + 2 * 2 * 8


@pytest.mark.usefixtures("tiles_all")
def test_wide_offsets_lead_to_the_same_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuexec.ops.elementwise import flat

    monkeypatch.setattr(flat, "NARROW", 1)
    for shape in ((2, 3, 64, 32), (2, 3, 35, 33)):
        inputs = [turned(FLOAT, *shape), numbers(FLOAT, *shape)]
        emit, (y,) = lower(Region(SUM, (1,)), inputs)
        assert "TileWalk<i64" in emit.launches[0][0].text
        np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(apply_steps(SUM, inputs)[1]))


@pytest.mark.usefixtures("tiles_all")
def test_results_may_take_the_bytes_of_inputs_that_lie_as_they_do() -> None:
    for rows, columns in ((64, 64), (35, 37)):
        inputs = [turned(FLOAT, rows, columns), numbers(FLOAT, rows, columns)]
        emit = DirectEmitter()
        x, y = (emit.slot(each) for each in inputs)
        Region(SUM, (1,)).lower(emit, (x, y), (Slot(y.buffer, 0, y.spec, y.strides),))
        np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(apply_steps(SUM, inputs)[1]))


@needs_nvdisasm
@pytest.mark.parametrize(("dtype", "registers"), [(FLOAT, 64), (HALF, 128), (DOUBLE, 64)], ids=str)
def test_squares_are_read_and_written_by_vectors(dtype: Any, registers: int, tmp_path: Path) -> None:
    kernel, _, _ = plan_turned(dtype, 8192, 8192)
    for architecture in ("sm_80", "sm_90", "sm_120"):
        text = read_text(find_source(kernel.source), [kernel.text])
        cubin = nvrtc.compile_cubin(text, [kernel.expression], architecture)
        (made,) = cubin.kernels
        figures = read_figures(cubin.image, tmp_path)[made.lowered_name]
        assert figures.store_bits == 128 and not figures.local_accesses and not made.spill_bytes, architecture
        assert made.registers <= registers, architecture
