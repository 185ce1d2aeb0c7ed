"""ScaledMatMul: products of float8e4m3fn with scales, on tensor cores and widened, of integers and powers of two.

No sum rounds these. And the work of launches beside what is counted.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.errors import InputError
from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.lib.slices import MMA_TILES, ONE_SLICE, MmaTile, Slices
from gpuexec.ops.linalg import mma_launch
from gpuexec.planner.template import Template, plan_graph
from tests.devices.execute import run_template, specs_of
from tests.devices.opening import make_simulator, open_device
from tests.ir.graph_builder import GraphBuilder
from tests.ops.case import build_operator
from tests.ops.chains import chain
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats
from tests.ops.harness import Case, plan_case, run_case, run_planned

Array = np.ndarray[Any, Any]
FLOAT8, FLOAT = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.float32)
NAMES = [tile.name for tile in MMA_TILES]
# Architectures that widen, and that multiply as it is.
FORMS = {"sm_80": "WidenedE4m3", "sm_89": "E4m3"}
STEPS = (("Add", (), (-1, 4)), ("Relu", (), (-1,)))


def draw(
    pick: random.Random,
    extents: tuple[int, int, int],
    batches: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    *,
    transposed: tuple[int, int] | None = None,
    many: tuple[bool, bool] | None = None,
    **settings: Any,
) -> Case:
    """Return a product of operands of some batch axes, with one scale or one for each row and column.

    Args:
        pick: Source of what is not given.
        extents: Rows, columns and the inner extent.
        batches: Batch axes of both operands.
        transposed: Whether they lie so.
        many: Whether they have a scale for each row or column.
        settings: Attributes, and ``c``: whether there is an addend.
    """
    rng = np.random.default_rng(pick.getrandbits(32))
    (rows, columns, inner), has_c = extents, settings.pop("c", False)
    lies = (pick.randrange(2), pick.randrange(2)) if transposed is None else transposed
    alike = (pick.random() < 0.5, pick.random() < 0.5) if many is None else many
    shapes = (*batches[0], rows, inner), (*batches[1], inner, columns)
    a, b = (rng.integers(-8, 9, shape).astype(FLOAT8) for shape in shapes)
    a_scale, b_scale = (
        (2.0 ** rng.integers(-3, 3, (extent,) if has_many else ())).astype(FLOAT)
        for extent, has_many in zip((rows, columns), alike, strict=True)
    )
    scale = a_scale.reshape(-1, 1).astype(np.float64) * b_scale
    exact = a.astype(np.float64) @ b.astype(np.float64) * scale * settings.get("alpha", 1.0)
    given = [each.swapaxes(-1, -2).copy() if lie else each for each, lie in zip((a, b), lies, strict=True)]
    given += [a_scale, b_scale]
    if has_c:
        given.append(rng.integers(-9, 10, (columns,)).astype(FLOAT))
        exact += given[-1].astype(np.float64) * settings.get("beta", 1.0)
    attributes = {"transA": lies[0], "transB": lies[1], **settings}
    expected = (exact.astype(FLOAT),)
    return Case("drawn", "gpuexec.ScaledMatMul", tuple(given), attributes, expected=expected, terms=inner)


def row(x: Any) -> Array:
    return np.array(x).astype(FLOAT8)


def one(x: float) -> Array:
    return np.array(x, FLOAT)


def finish(case: Case) -> Case:
    """Return a case with a sum and Relu behind it."""
    (made,) = case.expected or ()
    beside = np.arange(-2, made.shape[-1] - 2).astype(FLOAT)
    expected = (np.maximum(made + beside, 0),)
    attributes = {**case.attributes, **chain(STEPS)}
    return Case("finished", "gpuexec.FusedScaledMatMul", (*case.inputs, beside), attributes, expected=expected)


CASES = [
    Case("rows", "gpuexec.ScaledMatMul", (row([1, 2]), row([3, 4]), one(2), one(0.5)), expected=(one(11),)),
    Case(
        "left",
        "gpuexec.ScaledMatMul",
        (row([[1, 2], [3, 4]]), row([3, 4]), np.array([2, 4], np.float32), one(0.5)),
        expected=(np.array([11, 50], np.float32),),
    ),
    Case(
        "right",
        "gpuexec.ScaledMatMul",
        (row([1, 2]), row([[1, 2], [3, 4]]), one(2), np.array([0.5, 1], np.float32)),
        expected=(np.array([7, 20], np.float32),),
    ),
    draw(random.Random(0), (3, 4, 5), c=True, alpha=0.5, beta=2.0),
    draw(random.Random(1), (3, 4, 5), c=True, beta=0.0),
    draw(random.Random(2), (0, 4, 5)),
    draw(random.Random(3), (3, 4, 0)),
    draw(random.Random(4), (5, 3, 4), ((2, 3), (3,))),
    finish(draw(random.Random(5), (5, 7, 20))),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.id}" for i, case in enumerate(CASES)])
def test_products_with_scales(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("seed", range(6))
def test_random_products(checks: str, seed: int) -> None:
    """Rows and columns around tiles, few of both, batches, all transposes; weights on either side."""
    pick = random.Random(seed)
    rows, columns = pick.choice([1, 5, 16, 63, 65, 77]), pick.choice([1, 7, 9, 63, 64, 72])
    inner = pick.choice([1, 8, 16, 40, 64, 136, 200, 528])
    batches = pick.choice([((), ()), ((), ()), ((2,), ()), ((2, 3), (3,)), ((), (2,))])
    case = draw(pick, (rows, columns, inner), batches, alpha=pick.choice([1.0, 0.5]))
    const = pick.choice([(), (1,), (0,)])
    run_case(Case(case.id, case.op, case.inputs, case.attributes, const, expected=case.expected), checks)


@pytest.mark.parametrize("has_steps", [False, True], ids=["plain", "steps"])
@pytest.mark.parametrize("tile", MMA_TILES, ids=NAMES)
def test_operators_by_tile(checks: str, tile: MmaTile, has_steps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a size class takes it whose upper end is larger."""
    monkeypatch.setattr(mma_launch, "choose_mma_tile", lambda *_: tile)
    case = draw(random.Random(6), (21, 24, 40))
    run_case(finish(case) if has_steps else case, checks)


@functools.cache
def simulate(target: str, *, check_kernels: bool) -> SimulatorDevice:
    return make_simulator(target=target, check_kernels=check_kernels)


@pytest.mark.parametrize("is_checked", [False, True], ids=["plain", "check"])
@pytest.mark.parametrize("tile", MMA_TILES, ids=NAMES)
@pytest.mark.parametrize("target", FORMS)
def test_both_forms_of_every_tile(
    target: str, tile: MmaTile, is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ragged tiles, unrolled loops and slices, to the bit."""
    pick, slices = random.Random(f"{target} {tile.name}"), 1

    def slice_as_told(emit: Any, tile: MmaTile, tiles: int, inner_nbytes: int) -> Slices:
        if slices == 1:
            return ONE_SLICE
        return Slices(slices, emit.temp((tiles * slices * tile.size,), FLOAT), emit.counters(tiles))

    monkeypatch.setattr(mma_launch, "choose_mma_tile", lambda *_: tile)
    monkeypatch.setattr(mma_launch, "slice_mma_tiles", slice_as_told)
    depth = (2 * tile.stages + 2) * tile.slab_nbytes
    forms = [(33, 1), (depth + 16, 3)] if is_checked else [(1, 1), (61, 2), (depth, 1), (depth + 40, 5)]
    for inner, slices in forms:  # noqa: B007 (read by what stands for slice_mma_tiles)
        spare = [-1, 0, 1, 13] if inner < depth else [-1, 0]  # one tile where its loops are long
        rows, columns = (extent + pick.choice(spare) for extent in (tile.rows, tile.columns))
        case = draw(pick, (rows, columns, inner))
        planned = plan_case(case, *build_operator(case), set(), Target.named(target))
        (kernel,) = (each for each in planned.template.plan.kernels() if each.source == "mma_float8.cu")
        assert kernel.expression == f"mma_float8<{FORMS[target]}, {tile.name}>"
        (y,) = run_planned(planned, simulate(target, check_kernels=is_checked))
        np.testing.assert_array_equal(y, case.expected[0] if case.expected else None)


@pytest.mark.parametrize("target", FORMS)
def test_every_number_is_multiplied(target: str) -> None:
    """NaN too, and those below the least normal one."""
    a = np.arange(256, dtype=np.uint8).reshape(16, 16).view(FLOAT8)
    b = np.eye(16, dtype=np.float32).astype(FLOAT8)
    case = Case("codes", "gpuexec.ScaledMatMul", (a, b, one(1), one(1)))
    op, inputs = build_operator(case)
    planned = plan_case(case, op, inputs, set(), Target.named(target))
    (y,) = run_planned(planned, simulate(target, check_kernels=False))
    np.testing.assert_array_equal(y, op.compute(*inputs)[0])
    np.testing.assert_array_equal(y[:7], a[:7].astype(FLOAT))
    assert np.isnan(y[7]).all() and np.isnan(y[15]).all()


@pytest.mark.parametrize(
    ("target", "kernels"),
    [
        ("sm_75", ["convert_narrow", "simt_gemm", "binary"]),
        ("sm_80", ["mma_float8<WidenedE4m3"]),
        ("sm_86", ["mma_float8<WidenedE4m3"]),
        ("sm_89", ["mma_float8<E4m3"]),
        ("sm_90a", ["mma_float8<WidenedE4m3"]),
        ("sm_100", ["mma_float8<WidenedE4m3"]),
        ("sm_120", ["mma_float8<E4m3"]),
        ("sm_121", ["mma_float8<E4m3"]),
    ],
)
def test_the_architecture_says_how_bytes_are_multiplied(target: str, kernels: list[str]) -> None:
    case = draw(random.Random(7), (40, 48, 64), transposed=(0, 1))
    planned = plan_case(case, *build_operator(case), {1, 3}, Target.named(target))
    found = dict.fromkeys(each.expression.partition("<" if "<" not in kernels[0] else ",")[0]
                          for each in planned.template.plan.kernels())  # fmt: skip
    assert list(found) == kernels


def test_operands_that_do_not_lie_along_the_inner_extent_are_packed_or_copied() -> None:
    """A weight once, with aligned lines; what is made in the run by a launch; what both batches read, once for both."""
    case = draw(random.Random(8), (40, 21, 37), ((2,), ()), transposed=(1, 0), many=(False, False))
    known = plan_case(case, *build_operator(case), {1}, Target.named("sm_90")).template.plan
    (packed,) = (buffer for buffer in known.buffers if buffer.form is not None)
    assert str(packed.form) == "padded_rows(16)" and packed.nbytes == 21 * 48
    assert [each.source for each in known.kernels()] == ["copy.cu", "mma_float8.cu"]
    made = plan_case(case, *build_operator(case), set(), Target.named("sm_90")).template.plan
    copies = [c for c in made.segment.commands if isinstance(c, Launch) and c.kernel.source == "copy.cu"]
    assert [c.arguments[1].spec.shape for c in copies if isinstance(c.arguments[1], Slot)] == [(2, 40, 37), (1, 21, 37)]


@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_all_sizes_of_a_class_take_its_kernels(target: str) -> None:
    """One row, and inner extents that no longer lie aligned."""
    op = build("gpuexec.ScaledMatMul", {"transB": 1})
    builder, pick = GraphBuilder(), random.Random(9)
    values = [builder.input(name, *dims, dtype=FLOAT8) for name, dims in (("a", ("m", "k")), ("b", ("n", "k")))]
    values += [builder.input("s", dtype=FLOAT), builder.input("t", "n", dtype=FLOAT)]
    graph = builder.graph(builder.node(op, *values))
    template: Template | None = None
    for rows, columns, inner in ((70, 40, 528), (70, 40, 520), (33, 40, 100), (16, 9, 64), (5, 3, 17), (1, 1, 1)):
        case = draw(pick, (rows, columns, inner), transposed=(0, 1), many=(False, True))
        arrays = dict(zip("abst", case.inputs, strict=True))
        given = {name: array for name, array in arrays.items() if array is not None}
        template = template or plan_graph(graph, specs_of(given), Target.named(target))
        (y,) = run_template(template, graph, given, open_device("simulator"))
        np.testing.assert_array_equal(y, case.expected[0] if case.expected else None)


def test_operands_and_scales_that_do_not_fit_are_refused() -> None:
    op = build("gpuexec.ScaledMatMul", {})
    a, b, scale = TensorSpec((3, 4), FLOAT8), TensorSpec((4, 5), FLOAT8), TensorSpec((), FLOAT)
    with pytest.raises(InputError, match=r"operands of float8_e4m3fn and scales of float32, got float32\[4,5\]"):
        op.infer(a, TensorSpec((4, 5), FLOAT), scale, scale)
    with pytest.raises(InputError, match="as many columns on the left as rows on the right"):
        op.infer(a, a, scale, scale)
    with pytest.raises(InputError, match=r"one scale or one for each row of A', got float32\[5\]"):
        op.infer(a, b, TensorSpec((5,), FLOAT), scale)
    with pytest.raises(InputError, match=r"one scale or one for each column of B', got float32\[1,5\]"):
        op.infer(a, b, scale, TensorSpec((1, 5), FLOAT))
    with pytest.raises(InputError, match="C of float32 beside two matrices"):
        op.infer(TensorSpec((2, 3, 4), FLOAT8), b, scale, scale, TensorSpec((5,), FLOAT))


@pytest.mark.parametrize("target", ["sm_89", "sm_90"])
@pytest.mark.parametrize("tile", MMA_TILES, ids=NAMES)
def test_work_is_as_counted(tile: MmaTile, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In slices; all copies, fragments and sums take the least sectors and wavefronts."""
    monkeypatch.setattr(mma_launch, "choose_mma_tile", lambda *_: tile)
    rows, inner, columns = tile.rows, (2 * tile.stages + 2) * tile.slab_nbytes, 2 * tile.columns
    weights = {"w": floats(inner, columns).astype(FLOAT8), "s": one(2), "t": np.ones(columns, np.float32)}
    attributes = {"domain": "gpuexec"}
    inputs = {"x": (rows, inner)}
    found = compare(
        CountedCase("ScaledMatMul", "mma_float8", inputs, weights, attributes, dtype=FLOAT8.type, target=target)
    )
    assert found.work.flops == 2 * rows * inner * columns
    issued = sum(line.counts.issued for line in found.counts.operations if line.unit == "mma")
    assert found.work.matrix_products == (issued if target == "sm_90" else issued / 2)
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    assert found.work.wavefronts == count_wavefronts(found.counts, 1)
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert found.work.l2_nbytes == pytest.approx(counted, rel=2e-3)
    for line in found.counts.lines:
        if line.counts.nbytes and (line.space == "shared" or line.width == 16):
            assert line.counts.ratio == 1.0, line
