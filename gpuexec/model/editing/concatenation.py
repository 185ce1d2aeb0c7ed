"""Model concatenation: the outputs of the first model feed the inputs of the second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuexec.errors import InputError, name_after
from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.operator import build
from gpuexec.ir.spec import DeclaredSpec, Dim, is_container
from gpuexec.model.editing.editable_model import EditableModel
from gpuexec.model.editing.value_edits import copy_graph, exchange
from gpuexec.planner.classes import DeclaredDims, fix_dim

# Inputs of the second model by outputs of the first.
Connections = Mapping[str, str | Sequence[str]]


def join(
    first: EditableModel, second: EditableModel, connections: Connections | None, *, keeps_first: bool
) -> EditableModel:
    """Join two models into one.

    Its inputs are those of the first and those of the second that nothing is connected to; its outputs those of the
    second and those of the first that are connected to nothing. Names that both have are made distinct, and so are
    dimensions, unless a connection says that they are one.

    Args:
        first: The model that runs first.
        second: The model that takes its outputs.
        connections: Inputs of the second by output of the first; None where there is one of each.
        keeps_first: Whether it is the first whose names stay where both have one.

    Raises:
        InputError: There is no such output or input, types or extents contradict each other, or what is declared of a
            dimension does.
    """
    if not set(first.graph.values()).isdisjoint(second.graph.values()):
        second = replace(second, graph=copy_graph(second.graph))
    links = _read_links(first, second, connections)
    dims = _unify(first, second, links)
    second, links = _rename_dims(second, links, dims)
    first, second, links = _make_names_unique(first, second, links, keeps_first=keeps_first)
    declared = _merge_dims(first, second)
    tail, identities = _pass_on(second.graph, links)
    connected, ends = set(links.values()), {memory.output for memory in first.memories}
    left = [value for value in first.graph.outputs if value not in connected or value.name in ends]
    graph = Graph(
        (*first.graph.inputs, *(value for value in tail.inputs if value not in connected)),
        tuple(dict.fromkeys([*tail.outputs, *left])),
        (*first.graph.nodes, *tail.nodes, *identities),
        {**first.graph.constants, **tail.constants},
        first.graph.name if keeps_first else second.graph.name,
    )
    return EditableModel(graph, (*first.memories, *second.memories), declared).with_graph(graph)


def _read_links(first: EditableModel, second: EditableModel, connections: Connections | None) -> dict[Value, Value]:
    """Return the links: the first model's output by the second's input."""
    outputs = {value.name: value for value in first.outputs}
    inputs = {value.name: value for value in second.inputs}
    titles = f"{first.graph.name!r} makes {', '.join(outputs)}; {second.graph.name!r} takes {', '.join(inputs)}"
    if connections is None:
        if len(outputs) != 1 or len(inputs) != 1:
            raise InputError(f"{titles}. Say which goes where: {{'output': 'input'}}.")
        return dict(zip(inputs.values(), outputs.values(), strict=True))
    if not isinstance(connections, Mapping) or not connections:
        raise InputError(f"{titles}. Connections are inputs by output, {{'output': 'input'}}, got {connections!r}.")
    links: dict[Value, Value] = {}
    for made, names in connections.items():
        if not isinstance(names, str | Sequence):
            raise InputError(f"{made!r} goes to an input or a list of them, got {names!r}: {titles}.")
        for name in (names,) if isinstance(names, str) else names:
            if made not in outputs or name not in inputs:
                lost = made if made not in outputs else name
                raise InputError(f"There is no {lost!r} to connect {made!r} to {name!r}: {titles}.", value=lost)
            if inputs[name] in links:
                raise InputError(f"Input {name!r} is connected twice.", value=name)
            links[inputs[name]] = outputs[made]
    return links


def _unify(first: EditableModel, second: EditableModel, links: Mapping[Value, Value]) -> dict[str, Dim]:
    """Return the joined model's names of the second model's dimensions.

    Raises:
        InputError: A connection can't be; names both ends with their types.
    """
    called: dict[str, Dim] = {}
    for target, source in links.items():
        taken, made = target.declared, source.declared
        if taken is None or made is None:
            continue
        where = f"{source.name!r} ({made}) can't be {target.name!r} ({taken})"
        if not _are_alike(taken, made):
            cure = "" if is_container(taken.dtype) or is_container(made.dtype) else " Put a Cast between them."
            raise InputError(f"{where}: the dtypes differ.{cure}", value=target.name)
        if taken.dims is None or made.dims is None:
            continue
        if len(taken.dims) != len(made.dims):
            raise InputError(f"{where}: they have {len(made.dims)} and {len(taken.dims)} axes.", value=target.name)
        for axis, (theirs, ours) in enumerate(zip(taken.dims, made.dims, strict=True)):
            known, wanted = fix_dim(ours, first.dims), fix_dim(theirs, second.dims)
            if isinstance(theirs, str) and ours is not None:
                before = fix_dim(called.setdefault(theirs, ours), first.dims)
                wanted = before if isinstance(before, int) and not isinstance(wanted, int) else wanted
            if isinstance(wanted, int) and isinstance(known, int) and wanted != known:
                raise InputError(f"{where}: axis {axis} is {known} here and {wanted} there.", value=target.name)
    # Dimensions are unified only by a connection.
    known_dims, names = _dims_of(first.graph), {*_dims_of(first.graph), *_dims_of(second.graph)}
    for name in _dims_of(second.graph):
        if name in known_dims and name not in called:
            called[name] = take_free(name, names)
    return called


def _are_alike(first: DeclaredSpec, second: DeclaredSpec) -> bool:
    """Return whether two types have one dtype, and so do their elements, as far as both declare them."""
    if first.dtype != second.dtype or (first.key != second.key and None not in (first.key, second.key)):
        return False
    return first.item is None or second.item is None or _are_alike(first.item, second.item)


def _dims_of(graph: Graph) -> dict[str, None]:
    """Return the names of dimensions that inputs and outputs declare."""
    declared = [value.declared.dims or () for value in (*graph.inputs, *graph.outputs) if value.declared is not None]
    return {dim: None for row in declared for dim in row if isinstance(dim, str)}


def _merge_dims(first: EditableModel, second: EditableModel) -> DeclaredDims:
    """Merge the declared dimensions of both models; a name in both must satisfy both.

    Raises:
        InputError: No extent is in both.
    """
    declared = dict(first.dims)
    for name, bound in second.dims.items():
        known = declared.setdefault(name, bound)
        (low, high), (lower, upper) = (each if isinstance(each, tuple) else (each, each) for each in (known, bound))
        low, high = max(low, lower), min(high, upper)
        if low > high:
            raise InputError(
                f"Dimension {name!r} is {known} in {first.graph.name!r} and {bound} in {second.graph.name!r}, which are"
                " joined there."
            )
        declared[name] = (low, high) if isinstance(known, tuple) and isinstance(bound, tuple) else low
    return declared


def _rename_dims(
    second: EditableModel, links: Mapping[Value, Value], called: Mapping[str, Dim]
) -> tuple[EditableModel, dict[Value, Value]]:
    """Return the second model with dimensions named as in the joined one, and the links to its inputs."""
    ports = [*second.graph.inputs, *second.graph.outputs]
    others = {}
    for value in dict.fromkeys(ports):
        if value.declared is not None and value.declared.dims is not None:
            dims = tuple([called.get(dim, dim) if isinstance(dim, str) else dim for dim in value.declared.dims])
            if dims != value.declared.dims:
                others[value] = Value(value.name, DeclaredSpec(value.declared.dtype, dims))
    declared = {}
    for name, bound in second.dims.items():
        new = called.get(name, name)
        if isinstance(new, str):
            declared[new] = bound
        elif isinstance(new, int):
            low, high = bound if isinstance(bound, tuple) else (bound, bound)
            if not low <= new <= high:
                raise InputError(f"Dimension {name!r} is {bound} in {second.graph.name!r}, what it is joined to {new}.")
    changed = EditableModel(exchange(second.graph, others), second.memories, declared)
    return changed, {others.get(target, target): source for target, source in links.items()}


def _make_names_unique(
    first: EditableModel, second: EditableModel, links: Mapping[Value, Value], *, keeps_first: bool
) -> tuple[EditableModel, EditableModel, dict[Value, Value]]:
    """Rename values and nodes of both so that all names are unique; outside names have priority."""
    connected = set(links.values())
    outside = [
        [v for v in (*first.graph.inputs, *first.graph.outputs) if v not in connected or v in first.graph.inputs],
        [v for v in (*second.graph.inputs, *second.graph.outputs) if v not in links or v in second.graph.outputs],
    ]
    inner = [list(first.graph.values()), [value for value in second.graph.values() if value not in links]]
    order = (0, 1) if keeps_first else (1, 0)
    names: dict[Value, str] = {}
    taken: set[str] = set()
    for value in (value for rows in (outside, inner) for side in order for value in rows[side]):
        if value not in names:
            names[value] = take_free(value.name, taken)
    renamed = {value: Value(name, value.declared) for value, name in names.items() if name != value.name}
    titles: set[str] = set()
    changed = {side: _name_nodes((first, second)[side].graph, titles) for side in order}
    sides = [
        _with_names(editable, exchange(changed[side], renamed), {v.name: n for v, n in names.items() if v in own})
        for side, editable in enumerate((first, second))
        for own in [set(editable.graph.values())]
    ]
    moved = {renamed.get(target, target): renamed.get(source, source) for target, source in links.items()}
    return sides[0], sides[1], moved


def _with_names(editable: EditableModel, graph: Graph, names: Mapping[str, str]) -> EditableModel:
    memories = [replace(each, input=names[each.input], output=names[each.output]) for each in editable.memories]
    return EditableModel(graph, tuple(memories), editable.dims)


def _name_nodes(graph: Graph, titles: set[str]) -> Graph:
    """Return the graph with node names that are not in ``titles``, and add them there."""
    nodes = []
    for node in graph.nodes:
        name = take_free(node.name, titles)
        nodes.append(node if name == node.name else replace(node, name=name_after(name, node.name)))
    return replace(graph, nodes=tuple(nodes))


def _pass_on(graph: Graph, taken: Mapping[Value, Value]) -> tuple[Graph, list[Node]]:
    """Return the second graph with the first's values as its inputs; an output that is an input keeps its name."""
    identities = []
    outputs: list[Value] = []
    for value in graph.outputs:
        if value in taken:
            made = Value(value.name, value.declared)
            identities.append(Node(build("Identity", {}), (taken[value],), (made,), value.name))
            value = made
        outputs.append(value)
    whole = exchange(replace(graph, outputs=()), taken)
    return replace(whole, outputs=tuple(outputs)), identities
