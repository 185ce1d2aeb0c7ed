"""Products whose blocks make the rows of their left operand: bit-equal to one operator after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.errors import InputError, PlanError
from gpuexec.ir.command import Launch
from gpuexec.ir.operator import build
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise import prologue
from gpuexec.ops.elementwise.prologue import MOST_ROWS, ProductOfRows, _is_worth
from gpuexec.ops.elementwise.region_steps import made_by
from gpuexec.ops.linalg import few_launch
from gpuexec.planner.launch_work import describe_work
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template, specs_of
from tests.ir.graph_builder import GraphBuilder
from tests.ops.counted_launch import count_wavefronts
from tests.ops.direct import DirectEmitter, PlanningEmitter, lower_and_run
from tests.ops.harness import Array, Case, run_case
from tests.ops.step_by_step import Steps, apply_steps
from tests.ops.tolerance import to_bits

RNG = np.random.default_rng(71)
FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)
STORED = {HALF: "fp16", BFLOAT16: "bf16"}
# What a kernel and NumPy round to a type between steps and product may be one unit apart: that is so many of float.
UNIT_TERMS = {HALF: 2**13, BFLOAT16: 2**16}


def numbers(dtype: Any, *shape: int) -> Array:
    return RNG.normal(size=shape).astype(dtype)


def to(dtype: Any, step: int) -> tuple[Any, ...]:
    """Return the step that stores what another makes in a type."""
    return ("Cast", (("to", dtype_row(np.dtype(dtype)).code),), (made_by(step),))


def norm(name: str, operands: int, dtype: Any) -> Steps:
    return ((name, (), tuple(range(operands))), to(dtype, 0))


def gate(dtype: Any) -> Steps:
    """Return silu(first) * second."""
    return (
        ("Sigmoid", (), (0,)),
        ("Mul", (), (0, made_by(0))),
        ("Mul", (), (made_by(1), 1)),
        to(dtype, 2),
    )


def skip_norm(dtype: Any) -> Steps:
    return (("Add", (), (0, 1)), ("LayerNormalization", (), (made_by(0), 2, 3)), to(dtype, 1))


def mean_scaled(dtype: Any) -> Steps:
    """Return x * mean(x) + an element of each row, which is read once a row."""
    axes = "int64[] -1"
    return (
        ("ReduceMean", (), (0, axes)),
        ("Mul", (), (0, made_by(0))),
        ("Add", (), (made_by(1), 1)),
        to(dtype, 2),
    )


def shapes_of(kind: str, rows: tuple[int, ...], inner: int) -> list[tuple[int, ...]]:
    """Return the shapes of what steps read."""
    whole, row = (*rows, inner), (inner,)
    return {
        "rms": [whole, row], "layer": [whole, row, row], "softmax": [whole], "gate": [whole, whole],
        "skip": [whole, whole, row, row], "mean": [whole, (*rows, 1)],
    }[kind]  # fmt: skip


def steps_of(kind: str, dtype: Any) -> Steps:
    return {
        "rms": norm("RMSNormalization", 2, dtype), "layer": norm("LayerNormalization", 3, dtype),
        "softmax": norm("Softmax", 1, dtype), "gate": gate(dtype), "skip": skip_norm(dtype),
        "mean": mean_scaled(dtype),
    }[kind]  # fmt: skip


def maker_of(steps: Steps) -> tuple[Any, ...]:
    """Return a region of steps, of rows where one of them reduces these."""
    is_row = any(name in ("ReduceMean", "Softmax") or "Normalization" in name for name, _, _ in steps)
    name = "gpuexec.RowRegion" if is_row else "gpuexec.Region"
    return (name, (("steps", steps), ("results", (len(steps) - 1,))))


def product_of(
    label: str,
    kind: str,
    rows: tuple[int, ...],
    inner: int,
    columns: int,
    *,
    given: Any = FLOAT,
    stored: Any = HALF,
    product: tuple[Any, ...] | None = None,
    more: Sequence[Array] = (),
    turned: bool = False,
    view: tuple[int, ...] | None = None,
) -> Case:
    """Return a case whose expected output is that of the operators; the product is a MatMul by default."""
    product = product or ("MatMul", (("precision", STORED[np.dtype(stored)]),))
    steps = steps_of(kind, stored)
    inputs = [numbers(given, *shape) for shape in shapes_of(kind, rows, inner)]
    weight = numbers(stored, *((columns, inner) if turned else (inner, columns)))
    made = apply_steps(steps, inputs)[-1]
    seen = made if view is None else made.reshape(view)
    (expected,) = build(product[0], dict(product[1])).compute(seen, weight, *more)
    assert expected is not None
    attributes = {"maker": maker_of(steps), "product": product, "taken": len(inputs)}
    attributes |= {} if view is None else {"view": view}
    return Case(
        label, "ProductOfRows", (*inputs, weight, *more), attributes, expected=(expected,), domain="gpuexec",
        terms=4 * inner + 8 + UNIT_TERMS[np.dtype(stored)],
    )  # fmt: skip


def plain(stored: Any) -> tuple[Any, ...]:
    """Return a MatMul whose result is of its operands' type."""
    del stored
    return ("MatMul", ())


RESIDUAL = (
    "gpuexec.FusedMatMul",
    (("precision", "fp16"), ("steps", (("Add", (), (-1, 2)),)), ("results", (1,))),
)
ACTIVATED = (
    "gpuexec.FusedGemm",
    (
        ("transB", 1),
        ("precision", "fp16"),
        ("steps", (("Gelu", (), (-1,)), ("Cast", (("to", dtype_row(HALF).code),), (-2,)))),
        ("results", (2,)),
    ),
)
GEMM = ("Gemm", (("alpha", 0.5), ("beta", 2.0), ("precision", "fp16"), ("transB", 1)))
CASES = [
    *(product_of(f"{kind}_row", kind, (1, 1), 512, 72) for kind in ("rms", "layer", "softmax", "gate", "skip", "mean")),
    *(product_of(f"{kind}_rows", kind, (3,), 136, 64) for kind in ("rms", "layer", "softmax", "gate", "skip", "mean")),
    product_of("short_rows", "rms", (2, 4), 40, 64),
    product_of("one_element", "gate", (2,), 1, 8),
    product_of("streamed", "softmax", (1,), 4104, 8),
    *(
        product_of(
            f"{np.dtype(given).name}_{np.dtype(stored).name}", "layer", (2,), 264, 64, given=given, stored=stored
        )
        for given in (FLOAT, HALF, BFLOAT16)
        for stored in (HALF, BFLOAT16)
    ),
    *(
        product_of(f"own_{np.dtype(each).name}", "rms", (1,), 264, 64, stored=each, product=plain(each))
        for each in (HALF, BFLOAT16)
    ),
    product_of("bias", "rms", (1,), 520, 64, product=GEMM, more=[numbers(FLOAT, 64)], turned=True),
    product_of("residual", "gate", (1, 2), 1032, 128, product=RESIDUAL, more=[numbers(FLOAT, 1, 2, 128)]),
    product_of("activated", "layer", (1, 1), 264, 64, product=ACTIVATED, turned=True, view=(-1, 264)),
    product_of("unaligned", "rms", (2,), 99, 9),
    product_of("many_rows", "rms", (20,), 64, 64),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_product_of_rows(case: Case, checks: str) -> None:
    run_case(case, checks)


def make_product(kind: str, stored: Any) -> ProductOfRows:
    steps = steps_of(kind, stored)
    product = ("MatMul", (("precision", STORED[np.dtype(stored)]),))
    return ProductOfRows(maker_of(steps), product, len(shapes_of(kind, (1,), 1)))


@pytest.fixture(autouse=True, scope="module")
def makes_rows() -> Iterator[None]:
    """Have blocks make rows whatever time that takes: how they do is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prologue, "_is_worth", lambda *_: True)
        yield


def run_apart(op: ProductOfRows, inputs: Sequence[Array]) -> Array:
    """Return what the kernels of the steps, by themselves, and of the product make."""
    taken = op.taken
    (made,) = lower_and_run(op.parts.maker, inputs[:taken], (), (True,))
    seen = made if op.view is None else made.reshape(op.view)
    return lower_and_run(op.parts.product, [seen, *inputs[taken:]], (), (True,))[0]


def lower(op: Any, inputs: Sequence[Array], choices: Sequence[int] | None = None, target: str = "sm_90") -> Any:
    """Return an emitter that has run, or kept, what an operator launches, and the result's slot."""
    emit = DirectEmitter(choices) if target == "sm_90" else PlanningEmitter(choices)
    emit.target = Target.named(target)
    slots = tuple(emit.slot(each) for each in inputs)
    (spec,) = op.infer(*(slot.spec for slot in slots))
    y = emit.fresh(spec.shape, spec.dtype)
    op.lower(emit, slots, (y,))
    return emit, y


def list_sources(emit: DirectEmitter) -> list[str]:
    return [kernel.source for kernel, _ in emit.launches]


@settings(max_examples=8, deadline=None)
@given(
    kind=st.sampled_from(("rms", "layer", "softmax", "gate", "skip", "mean")),
    rows=st.integers(1, MOST_ROWS),
    eights=st.integers(1, 90),
    columns=st.integers(1, 12),
    types=st.tuples(st.sampled_from((FLOAT, HALF, BFLOAT16)), st.sampled_from((HALF, BFLOAT16))),
    seed=st.integers(0, 2**32 - 1),
)
def test_kernel_gives_the_bits_of_the_kernels_of_its_operators(
    kind: str, rows: int, eights: int, columns: int, types: tuple[Any, Any], seed: int
) -> None:
    rng, (x_type, stored) = np.random.default_rng(seed), types
    inner = 8 * eights
    inputs = [rng.normal(size=shape).astype(x_type) for shape in shapes_of(kind, (rows,), inner)]
    inputs.append(rng.normal(size=(inner, 8 * columns)).astype(stored))
    op = make_product(kind, stored)
    emit, y = lower(op, inputs)
    np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(run_apart(op, inputs)))


@pytest.mark.parametrize("kind", ["rms", "softmax", "gate"])
def test_blocks_of_a_slice_keep_its_columns_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [replace(form, costs=replace(form.costs, join=0.0, each_slice=0.0)) for form in few_launch.FORMS]
    monkeypatch.setattr(few_launch, "FORMS", tuple(free))
    inputs = [numbers(FLOAT, *shape) for shape in shapes_of(kind, (3,), 1032)]
    inputs.append(numbers(HALF, 1032, 8))
    op = make_product(kind, HALF)
    emit, y = lower(op, inputs)
    ((kernel, arguments),) = emit.launches
    assert kernel.source == "mma_rows.cu" and arguments[5] is not None, "it has slices"
    np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(run_apart(op, inputs)))


@pytest.mark.parametrize("kind", ["rms", "layer", "softmax", "gate", "skip", "mean"])
def test_one_launch_makes_rows_and_product(kind: str) -> None:
    for inner, columns in ((768, 2304), (2048, 512))[: 1 if kind == "skip" else 2]:
        inputs = [numbers(FLOAT, *shape) for shape in shapes_of(kind, (1,), inner)]
        op = make_product(kind, HALF)
        emit, _ = lower(op, [*inputs, numbers(HALF, inner, columns)], target="sm_90a")
        assert list_sources(emit) == ["mma_rows.cu"]


def make(rows: int, inner: int, columns: int, stored: Any = HALF) -> list[Array]:
    return [numbers(FLOAT, rows, inner), numbers(FLOAT, inner), numbers(stored, inner, columns)]


RMS = make_product("rms", HALF)


def test_rows_are_made_in_front_where_blocks_would_take_longer_or_kernels_take_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prologue, "_is_worth", _is_worth)
    in_front = ["rows.cu", "mma_few.cu"]
    assert list_sources(lower(RMS, make(8, 2048, 512), target="sm_90a")[0]) == in_front
    assert list_sources(lower(RMS, make(1, 8200, 512), target="sm_90a")[0]) == in_front
    assert list_sources(lower(RMS, make(17, 64, 64), target="sm_90a")[0]) == ["rows.cu", "mma_gemm.cu"]
    assert list_sources(lower(RMS, make(1, 64, 64), target="sm_75")[0])[0] == "rows.cu"
    assert "mma_rows.cu" not in list_sources(lower(RMS, make(1, 64, 64), target="pixel_90")[0])
    assert list_sources(lower(RMS, make(1, 2048, 16384), target="sm_90a")[0]) == ["mma_rows.cu"]
    gate = [*(numbers(FLOAT, *shape) for shape in shapes_of("gate", (1,), 2048)), numbers(HALF, 2048, 512)]
    assert list_sources(lower(make_product("gate", HALF), gate, target="sm_90a")[0]) == ["mma_rows.cu"]


def test_sizes_of_a_class_take_the_kernel_of_the_upper_end() -> None:
    end, _ = lower(RMS, make(3, 264, 64))
    assert list_sources(end) == ["mma_rows.cu"]
    for rows in (1, 2):
        inputs = make(rows, 264, 64)
        emit, y = lower(RMS, inputs, end.choices)
        assert emit.launches[0][0] == end.launches[0][0] and emit.choices == end.choices
        np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(run_apart(RMS, inputs)))
    with pytest.raises(PlanError, match="upper end"):
        lower(RMS, make(3, 266, 64)[:2] + [numbers(HALF, 266, 63)], end.choices)


def test_texts_of_kernels_that_are_compiled_together_count_once() -> None:
    """Kernels of one file that share rows, or an epilogue, are one program."""
    residual = ProductOfRows(RMS.maker, RESIDUAL, RMS.taken)
    texts = []
    for op, more in ((RMS, []), (residual, [numbers(FLOAT, 1, 64)])):
        emit, _ = lower(op, [*make(1, 264, 64), *more])
        texts.append(emit.launches[0][0].text)
    assert texts[1].startswith(texts[0]) and texts[1].count("#ifndef") == 2


def test_inputs_of_the_maker_are_asked_for() -> None:
    for count in (0, 3):
        with pytest.raises(InputError, match="expects taken of 1 to 2 inputs, got"):
            ProductOfRows(("Softmax", ()), ("MatMul", ()), count).infer(
                TensorSpec((2, 3), FLOAT), TensorSpec((3, 4), FLOAT)
            )


MAKERS = {
    "operator": (("LayerNormalization", ()), 3),
    "without_bias": (("LayerNormalization", ()), 2),
    "epilogue": (("gpuexec.FusedRMSNormalization", (("steps", (("Relu", (), (-1,)),)), ("results", (1,)))), 2),
    "pointwise": (("Relu", ()), 1),
}


@pytest.mark.parametrize(("maker", "count"), MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("rows", [1, 8])
def test_operators_of_each_kind_make_rows(maker: tuple[Any, ...], count: int, rows: int) -> None:
    inputs = [numbers(HALF, rows, 1536), *[numbers(HALF, 1536)] * (count - 1), numbers(HALF, 1536, 64)]
    op = ProductOfRows(maker, ("MatMul", ()), count)
    emit, y = lower(op, inputs)
    assert rows > 1 or list_sources(emit) == ["mma_rows.cu"]
    np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(run_apart(op, inputs)))


@pytest.mark.parametrize(("kind", "inner", "columns"), [("rms", 512, 128), ("layer", 1032, 64), ("gate", 2048, 64)])
def test_launches_move_about_what_is_counted(kind: str, inner: int, columns: int) -> None:
    arrays = {f"x{n}": numbers(FLOAT, *shape) for n, shape in enumerate(shapes_of(kind, (1,), inner))}
    arrays["w"] = numbers(HALF, inner, columns)
    builder = GraphBuilder()
    values = [builder.input(name, *array.shape, dtype=array.dtype) for name, array in arrays.items()]
    op = make_product(kind, HALF)
    graph = builder.graph(builder.node(op, *values))
    template = plan_graph(graph, specs_of(arrays), Target.named("sm_90"))
    (launch,) = template.plan.segment.commands
    assert isinstance(launch, Launch)
    device = SimulatorDevice(lambda source: [k.expression for k in template.plan.kernels()], count_kernels=True)
    try:
        run_template(template, graph, arrays, device)
        (counts,) = device.counts
    finally:
        device.close()
    work = describe_work(launch)
    assert work.matrix_products == counts.multiply_adds.issued
    assert work.l2_nbytes == pytest.approx(counts.l2_read_nbytes + counts.l2_written_nbytes, rel=0.05)
    assert work.wavefronts == pytest.approx(count_wavefronts(counts, 1), rel=0.1)
