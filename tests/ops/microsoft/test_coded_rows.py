"""Products with codes and an epilogue, and those whose blocks make the rows of their left operand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.ir.command import Launch
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.operator import build
from gpuexec.ir.spec import BFLOAT16
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise import prologue
from gpuexec.ops.elementwise.prologue import ProductOfRows
from gpuexec.ops.microsoft import few_nbits
from gpuexec.ops.microsoft.few_nbits import MOST_ROWS
from gpuexec.planner.launch_work import describe_work
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template, specs_of
from tests.ir.graph_builder import GraphBuilder
from tests.ops.counted_launch import count_wavefronts
from tests.ops.direct import lower_and_run
from tests.ops.harness import Array, Case, run_case
from tests.ops.step_by_step import apply_steps
from tests.ops.test_prologue import (
    FLOAT,
    HALF,
    STORED,
    UNIT_TERMS,
    list_sources,
    lower,
    maker_of,
    numbers,
    run_apart,
    shapes_of,
    steps_of,
    to,
)
from tests.ops.tolerance import to_bits

KINDS = ("rms", "softmax", "gate", "skip")
MADE, PLAIN = "mma_rows_nbits.cu", "mma_few_nbits.cu"
# An addend, and what is stored in half; behind A, codes and scales.
RESIDUAL = (("Add", (), (-1, 3)),)
ROUNDED = (("Mul", (), (-1, 3)), ("Gelu", (), (-2,)), to(HALF, 0)[:2] + ((-3,),))


def weight_of(inner: int, columns: int, bits: int, block: int, dtype: Any, seed: int = 5) -> list[Array]:
    """Return codes and scales."""
    rng, blocks = np.random.default_rng(seed), ceil_div(inner, block)
    codes = rng.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
    return [codes, (2.0 ** rng.integers(-6, -3, columns * blocks)).astype(dtype)]


def describe(inner: int, columns: int, bits: int, block: int, precision: str, steps: Any = ()) -> tuple[Any, ...]:
    """Return the name and attributes of a product with codes, and with steps behind it."""
    own = {"K": inner, "N": columns, "block_size": block, "bits": bits, "precision": precision}
    if not steps:
        return "com.microsoft.MatMulNBits", tuple(own.items())
    return "gpuexec.FusedMatMulNBits", tuple({**own, "steps": steps, "results": (len(steps),)}.items())


def product_of_rows(
    kind: str, inner: int, columns: int, bits: int = 4, block: int = 32, *, stored: Any = HALF, steps: Any = ()
) -> ProductOfRows:
    product = describe(inner, columns, bits, block, STORED[np.dtype(stored)], steps)
    return ProductOfRows(maker_of(steps_of(kind, stored)), product, len(shapes_of(kind, (1,), 1)))


def coded_rows(
    label: str, kind: str, rows: tuple[int, ...], inner: int, columns: int, bits: int = 4, block: int = 32,
    *, stored: Any = HALF, steps: Any = (),
) -> Case:  # fmt: skip
    """Return a case whose expected output is that of the operators."""
    op = product_of_rows(kind, inner, columns, bits, block, stored=stored, steps=steps)
    inputs = [numbers(FLOAT, *shape) for shape in shapes_of(kind, rows, inner)]
    more = [numbers(FLOAT, *rows, columns)] if steps else []
    weight = weight_of(inner, columns, bits, block, FLOAT)
    (expected,) = op.parts.product.compute(apply_steps(steps_of(kind, stored), inputs)[-1], *weight, *more)
    assert expected is not None
    attributes = {"maker": op.maker, "product": op.product, "taken": op.taken}
    return Case(
        label, "ProductOfRows", (*inputs, *weight, *more), attributes, expected=(expected,), domain="gpuexec",
        terms=4 * inner + 8 + UNIT_TERMS[np.dtype(stored)],
    )  # fmt: skip


def finished(
    label: str, rows: int, inner: int, columns: int, bits: int, dtype: Any, steps: Any, precision: str = ""
) -> Case:
    """Return a case of a product with steps behind it."""
    name, attributes = describe(inner, columns, bits, 32, precision, steps)
    result = FLOAT if precision else np.dtype(dtype)
    weight = weight_of(inner, columns, bits, 32, result)
    inputs = (numbers(dtype, rows, inner), *weight, numbers(result, columns))
    (expected,) = build(name, dict(attributes)).compute(*inputs)
    return Case(
        label, "FusedMatMulNBits", inputs, dict(attributes), expected=(expected,), domain="gpuexec",
        terms=inner + 8 + UNIT_TERMS.get(expected.dtype, 0),
    )  # fmt: skip


CASES = [
    *(coded_rows(f"{kind}_row", kind, (1, 1), 520, 72) for kind in KINDS),
    *(coded_rows(f"{kind}_rows", kind, (3,), 136, 40) for kind in KINDS),
    *(coded_rows(f"bits_{bits}", "rms", (2, 2), 264, 33, bits, 64) for bits in (2, 8)),
    *(coded_rows(f"bf16_bits_{bits}", "gate", (2,), 264, 33, bits, stored=BFLOAT16) for bits in (2, 4)),
    coded_rows("bf16_bytes", "rms", (2,), 64, 33, 8, stored=BFLOAT16),  # no kernel takes them
    coded_rows("residual", "gate", (1, 2), 1032, 128, steps=RESIDUAL),
    coded_rows("many_rows", "rms", (20,), 64, 64, steps=RESIDUAL),
    finished("small", 2, 64, 8, 4, FLOAT, RESIDUAL),
    finished("small_to_float", 2, 64, 8, 4, HALF, RESIDUAL, "fp16"),
    *(
        finished(f"{rows}_rows_{bits}_{np.dtype(dtype).name}_{precision}", rows, 264, 40, bits, dtype, steps, precision)
        for rows, bits, dtype, precision, steps in (
            (1, 4, HALF, "fp16", ROUNDED),
            (4, 2, HALF, "", RESIDUAL),
            (3, 4, BFLOAT16, "bf16", RESIDUAL),
            (70, 4, HALF, "fp16", ROUNDED),
            (70, 8, BFLOAT16, "", RESIDUAL),
            (2, 8, FLOAT, "", RESIDUAL),
            (9, 4, FLOAT, "", RESIDUAL),  # by a launch of their own
        )
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_coded_product(case: Case, checks: str) -> None:
    run_case(case, checks)


@pytest.fixture(autouse=True, scope="module")
def makes_rows() -> Iterator[None]:
    """Have blocks make rows whatever time that takes: how they do is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prologue, "_is_worth", lambda *_: True)
        yield


def check_bits(op: ProductOfRows, kind: str, rows: int, inputs: list[Array]) -> None:
    emit, y = lower(op, inputs)
    assert list_sources(emit) == [MADE]
    np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(run_apart(op, inputs)), err_msg=f"{rows} {kind}")


def draw(kind: str, rows: int, inner: int, weight: list[Array], seed: int = 3) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [*(rng.normal(size=shape).astype(FLOAT) for shape in shapes_of(kind, (rows,), inner)), *weight]


@settings(max_examples=8, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(1, MOST_ROWS),
    eights=st.integers(1, 90),
    columns=st.integers(1, 70),
    bits=st.sampled_from((2, 4)),
    block=st.sampled_from((32, 128)),
    stored=st.sampled_from((HALF, BFLOAT16)),
    seed=st.integers(0, 2**32 - 1),
)
def test_kernel_gives_the_bits_of_the_kernels_of_its_operators(
    kind: str, rows: int, eights: int, columns: int, bits: int, block: int, stored: Any, seed: int
) -> None:
    op = product_of_rows(kind, 8 * eights, columns, bits, block, stored=stored)
    weight = weight_of(8 * eights, columns, bits, block, FLOAT, seed)
    check_bits(op, kind, rows, draw(kind, rows, 8 * eights, weight, seed))


@pytest.mark.parametrize("kind", ["rms", "gate"])
def test_blocks_of_a_slice_keep_its_columns_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_nbits, "_COSTS", replace(few_nbits._COSTS, join=0.0, each_slice=0.0))
    inputs = draw(kind, 3, 4200, weight_of(4200, 8, 4, 32, FLOAT))
    op = product_of_rows(kind, 4200, 8)
    emit, y = lower(op, inputs)
    ((kernel, arguments),) = emit.launches
    assert kernel.source == MADE and arguments[5] is not None, "it has slices"
    np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(run_apart(op, inputs)))


def test_rows_are_made_in_front_where_no_kernel_takes_them() -> None:
    weight = weight_of(128, 40, 4, 32, FLOAT)
    op = product_of_rows("rms", 128, 40)
    for rows, target, sources in (
        (4, "sm_90a", [MADE]),
        (4, "sm_80", [MADE]),
        (5, "sm_90a", ["rows.cu", "mma_nbits.cu"]),
        (1, "sm_75", ["rows.cu", "matmul_nbits.cu"]),
    ):
        emit, _ = lower(op, draw("rms", rows, 128, weight), target=target)
        assert [each for each in list_sources(emit) if "elementwise" not in each] == sources


@pytest.mark.parametrize(("rows", "dtype", "source"), [(3, HALF, PLAIN), (70, HALF, "mma_nbits.cu"), (4, FLOAT, "few")])
def test_one_launch_adds_a_residual(rows: int, dtype: Any, source: str) -> None:
    name, attributes = describe(264, 40, 4, 32, "", RESIDUAL)
    inputs = [numbers(dtype, rows, 264), *weight_of(264, 40, 4, 32, dtype), numbers(dtype, rows, 40)]
    op: Any = build(name, dict(attributes))
    emit, y = lower(op, inputs)
    (launched,) = list_sources(emit)
    assert launched.startswith(source)
    (made,) = lower_and_run(op.parts.producer, inputs[:3], (), (True,))
    (expected,) = lower_and_run(build("Add", {}), [made, inputs[3]], (), (True,))
    np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(expected))


@pytest.mark.parametrize(
    ("kind", "rows", "inner", "columns"), [("rms", 1, 512, 128), ("gate", 1, 2048, 64), ("gate", 3, 1024, 64)]
)
def test_launches_move_about_what_is_counted(kind: str, rows: int, inner: int, columns: int) -> None:
    arrays = {f"x{n}": each for n, each in enumerate(draw(kind, rows, inner, weight_of(inner, columns, 4, 32, FLOAT)))}
    builder = GraphBuilder()
    values = [builder.input(name, *array.shape, dtype=array.dtype) for name, array in arrays.items()]
    graph = builder.graph(builder.node(product_of_rows(kind, inner, columns), *values))
    template = plan_graph(graph, specs_of(arrays), Target.named("sm_90"))
    (launch,) = template.plan.segment.commands
    assert isinstance(launch, Launch) and launch.kernel.source == MADE
    device = SimulatorDevice(lambda source: [k.expression for k in template.plan.kernels()], count_kernels=True)
    try:
        run_template(template, graph, arrays, device)
        (counts,) = device.counts
    finally:
        device.close()
    work = describe_work(launch)
    assert work.matrix_products == sum(line.counts.issued for line in counts.operations if line.unit == "mma")
    # Scales of a column are neighbours, so that L1, which count mode lacks, has what is left of their sectors.
    asked = sum(line.counts.nbytes for line in counts.lines if line.space == "global")
    assert work.l2_nbytes == pytest.approx(asked, rel=0.01)
    assert work.wavefronts == pytest.approx(count_wavefronts(counts, 1), rel=0.01)
