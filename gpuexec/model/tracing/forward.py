"""Call of a loaded model inside an array program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Graph, Node, Value, bodies, with_bodies
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import DeclaredSpec
from gpuexec.model.model import Model
from gpuexec.model.outputs import Outputs
from gpuexec.model.ports import ModelPort
from gpuexec.model.tracing.promotion import as_symbolic, check_numbers
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import Tracer, find_tracer
from gpuexec.passes.add_random_key import find_keys

__all__ = ["forward"]


def forward(model: Model, *arrays: Any, **named: Any) -> Outputs[Any]:
    """Call a model in the program, as often as wanted; weights are shared, not copied.

    Args:
        model: Result of `load` or `graph`.
        *arrays: Its inputs, in order.
        **named: Inputs by name.

    Returns:
        Its outputs, one or several, by position and by name.

    Raises:
        InputError: An input is missing, unknown or does not fit; or the model has memories, or takes or gives strings
            or containers.
    """
    # Random operators get new keys, with those of the program.
    keys = find_keys(model.graph)
    names = ", ".join(memory.input for memory in model.memories if memory.input not in keys)
    if names:
        raise InputError(f"{model!r} has memories ({names}); compose it without them and use bind_state on the result.")
    for port in (*model.inputs, *model.outputs):
        check_numbers(f"{port.name!r} of {model.graph.name!r}", port.spec.dtype)
    tracer = find_tracer(*arrays, *named.values())
    given = _match(model, arrays, named)
    graph = model.info.graph
    ports = {port.name: port for port in model.inputs}
    values: dict[Value, Value] = {}
    for value in graph.inputs:
        array = as_symbolic(given[value.name], None, tracer)
        _check_fit(ports[value.name], array)
        values[value] = tracer.take(array)
    for value, content in graph.constants.items():
        values[value] = tracer.adopt_constant(value.name, content)
    for node in graph.nodes:
        _add_copy(tracer, node, values)
    return Outputs({value.name: _read_output(tracer, values[value], value.declared) for value in graph.outputs})


def _match(model: Model, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    names = [port.name for port in model.inputs]
    if len(arrays) > len(names):
        raise InputError(f"{model!r} has {len(names)} inputs, got {len(arrays)} arrays.")
    given = dict(zip(names, arrays, strict=False))
    wrong = [name for name in named if name not in names or name in given]
    given.update(named)
    missing = [name for name in names if name not in given]
    if wrong or missing:
        said = ", ".join(
            [*(f"{name!r} is unknown or given twice" for name in wrong), *(f"{n!r} is missing" for n in missing)]
        )
        raise InputError(f"forward of {model.info.graph.name!r}: {said}; its inputs are {', '.join(names)}.")
    return given


def _check_fit(port: ModelPort, array: SymbolicArray) -> None:
    if array.dtype != port.spec.dtype:
        raise InputError(
            f"Input {port} got {array!r}; convert it by x.astype({port.spec.dtype.name!r}).", value=port.name
        )
    dims = port.spec.dims
    if dims is None or array.dims is None:
        return
    pairs = zip(dims, array.dims, strict=False)
    if len(dims) != len(array.dims) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        raise InputError(f"Input {port} got {array!r}.", value=port.name)


def _add_copy(tracer: Tracer, node: Node, values: dict[Value, Value]) -> None:
    outputs = []
    for value in node.outputs:
        if value is not None:
            values[value] = Value(tracer.unique_name(value.name), value.declared)
        outputs.append(None if value is None else values[value])
    inputs = tuple(None if value is None else values[value] for value in node.inputs)
    copied = Node(_copy_bodies(node.operator), inputs, tuple(outputs), tracer.unique_name(node.name))
    if not bodies(node.operator):
        tracer.add_node(copied)
        return
    try:
        tracer.add_node(copied)
    except InputError:
        # A loop's results may depend on its trips, which are known at run time.
        tracer.add_node(copied, is_inferred=False)


def _copy_bodies(op: Operator) -> Operator:
    """Return an operator whose bodies have values of their own: no value belongs to two graphs."""
    inner = bodies(op)
    return with_bodies(op, [_copy_graph(body) for body in inner]) if inner else op


def _copy_graph(graph: Graph) -> Graph:
    values = {value: Value(value.name, value.declared) for value in graph.values()}
    nodes = tuple(
        Node(
            _copy_bodies(node.operator),
            tuple(None if value is None else values[value] for value in node.inputs),
            tuple(None if value is None else values[value] for value in node.outputs),
            node.name,
        )
        for node in graph.nodes
    )
    return replace(
        graph,
        inputs=tuple(values[value] for value in graph.inputs),
        outputs=tuple(values[value] for value in graph.outputs),
        nodes=nodes,
        constants={values[value]: array for value, array in graph.constants.items()},
    )


def _read_output(tracer: Tracer, value: Value, declared: DeclaredSpec | None) -> SymbolicArray:
    spec = tracer.trials.spec_of(value)
    if spec is None:
        if declared is None:
            raise InputError(f"Output {value} depends on content, and the model does not declare its type.")
        # Names of dimensions are the other model's.
        dims = None if declared.dims is None else tuple(d if isinstance(d, int) else None for d in declared.dims)
        spec = tracer.trials.declare(value, (declared.dtype, dims))
    return SymbolicArray(tracer, value, *spec)
