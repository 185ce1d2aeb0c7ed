"""Benchmark of kernel families on a GPU, each as a graph of one operator, beside PyTorch and the ceilings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuexec.devices.device import Device, Region
from gpuexec.devices.recording import record_graph
from gpuexec.errors import GpuexecError
from gpuexec.ir.plan import Segment
from gpuexec.ir.precision import STRICT
from gpuexec.planner.edges import Edge
from tests.bench.architectures import ArchitectureBuilder
from tests.bench.gpu_ceilings import COPY, PRODUCT
from tests.bench.gpu_contenders import (
    GRAPH,
    MAX_ERRORS,
    OURS,
    Budget,
    Contender,
    Turns,
    capture,
    compare,
    noting,
    open_torch,
    take_turns,
)
from tests.bench.measure import percentile
from tests.bench.models import BenchModel
from tests.bench.tables import Figures
from tests.devices.execute import LoadedPlan

COLUMNS = (
    "operator",
    "sizes",
    "commands",
    "ours p50 (us)",
    "p10",
    "p90",
    "torch p50 (us)",
    "torch p10",
    "torch p90",
    "torch / ours",
    "GB/s",
    "TFLOP/s",
    "of ceiling",
    "max error",
)
_TIMES, _IN_A_ROW = 10, 3
Sizes = tuple[int, ...]
# What PyTorch does, given torch and the tensors by name.
Call = Callable[[Any, Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """An operator at some size.

    Attributes:
        name: Of the operator.
        sizes: What ``make`` takes.
        make: Makes a model of one node, its input ``x``, weights ``w`` and ``b``.
        call: The same in PyTorch.
        flops: Operations that the products of these sizes take; 0: it is bound by bytes alone.
    """

    name: str
    sizes: Sizes
    make: Callable[[Case], BenchModel]
    call: Call
    flops: int = 0


def measure_kernels(
    device: Device, cases: Sequence[Case], turns: Turns, budget: Budget, ceilings: Mapping[str, float]
) -> list[Figures]:
    """Measure cases until the budget is used up; those left are named."""
    figures = Figures(f"Kernels on {device.name}, each as a graph of {_TIMES} in a row", COLUMNS)
    torch: Any = None
    with noting("torch", figures.notes):
        torch = open_torch()
    for index, case in enumerate(cases):
        if budget.left_s < 0:
            figures.notes.append(f"Dropped, no time is left: {', '.join(map(_spell, cases[index:]))}.")
            break
        try:
            _measure_case(figures, device, torch, case, turns, budget, ceilings)
        except GpuexecError as error:
            figures.notes.append(f"{_spell(case)} failed: {error}")
    figures.notes.append(
        "Time of one operator in the graph. of ceiling: the bytes it must move by the fastest copy, or its operations "
        "by the fastest float32 product, whichever takes longer, over its time. Inputs below 50 MB may lie in L2."
    )
    return [figures]


def _measure_case(
    figures: Figures,
    device: Device,
    torch: Any,
    case: Case,
    turns: Turns,
    budget: Budget,
    ceilings: Mapping[str, float],
) -> None:
    bench = case.make(case)
    template = bench.make_template(device.target)
    constants = {value.name: array for value, array in template.graph.constants.items()}
    segment = template.plan.segment
    commands = len(segment.commands)
    with LoadedPlan(template.plan, constants, device, partial(_record_repeated, times=_TIMES)) as loaded:
        expected = loaded.run(bench.inputs)[0]
        submit = partial(loaded.recording.submit, loaded.stream, loaded.bindings)
        contenders = [Contender(OURS, submit, loaded.stream.synchronize, lambda: expected)]
        error: float | None = None
        if torch is not None:
            with noting(f"torch, {_spell(case)}", figures.notes):
                contenders.append(_open_torch_case(torch, case, bench))
                error = compare(contenders[-1].read(), expected)
        is_same = error is None or error <= MAX_ERRORS[STRICT]
        samples = take_turns(contenders if is_same else contenders[:1], Turns(turns.count, 0, _IN_A_ROW), budget)
    times = {name: [each * 1e3 / _TIMES for each in taken.in_a_row] for name, taken in samples.items()}
    ours, theirs = (_spread(times.get(name)) for name in (OURS, GRAPH))
    nbytes = sum(array.nbytes for array in (*bench.inputs.values(), *bench.weights.values(), expected))
    gigabytes, teraflops = nbytes / ours[0] / 1e3, case.flops / ours[0] / 1e6
    shares = [gigabytes / ceilings[COPY]] if COPY in ceilings else []
    shares += [teraflops / ceilings[PRODUCT]] if PRODUCT in ceilings else []
    figures.add(
        case.name,
        "x".join(map(str, case.sizes)),
        commands,
        *ours,
        *theirs,
        theirs[0] / ours[0] if theirs[0] is not None else None,
        gigabytes,
        teraflops if case.flops else None,
        f"{max(shares):.0%}" if shares else None,
        None if error is None else f"{error:.1e}",
    )
    if not is_same:
        figures.notes.append(
            f"{_spell(case)}: torch DIFFERS by {error:.1e} of the largest output, so it was not timed."
        )


def _record_repeated(device: Device, segment: Segment, memory: Mapping[int, Region], times: int) -> Any:
    """Record a graph of a segment several times, each after the one before."""
    return record_graph(device, repeat_segment(segment, times), memory)  # type: ignore[arg-type]


def repeat_segment(segment: Segment, times: int) -> Segment:
    """Return a segment several times in a row."""
    count = len(segment.commands)
    befores, afters = ({edge[end] for edge in segment.edges} for end in (0, 1))
    lasts, firsts = ([i for i in range(count) if i not in within] for within in (befores, afters))
    edges: list[Edge] = []
    for start in range(0, count * times, count):
        edges += [(start + a, start + b) for a, b in segment.edges]
        if start:
            edges += [(start - count + a, start + b) for a in lasts for b in firsts]
    return Segment(segment.commands * times, tuple(edges), segment.origins * times)


def _open_torch_case(torch: Any, case: Case, bench: BenchModel) -> Contender:
    arrays = {**bench.inputs, **bench.weights}
    tensors = {name: torch.from_numpy(array).to("cuda") for name, array in arrays.items()}
    graph = capture(torch, lambda: case.call(torch, tensors), _TIMES)
    return Contender(GRAPH, graph.submit, torch.cuda.synchronize, lambda: graph.read().cpu().numpy())


def _spread(times: Sequence[float] | None) -> tuple[Any, Any, Any]:
    if times is None:
        return None, None, None
    p50, p10, p90 = (percentile(times, share) for share in (0.5, 0.1, 0.9))
    return p50, p10, p90


def _spell(case: Case) -> str:
    return f"{case.name} {'x'.join(map(str, case.sizes))}"


def _make_inputs(build: ArchitectureBuilder, **shapes: Sizes) -> dict[str, np.ndarray[Any, Any]]:
    return {name: build.random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def _make_product(case: Case) -> BenchModel:
    rows, inner, columns = case.sizes
    build = ArchitectureBuilder(21, True)
    y = build.node("MatMul", "x", build.parameter("w", inner, columns))
    return build.finish("product", _make_inputs(build, x=(rows, inner)), {y: (rows, columns)})


def _product(rows: int, inner: int, columns: int) -> Case:
    call = lambda torch, t: torch.matmul(t["x"], t["w"])
    return Case("product", (rows, inner, columns), _make_product, call, 2 * rows * inner * columns)


def _convolution(ins: int, outs: int, extent: int, taps: int, stride: int = 1, group: int = 1) -> Case:
    """Return a convolution of one image with padding that keeps its extent, but for the stride."""
    result = -(-extent // stride)

    def make(case: Case) -> BenchModel:
        build = ArchitectureBuilder(22, True)
        w, bias = build.parameter("w", outs, ins // group, taps, taps), build.parameter("b", outs, scale=0.1)
        pads = {"strides": [stride] * 2, "pads": [taps // 2] * 4, "group": group}
        y = build.node("Conv", "x", w, bias, kernel_shape=[taps] * 2, **pads)
        return build.finish(
            "convolution", _make_inputs(build, x=(1, ins, extent, extent)), {y: (1, outs, result, result)}
        )

    def call(torch: Any, t: Mapping[str, Any]) -> Any:
        return torch.nn.functional.conv2d(t["x"], t["w"], t["b"], stride=stride, padding=taps // 2, groups=group)

    flops = 2 * outs * result**2 * (ins // group) * taps**2
    return Case("convolution", (ins, outs, extent, taps, stride, group), make, call, flops)


def _elementwise(operator: str, inputs: int, call: Call, count: int) -> Case:
    def make(case: Case) -> BenchModel:
        build = ArchitectureBuilder(23, True, opset=20)
        names = ["x", "y"][:inputs]
        y = build.node(operator, *names)
        return build.finish(operator, _make_inputs(build, **dict.fromkeys(names, (count,))), {y: (count,)})

    return Case(operator, (count,), make, call)


def _by_rows(
    operator: str,
    call: Call,
    rows: int,
    columns: int,
    shape: Sizes,
    **attributes: Any,
) -> Case:
    """Return an operator on a matrix; ``shape`` is that of its output."""

    def make(case: Case) -> BenchModel:
        build = ArchitectureBuilder(24, True)
        others: list[str] = []
        if operator == "LayerNormalization":
            others = [build.parameter("w", columns, mean=1.0, scale=0.1), build.parameter("b", columns, scale=0.1)]
        elif operator == "ReduceSum":
            others = [build.constant([1], np.int64)]
        y = build.node(operator, "x", *others, **attributes)
        return build.finish(operator, _make_inputs(build, x=(rows, columns)), {y: shape})

    return Case(operator, (rows, columns), make, call)


def _softmax(rows: int, columns: int) -> Case:
    return _by_rows("Softmax", lambda torch, t: t["x"].softmax(-1), rows, columns, (rows, columns), axis=-1)


def _norm(rows: int, columns: int) -> Case:
    def call(torch: Any, t: Mapping[str, Any]) -> Any:
        return torch.nn.functional.layer_norm(t["x"], (columns,), t["w"], t["b"], 1e-5)

    return _by_rows("LayerNormalization", call, rows, columns, (rows, columns))


def _sum(rows: int, columns: int) -> Case:
    return _by_rows("ReduceSum", lambda torch, t: t["x"].sum(1), rows, columns, (rows,), keepdims=0)


def _transpose(rows: int, columns: int) -> Case:
    call = lambda torch, t: t["x"].t().contiguous()
    return _by_rows("Transpose", call, rows, columns, (columns, rows), perm=[1, 0])


def _attention(heads: int, length: int, depth: int) -> Case:
    shape = (1, heads, length, depth)

    def make(case: Case) -> BenchModel:
        build = ArchitectureBuilder(25, True, opset=23)
        inputs = _make_inputs(build, x=shape, k=shape, v=shape)
        return build.finish("attention", inputs, {build.node("Attention", *inputs): shape})

    def call(torch: Any, t: Mapping[str, Any]) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(t["x"], t["k"], t["v"])

    return Case("attention", (heads, length, depth), make, call, 4 * prod(shape) * length)


def _list_cases(large: Callable[..., Any], is_small: bool) -> list[Case]:
    add = lambda torch, t: t["x"] + t["y"]
    gelu = lambda torch, t: torch.nn.functional.gelu(t["x"])
    return [
        _product(*large(128, 768, 768)),
        _product(*large(4096, 4096, 4096)),
        _convolution(*large(64, 64, 56), 3),
        _product(*large(1, 4096, 16384)),
        _elementwise("Add", 2, add, *large(1 << 26)),
        _softmax(*large(8192, 8192)),
        _norm(*large(8192, 8192)),
        _attention(*large(12, 512, 64)),
        _convolution(*large(512, 512, 7), 3),
        _convolution(*large(256, 64, 56), 1),
        _product(*large(128, 768, 3072)),
        _product(*large(128, 3072, 768)),
        _convolution(*((8, 8, 6) if is_small else (144, 144, 56)), 3, group=8 if is_small else 144),
        _convolution(*((3, 4, 8) if is_small else (3, 64, 224)), 7, 2),
        _sum(*large(8192, 8192)),
        _transpose(*large(8192, 8192)),
        _elementwise("Gelu", 1, gelu, *large(1 << 26)),
        _softmax(*large(1536, 128)),
        _norm(*large(128, 768)),
    ]


def list_cases() -> list[Case]:
    """Return the operators and sizes to measure, the most telling first."""
    return _list_cases(lambda *sizes: sizes, False)


def list_small_cases() -> list[Case]:
    """Return the same at sizes that the simulator runs."""
    return _list_cases(lambda *sizes: tuple(max(1, min(each, 4 + i)) for i, each in enumerate(sizes)), True)
