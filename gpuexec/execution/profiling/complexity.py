"""Static cost of a model's nodes: operations and bytes by shapes, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuexec.errors import InputError
from gpuexec.execution.profiling.layers import count_node_flops
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.model.initial_state import find_initial_specs
from gpuexec.model.model import Model
from gpuexec.model.ports import ModelPort
from gpuexec.planner.analyse import Analyser
from gpuexec.planner.partitioner import find_partition


@dataclass(frozen=True, slots=True)
class WorkRow:
    """A node: its operations, and the bytes of its inputs, outputs and weights (which are among the inputs).

    None where there is no formula, or where shapes depend on data that only a run knows.
    """

    node: str
    operator: str
    flops: int | None
    bytes_read: int | None
    bytes_written: int | None
    weight_bytes: int


def count_work(model: Model, inputs: Mapping[str, object] | None = None) -> tuple[WorkRow, ...]:
    """Return the cost of each node of a model, in order. Bodies of branches and loops are not counted.

    Args:
        model: The model.
        inputs: A shape (a tuple) or an array by input; arrays where shapes follow from content. Inputs of fixed shape
            need not be given.

    Raises:
        InputError: An input is missing, misspelt, or does not fit the model; names it.

    Example:
        >>> rows = gx.count_work(model, {"image": (8, 1, 8, 8)})
        >>> sum(row.flops for row in rows if row.operator == "Gemm")
        51280
    """
    given = dict(inputs or {})
    unknown = sorted(given.keys() - {port.name for port in model.ports})
    if unknown:
        names = ", ".join(port.name for port in model.ports)
        raise InputError(f"The model has no input {unknown[0]!r}; it has {names}.", value=unknown[0])
    ports = [port for port in model.ports if port in model.inputs or port.name in given]
    named = {port.name: _describe(model, port, given.get(port.name)) for port in ports}
    if model.memories:
        named = {**find_initial_specs(model.graph, model.memories, model.dims, named), **named}
    specs = _infer_known(model.graph, named)
    return tuple(_count(node, specs, model.graph) for node in model.graph.nodes)


def _infer_known(graph: Graph, named: Mapping[str, TensorSpec]) -> Mapping[Value, TensorSpec]:
    """Infer the specs of all values that follow from the inputs without running anything."""
    given = {value: named[value.name] for value in graph.inputs}
    cut = find_partition(graph, given, Target.named("cpu"))
    specs: dict[Value, TensorSpec] = {value: TensorSpec.of(array) for value, array in graph.constants.items()}
    specs.update({value: TensorSpec.of(array) for value, array in (cut.constants or {}).items()})
    specs.update(given)
    if cut.ready is not None:
        specs.update(Analyser(cut.ready).run({value.name: specs[value] for value in cut.ready.inputs}).specs)
    return specs


def _count(node: Node, specs: Mapping[Value, TensorSpec], graph: Graph) -> WorkRow:
    return WorkRow(
        node.name,
        node.operator.name,
        count_node_flops(node, specs),
        _add_up(node.inputs, specs),
        _add_up(node.outputs, specs),
        sum(graph.constants[value].nbytes for value in node.inputs if value is not None and value in graph.constants),
    )


def _add_up(values: Sequence[Value | None], specs: Mapping[Value, TensorSpec]) -> int | None:
    sizes = [specs[value].nbytes if value in specs else None for value in values if value is not None]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _describe(model: Model, port: ModelPort, item: Any) -> TensorSpec:
    if item is not None and not isinstance(item, (tuple, list)):
        spec = TensorSpec.of(item)
        if spec.dtype != port.spec.dtype:
            raise InputError(f"Input {port.name!r} expects {port.spec}, got {spec}.", value=port.name)
        return spec.with_value(item)
    shape = _find_fixed(model, port) if item is None else tuple(item)
    if not all(isinstance(extent, int) and extent >= 0 for extent in shape) or not _fits(port, shape):
        raise InputError(f"Input {port.name!r} expects {port.spec}, got the shape {shape}.", value=port.name)
    return TensorSpec(shape, port.spec.dtype)


def _find_fixed(model: Model, port: ModelPort) -> tuple[int, ...]:
    extents = [model.dims.get(dim) if isinstance(dim, str) else dim for dim in port.spec.dims or ()]
    fixed = tuple(extent for extent in extents if isinstance(extent, int))
    if port.spec.dims is None or len(fixed) != len(extents):
        raise InputError(
            f"Input {port.name!r} ({port.spec}) has free dimensions; give a shape or an array.", value=port.name
        )
    return fixed


def _fits(port: ModelPort, shape: tuple[int, ...]) -> bool:
    """Return whether a shape matches an input's declaration."""
    dims = port.spec.dims
    if dims is None:
        return True
    return len(dims) == len(shape) and all(
        dim in (extent, None) or isinstance(dim, str) for dim, extent in zip(dims, shape, strict=True)
    )
