"""Regions: bit-equal to their operators one after the other, on the host and on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuexec.cli.operator_types import PIXEL
from gpuexec.devices.kernels import nvrtc
from gpuexec.devices.kernels.kernel_source import find_source, read_text
from gpuexec.devices.kernels.machine_code import read_figures
from gpuexec.devices.simulator.module import load_generated
from gpuexec.errors import InputError, PlanError
from gpuexec.ir.command import Kernel, Launch
from gpuexec.ir.graphs import Value
from gpuexec.ir.operator import Operator, build, describe, find_operator
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ops.elementwise import region_blocks
from gpuexec.ops.elementwise.region import Region
from gpuexec.ops.elementwise.region_steps import find_forms, list_keys, made_by, read_number, write_number
from tests.devices.cuda_wheels import needs_nvdisasm
from tests.ir.graph_builder import GraphBuilder
from tests.ops.calls import Call
from tests.ops.direct import PlanningEmitter, lower_and_run
from tests.ops.every_call import list_calls
from tests.ops.harness import Array, Case, keep_plans, run_case
from tests.ops.step_by_step import Steps, check_blits
from tests.ops.tolerance import to_bits

RNG = np.random.default_rng(17)
FLOAT, HALF, DOUBLE = np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.float64)
INT, LONG, BOOL = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.bool_)
TO_HALF, TO_LONG = ((("to", dtype_row(dtype).code),) for dtype in (HALF, LONG))
AFFINE: Steps = (("Mul", (), (0, 1)), ("Add", (), (-1, 2)), ("Relu", (), (-2,)))


def numbers(dtype: Any, *shape: int) -> Array:
    return np.asarray(RNG.normal(size=shape) * (1 if np.dtype(dtype).kind == "f" or dtype == BFLOAT16 else 9)).astype(
        dtype
    )


def apply_steps(steps: Steps, inputs: Sequence[Array | None]) -> list[Array]:
    """Return what each step makes, one after the other."""
    made: list[Array] = []
    for name, attributes, given in steps:
        taken = [
            None if g is None else read_number(g) if isinstance(g, str) else inputs[g] if g >= 0 else made[-1 - g]
            for g in given
        ]
        (result,) = build(name, dict(attributes)).compute(*taken)
        assert result is not None
        made.append(result)
    return made


def region(label: str, inputs: Sequence[Array | None], steps: Steps, results: tuple[int, ...] = ()) -> Case:
    """Return a case whose expected outputs are those of the operators; the last step makes the result by default."""
    results = results or (len(steps) - 1,)
    made = apply_steps(steps, inputs)
    attributes = {"steps": steps, "results": results}
    expected = tuple(made[step] for step in results)
    return Case(
        label, "Region", tuple(inputs), attributes, outputs=(True,) * len(results), expected=expected, domain="gpuexec"
    )


SHAPES = {
    "dense": ((6, 7), (6, 7), (6, 7)),
    "row": ((6, 8), (8,), (6, 8)),
    "column": ((6, 8), (6, 1), (1, 1)),
    "channels": ((2, 6, 5, 4), (6, 1, 1), (1, 6, 1, 1)),
    "outer": ((5, 1), (1, 7), (5, 7)),
    "scattered": ((3, 4, 5, 8), (4, 1, 8), (3, 1, 5, 1)),
    "one": ((1,), (1, 1), (1,)),
    "scalar": ((), (), ()),
    "empty": ((0, 4), (4,), (0, 4)),
    "prime": ((1, 31), (31,), (1,)),
}
CASES = [
    *(region(name, [numbers(FLOAT, *shape) for shape in shapes], AFFINE) for name, shapes in SHAPES.items()),
    *(
        region(f"rounded_{np.dtype(dtype).name}", [numbers(dtype, *shape) for shape in SHAPES["row"]], AFFINE)
        for dtype in (HALF, BFLOAT16, DOUBLE, INT, LONG)
    ),
    region(
        "two_results",
        [numbers(FLOAT, 4, 6), numbers(FLOAT, 4, 6)],
        (("Add", (), (0, 1)), ("Relu", (), (-1,)), ("Cast", TO_HALF, (-2,))),
        (1, 2),
    ),
    region(
        "types",
        [numbers(FLOAT, 3, 5), numbers(LONG, 5), RNG.integers(0, 2, (3, 1)).astype(bool)],
        (
            ("Cast", TO_LONG, (0,)),
            ("Add", (), (-1, 1)),
            ("Greater", (), (-2, "int64 3")),
            ("And", (), (-3, 2)),
            ("Where", (), (-4, -2, -1)),
            ("Not", (), (-4,)),
        ),
        (4, 5),
    ),
    region(
        "numbers",
        [numbers(DOUBLE, 3, 5)],
        (
            ("Mul", (), (0, "float64 0.1")),
            ("Clip", (), (-1, "float64 -0.3", None)),
            ("Pow", (), (-2, "float32 3.0")),
            ("Max", (), (-3, "float64 -inf", 0)),
            ("LeakyRelu", (("alpha", 0.3),), (-4,)),
        ),
    ),
    region(
        "gated", [numbers(FLOAT, 2, 9)], (("Sigmoid", (), (0,)), ("Mul", (), (0, -1)), ("Sub", (), (-2, -1)))
    ),
    region("transposed", [numbers(FLOAT, 8, 6).T, numbers(FLOAT, 8), numbers(FLOAT, 6, 1)], AFFINE),
    region("reversed", [numbers(FLOAT, 6, 8)[::-1, ::-1], numbers(FLOAT, 8)[::-1], numbers(FLOAT, 6, 8)], AFFINE),
    region("apart", [numbers(FLOAT, 5), numbers(FLOAT, 3, 5)], (("Neg", (), (0,)), ("Add", (), (-1, 1))), (0, 1)),
    region("one_step", [numbers(HALF, 7)], (("Exp", (), (0,)),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_region(checks: str, case: Case) -> None:
    run_case(case, checks)
    if checks == "pixel":
        check_blits(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_kernel_of_a_region_gives_the_bits_of_those_of_its_steps(case: Case) -> None:
    op = build("gpuexec.Region", case.attributes)
    steps: Steps = case.attributes["steps"]
    made: list[Array] = []
    for name, attributes, given in steps:
        taken = [
            None if g is None else read_number(g) if isinstance(g, str) else case.inputs[g] if g >= 0 else made[-1 - g]
            for g in given
        ]
        made += lower_and_run(build(name, dict(attributes)), taken)
    wanted = [made[step] for step in case.attributes["results"]]
    for got, expected in zip(lower_and_run(op, case.inputs), wanted, strict=True):
        np.testing.assert_array_equal(to_bits(got), to_bits(expected))


def list_pointwise() -> Iterator[str]:
    """Yield the names of operators that can be in a region."""
    for name, calls in list_calls().items():
        if name != Region.name and any(find_form(call.operator, call.inputs) for call in calls):
            yield name


def find_form(op: Operator, inputs: Sequence[Array | None]) -> Any:
    return op.as_pointwise([None if x is None else TensorSpec(x.shape, x.dtype) for x in inputs])


def list_whole_calls(name: str) -> list[Call]:
    """Return the calls of an operator that can be in a region, without empty inputs."""
    calls = [call for call in list_calls()[name] if find_form(call.operator, call.inputs)]
    return [call for call in calls if all(x is None or x.size for x in call.inputs)]


@pytest.mark.plans
@pytest.mark.parametrize("name", sorted(list_pointwise()))
def test_every_case_of_an_operator_is_one_launch_inside_a_region(name: str) -> None:
    for call in list_whole_calls(name):
        graph, specs = GraphBuilder(), dict[str, TensorSpec]()
        values: list[Value | None] = []
        for number, x in enumerate(call.inputs):
            values.append(None if x is None else graph.input(f"x{number}", *x.shape, dtype=x.dtype))
            if x is not None:
                specs[f"x{number}"] = TensorSpec(x.shape, x.dtype)
        for plan in keep_plans(graph.graph(graph.node(surround(call), *values)), specs):
            (launch,) = plan.segment.commands
            assert isinstance(launch, Launch) and launch.kernel.source == "flat.cu"


@pytest.mark.parametrize("name", sorted(list_pointwise()))
def test_every_case_of_an_operator_runs_inside_a_region(name: str) -> None:
    """On the host and on the simulator, with the bits of the operator by itself; all kernels are one object."""
    calls = list_whole_calls(name)
    planned = []
    for call in calls:
        op = surround(call)
        emit = PlanningEmitter()
        slots = tuple(None if x is None else emit.slot(x) for x in call.inputs)
        (spec,) = op.infer(*(None if slot is None else slot.spec for slot in slots))
        y = emit.fresh(spec.shape, spec.dtype)
        op.lower(emit, slots, (y,))
        planned.append((call, op, emit, y))
    functions = load_generated(list(dict.fromkeys(emit.kept[0] for _, _, emit, _ in planned)))
    for call, op, emit, y in planned:
        (expected,) = call.operator.compute(*call.inputs)
        (computed,) = op.compute(*call.inputs)
        np.testing.assert_array_equal(to_bits(computed), to_bits(np.asarray(expected)), err_msg=str(call))
        kernel, grid, block, arguments = emit.kept
        values = [emit.arrays[a.buffer][a.offset_bytes :] if hasattr(a, "buffer") else a for a in arguments]
        functions[kernel].launch_arrays(grid, block, *values)
        (alone,) = lower_and_run(call.operator, call.inputs)
        np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(alone), err_msg=str(call))


def surround(call: Call) -> Region:
    """Return a region of an operator and a Cast to the type that it gives."""
    inputs = tuple([None if x is None else position for position, x in enumerate(call.inputs)])
    to = dtype_row(find_form(call.operator, call.inputs).dtype).code
    return Region(((*describe(call.operator), inputs), ("Cast", (("to", to),), (made_by(0),))), (1,))


def test_regions_of_other_sizes_take_the_kernel_of_the_upper_end() -> None:
    op = Region(AFFINE, (2,))

    def lower(*shapes: tuple[int, ...], choices: Sequence[int] | None = None) -> tuple[PlanningEmitter, Kernel]:
        emit = PlanningEmitter(choices)
        slots = tuple(emit.slot(numbers(FLOAT, *shape)) for shape in shapes)
        (spec,) = op.infer(*(slot.spec for slot in slots))
        op.lower(emit, slots, (emit.fresh(spec.shape, spec.dtype),))
        return emit, emit.kept[0]

    end, kernel = lower((8, 64), (64,), (8, 64))
    for rows, columns in ((8, 64), (7, 63), (1, 5), (3, 1), (1, 1)):
        assert lower((rows, columns), (columns,), (rows, columns), choices=end.choices)[1] == kernel
    with pytest.raises(PlanError, match="upper end"):
        lower((8, 64), (8, 64), (8, 64), choices=end.choices)
    # Other extents and numbers are arguments, other strides a structure of their own.
    assert lower((4, 32), (32,), (4, 32))[1] == kernel != lower((4, 32), (4, 1), (4, 32))[1]


def test_textures_take_a_blit_for_each_result() -> None:
    operator = Region((("Add", (), (0, 1)), ("Relu", (), (-1,))), (0, 1))
    emit = PlanningEmitter()
    emit.target = replace(emit.target, kind=PIXEL.kind)
    inputs = [emit.slot(numbers(HALF, 3, 4)) for _ in range(2)]
    operator.lower(emit, inputs, [emit.fresh((3, 4), HALF) for _ in range(2)])
    kernels = [kernel for kernel, _ in emit.launches]
    assert [kernel.source for kernel in kernels] == ["pixel/flat.cu"] * 2
    assert len(set(kernels)) == 2


def test_offsets_of_many_elements_have_64_bits() -> None:
    emit = PlanningEmitter()
    spec = TensorSpec((2**16, 2**16), FLOAT)
    small = emit.slot(numbers(FLOAT, 1))
    x, y = (small.__class__(0, 0, spec, (2**16, 1)) for _ in range(2))
    Region((("Neg", (), (0,)),), (0,)).lower(emit, (x,), (y,))
    kernel, grid, _, arguments = emit.kept
    assert "FlatWalk<i64" in kernel.text and grid[0] == 2**32 // 4 // 256
    assert isinstance(arguments[0], bytes) and len(arguments[0]) == 8 + 8 + 24 + 8


@pytest.mark.parametrize(
    "shapes",
    [
        ((3 * region_blocks.CALL_NBYTES + 5,),) * 3,
        ((50, 3000), (3000,), (50, 1)),
        ((3, 70000), (1,), (3, 1)),
        ((200000, 2), (2,), (1,)),
    ],
    ids=str,
)
def test_blocks_give_the_bits_of_whole_arrays(shapes: tuple[tuple[int, ...], ...]) -> None:
    inputs = [numbers(dtype, *shape) for shape, dtype in zip(shapes, (FLOAT, FLOAT, FLOAT))]
    steps: Steps = (*AFFINE, ("Cast", TO_HALF, (-3,)), ("Exp", (), (-4,)))
    op, expected = Region(steps, (2, 4)), apply_steps(steps, inputs)
    out = [np.full(expected[2].shape, 7, FLOAT), None]
    made = op.compute(*inputs, out=out)
    assert made[0] is out[0]
    for got, place in zip(made, (2, 4), strict=True):
        np.testing.assert_array_equal(to_bits(got), to_bits(expected[place]))
    # In the memory of an input that no later step reads.
    (in_place,) = (
        Region(AFFINE, (2,)).compute(*inputs, out=(inputs[0],)) if inputs[0].shape == made[0].shape else (made[0],)
    )
    np.testing.assert_array_equal(to_bits(in_place), to_bits(expected[2]))


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("size", [7, 30_000, 3 * region_blocks.CALL_NBYTES], ids=["few", "one block", "blocks"])
@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
def test_results_may_take_the_memory_of_inputs_read_last_with_them(
    dtype: Any, size: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEXEC_CPU_THREADS", threads)
    steps: Steps = (
        ("Mul", (), (0, 1)),
        ("Neg", (), (-1,)),
        ("Sub", (), (-2, 1)),
        ("Add", (), (-3, -1)),
        ("Relu", (), (-4,)),
        ("Max", (), (-5, 0)),
    )
    inputs = [numbers(dtype, size), numbers(dtype, size)]
    expected = apply_steps(steps, inputs)
    op = Region(steps, (3, 5))
    apart = op.compute(*inputs)
    in_place = op.compute(inputs[0], inputs[1].copy(), out=(inputs[1].copy(), inputs[0]))
    assert in_place[1] is inputs[0]
    for made in (apart, in_place):
        for y, place in zip(made, (3, 5), strict=True):
            assert y is not None
            np.testing.assert_array_equal(to_bits(y), to_bits(expected[place]))


@pytest.mark.parametrize("name", ["Gelu", "Swish", "Sigmoid", "Relu"])
def test_what_is_computed_in_pieces_is_the_same_in_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_CPU_THREADS", "2")
    steps: Steps = ((name, (), (0,)), ("Neg", (), (-1,)))
    x = numbers(FLOAT, 2 * region_blocks.CALL_NBYTES + 77) * np.float32(40)
    x[:7] = np.nan, np.inf, -np.inf, -87, -88, -0.0, 1e-40
    (y,) = Region(steps, (1,)).compute(x)
    for part in (slice(0, 9), slice(100, 5_000), slice(-70_000, None)):
        np.testing.assert_array_equal(to_bits(y[part]), to_bits(apply_steps(steps, [x[part]])[1]))  # type: ignore[index]


def test_threads_warn_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_CPU_THREADS", "2")
    x = np.full(8 * region_blocks.CALL_NBYTES, 100, FLOAT)
    with np.errstate(all="raise"):
        (y,) = Region((("Exp", (), (0,)), ("Log", (), (-1,))), (1,)).compute(x)
    assert y is not None and np.isinf(y).all()


def test_results_take_the_bytes_of_inputs_that_are_done_with() -> None:
    def allowed(steps: Steps, results: tuple[int, ...]) -> list[tuple[int, int]]:
        emit = PlanningEmitter()
        slots = tuple(emit.slot(numbers(FLOAT, 4, 8)) for _ in range(2))
        outputs = tuple(emit.fresh((4, 8), FLOAT) for _ in results)
        Region(steps, results).lower(emit, slots, outputs)
        return [(outputs.index(y), slots.index(x)) for y, x in emit.in_place_allowed]

    assert allowed((("Add", (), (0, 1)), ("Relu", (), (-1,))), (1,)) == [(0, 0), (0, 1)]
    assert allowed((("Neg", (), (0,)), ("Add", (), (-1, 1))), (0, 1)) == [(0, 0), (1, 0), (1, 1)]
    assert allowed((("Neg", (), (0,)), ("Add", (), (0, 1))), (0, 1)) == [(1, 0), (1, 1)]


def test_what_is_no_region_is_refused() -> None:
    with pytest.raises(InputError, match="results among its 1 steps"):
        Region((("Neg", (), (0,)),), (1,)).infer(TensorSpec((2,), FLOAT))
    with pytest.raises(InputError, match="float32"):
        Region((("Not", (), (0,)),), (0,)).infer(TensorSpec((2,), FLOAT))


@pytest.mark.parametrize(
    "number", [np.float32(0.1), np.float16(-0.0), np.float64("inf"), np.int64(-(2**63)), np.uint64(2**64 - 1)]
)
def test_numbers_are_written_and_read_to_the_bit(number: np.generic) -> None:
    text = write_number(np.asarray(number))
    assert text is not None and to_bits(read_number(text)) == to_bits(np.asarray(number))
    assert write_number(np.asarray(True)) is None


def test_forms_say_what_has_none() -> None:
    powers: Steps = (("Pow", (), (0, 1)),)
    x, many, one = numbers(FLOAT, 4), numbers(FLOAT, 4), numbers(FLOAT, 1)
    assert find_forms(powers, list_keys((x, many))).forms is None
    assert find_forms(powers, list_keys((x, one))).forms is not None
    (got,) = Region(powers, (0,)).compute(x, many)
    np.testing.assert_array_equal(to_bits(got), to_bits(apply_steps(powers, (x, many))[0]))
    assert find_operator("gpuexec.Region") is Region


@needs_nvdisasm
@pytest.mark.parametrize(
    ("label", "shapes", "dtype", "bound"),
    [
        ("dense", ((64, 64), (64, 64)), FLOAT, 12),
        ("dense_half", ((64, 64), (64, 64)), HALF, 12),
        ("row", ((64, 64), (64,)), FLOAT, 18),
        ("channels", ((2, 8, 64), (8, 1)), FLOAT, 20),
    ],
)
def test_few_integer_instructions_stand_before_the_store(
    label: str, shapes: tuple[tuple[int, ...], ...], dtype: Any, bound: int, tmp_path: Path
) -> None:
    """Of a thread, which stores 16 bytes."""
    op, emit = Region((("Add", (), (0, 1)), ("Relu", (), (-1,))), (1,)), PlanningEmitter()
    slots = tuple(emit.slot(numbers(dtype, *shape)) for shape in shapes)
    op.lower(emit, slots, (emit.fresh(shapes[0], dtype),))
    kernel, *_ = emit.kept
    for architecture in ("sm_80", "sm_90", "sm_120"):
        text = read_text(find_source(kernel.source), [kernel.text])
        cubin = nvrtc.compile_cubin(text, [kernel.expression], architecture)
        figures = read_figures(cubin.image, tmp_path)[cubin.kernels[0].lowered_name]
        assert figures.store_bits == 128 and figures.path_integers <= bound, architecture
