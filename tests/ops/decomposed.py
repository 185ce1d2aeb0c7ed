"""Cases of decomposed operators: the operator itself, and its parts on the host and by their kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpuexec.ir.graphs import Graph, Node, Value, check
from gpuexec.ir.operator import Operator
from gpuexec.passes.decompose import decompose
from tests.ops.direct import DirectEmitter, lower_and_run
from tests.ops.harness import Array, Case, build_operator, check_compute
from tests.ops.tolerance import to_bits

Run = Callable[[Operator, Sequence[Array | None]], Sequence[Array | None]]


def check_parts(case: Case) -> None:
    """Check an operator by its oracle, and that the parts it is taken into give the same bits."""
    op, inputs = build_operator(case)
    computed = op.compute(*inputs)
    check_compute(case, op, inputs, set(range(len(inputs))), computed)
    values = [None if x is None else Value(f"x{i}") for i, x in enumerate(inputs)]
    outputs = [Value(f"y{i}") if wanted else None for i, wanted in enumerate(case.outputs)]
    given = tuple(value for value in values if value is not None)
    made = tuple(value for value in outputs if value is not None)
    graph = decompose(Graph(given, made, (Node(op, tuple(values), tuple(outputs), "node"),), {}))
    check(graph)
    assert all(node.operator.name != op.name for node in graph.nodes)
    new = {value.name for node in graph.nodes for value in node.outputs if value is not None and value not in made}
    assert all(name.startswith(("node.", *(value.name + "." for value in made))) for name in new)
    arrays = {value: x for value, x in zip(values, inputs, strict=True) if value is not None and x is not None}
    for run in (compute, run_kernels):
        content = run_nodes(graph, arrays, run)
        for index, value in enumerate(outputs):
            if value is not None:
                expected, got = computed[index], content[value]
                assert expected is not None
                assert (got.dtype, got.shape) == (expected.dtype, expected.shape), (case.id, value)
                np.testing.assert_array_equal(to_bits(got), to_bits(expected), err_msg=f"{case.id}: {value}")


def run_nodes(graph: Graph, arrays: dict[Value, Array], run: Run) -> dict[Value, Array]:
    """Return the content of every value, by running one node after the other."""
    content = dict(arrays)
    for node in graph.nodes:
        results = run(node.operator, [None if value is None else content[value] for value in node.inputs])
        for value, result in zip(node.outputs, results, strict=False):
            if value is not None:
                assert result is not None
                content[value] = result
    return content


def compute(op: Operator, inputs: Sequence[Array | None]) -> Sequence[Array | None]:
    """Run a node on the host."""
    return op.compute(*inputs)


def run_kernels(op: Operator, inputs: Sequence[Array | None]) -> Sequence[Array | None]:
    """Run a node by its kernels, with all inputs known, if there are any."""
    return lower_and_run(op, inputs, range(len(inputs))) if inputs else op.compute()


def list_launches(op: Operator, inputs: Sequence[Array | None], known: Sequence[int] = ()) -> list[str]:
    """Return the kernels that an operator launches, those that write nothing included."""
    emit = DirectEmitter()
    slots = tuple(None if x is None else emit.slot(x, i in known) for i, x in enumerate(inputs))
    specs = op.infer(*(None if slot is None else slot.spec for slot in slots))
    assert op.lower is not None
    op.lower(emit, slots, tuple(emit.fresh(spec.shape, spec.dtype) for spec in specs))
    return [str(kernel) for kernel, _ in emit.launches]
