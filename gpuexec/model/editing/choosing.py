"""Selection of a model's outputs and inputs: inner values as outputs, outputs removed, subgraphs extracted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuexec.errors import GpuexecError, InputError
from gpuexec.importer.infer import infer_declared
from gpuexec.importer.tensors import refine
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.spec import DeclaredSpec, TensorSpec, is_container
from gpuexec.model.editing.editable_model import EditableModel
from gpuexec.model.editing.value_edits import exchange, find_values, keep_needed
from gpuexec.model.state_spec import Memory
from gpuexec.planner.analyse import ShapeInference

# Extents that depend on no free dimension are equal with both.
_TRIED = (8, 24)
# Related dimensions (total = past + new) contradict each other at most extents, but 1 broadcasts.
_LAST_TRIED = (1, 1)


def declare_outputs(graph: Graph) -> Graph:
    """Infer types and ranks of outputs that declare none; those that can't be inferred stay undeclared."""
    lacking = [value for value in graph.outputs if value.declared is None or value.declared.dims is None]
    lacking = [value for value in lacking if value.declared is None or not is_container(value.declared.dtype)]
    if not lacking:
        return graph
    found = _infer_types(graph, list(dict.fromkeys(lacking)), follows_content=False)
    refined = {value: refine(value.declared, found[value]) for value in lacking if value in found}
    return exchange(
        graph, {value: Value(value.name, spec) for value, spec in refined.items() if spec != value.declared}
    )


def expose(editable: EditableModel, names: Sequence[str]) -> EditableModel:
    """Return an editable model with additional outputs after the present ones; what is an output already stays one.

    Raises:
        InputError: There is no such value or node, or a value's type can't be inferred.
    """
    graph = editable.graph
    added = [value for value in _find(editable, names, "expose") if value not in graph.outputs]
    outputs = (*graph.outputs, *added)
    return editable.with_graph(_declare(Graph(graph.inputs, outputs, graph.nodes, graph.constants, graph.name)))


def keep_outputs(editable: EditableModel, names: Sequence[str]) -> EditableModel:
    """Return an editable model with these outputs alone, in this order, and the nodes they need.

    A memory stays if an output that stays depends on it. An input that nothing read before stays too.

    Raises:
        InputError: There is no such value or node, or one is listed twice.
    """
    chosen = _find(editable, names, "keep_outputs")
    graph, memories = _keep_with_memories(editable, chosen, frozenset())
    read = {value for node in editable.graph.nodes for value in node.inputs} | set(editable.graph.outputs)
    left = set(graph.inputs)
    idle = {value for value in editable.inputs if value not in read}
    inputs = tuple([value for value in editable.graph.inputs if value in left or value in idle])
    graph = Graph(inputs, graph.outputs, graph.nodes, graph.constants, graph.name)
    return EditableModel(editable.graph, memories, editable.dims).with_graph(_declare(graph))


def extract(editable: EditableModel, inputs: Sequence[str], outputs: Sequence[str]) -> EditableModel:
    """Return the subgraph of a model that computes some of its values from others.

    Memories that lie within it stay, and are not listed.

    Raises:
        InputError: There is no such value, an output needs an input that is not listed, or one listed is not needed.
    """
    given = _find(editable, inputs, "extract: inputs")
    wanted = _find(editable, outputs, "extract: outputs")
    graph, memories = _keep_with_memories(editable, wanted, frozenset(given))
    held = {memory.input for memory in memories}
    lacking = [value for value in graph.inputs if value not in given and value.name not in held]
    if lacking:
        listed = ", ".join(value.name for value in lacking)
        raise InputError(
            f"extract: {', '.join(outputs)} can't be made from {', '.join(inputs)} alone; what lies between needs"
            f" {listed} too. List it among the inputs, or values behind it.",
            value=lacking[0].name,
        )
    needed = {value for node in graph.nodes for value in node.inputs} | set(graph.outputs)
    idle = [value.name for value in given if value not in needed]
    if idle:
        raise InputError(f"extract: {', '.join(outputs)} don't need {', '.join(idle)}; leave it out.", value=idle[0])
    types = _find_types(keep_needed(editable.graph, [*given, *wanted]), [*given, *wanted])
    others = {value: Value(value.name, types[value]) for value in given if value.declared is None}
    ports = (*given, *[value for value in graph.inputs if value.name in held])
    graph = exchange(Graph(ports, graph.outputs, graph.nodes, graph.constants, graph.name), others)
    shown = {value: Value(value.name, types[value]) for value in graph.outputs if value.declared is None}
    return EditableModel(editable.graph, memories, editable.dims).with_graph(exchange(graph, shown))


def _find(editable: EditableModel, names: Sequence[str], what: str) -> list[Value]:
    """Return values by name, none of which belongs to a memory."""
    found = find_values(editable.graph, names, what)
    for memory in editable.memories:
        for value in found:
            if value.name in (memory.input, memory.output):
                message = f"{what}: {value.name!r} belongs to memory {memory}; see Worker.state."
                raise InputError(message, value=value.name)
    return found


def _keep_with_memories(
    editable: EditableModel, chosen: Sequence[Value], given: frozenset[Value]
) -> tuple[Graph, tuple[Memory, ...]]:
    """Return the subgraph that these values need, and the memories they depend on over any number of runs."""
    ends = {value.name: value for value in editable.graph.outputs}
    kept: list[Memory] = []
    while True:
        outputs = list(dict.fromkeys([*chosen, *(ends[memory.output] for memory in kept)]))
        graph = keep_needed(editable.graph, outputs, given)
        names = {value.name for value in graph.inputs if value not in given}
        found = [memory for memory in editable.memories if memory.input in names]
        if len(found) == len(kept):
            return graph, tuple(found)
        kept = found


def _declare(graph: Graph) -> Graph:
    """Return the graph with a type declared of each output."""
    unknown = [value for value in graph.outputs if value.declared is None]
    if not unknown:
        return graph
    types = _find_types(graph, unknown)
    return exchange(graph, {value: Value(value.name, types[value]) for value in unknown})


def _find_types(graph: Graph, values: Sequence[Value]) -> dict[Value, DeclaredSpec]:
    """Return the types of values: declared, of constants, and inferred.

    Raises:
        InputError: A type can't be inferred.
    """
    types = {value: value.declared for value in values if value.declared is not None}
    arrays = {value: graph.constants[value] for value in values if value in graph.constants}
    types.update({value: DeclaredSpec(array.dtype, array.shape) for value, array in arrays.items()})
    types.update(_infer_types(graph, [value for value in values if value not in types], follows_content=True))
    for value in values:
        if value not in types:
            node = graph.producers()[value]
            raise InputError(
                f"The type of {value}, which {node} makes, can't be inferred before a run; choose a value further on.",
                node=node.name,
                value=value.name,
            )
    return types


def _infer_types(graph: Graph, values: Sequence[Value], *, follows_content: bool) -> dict[Value, DeclaredSpec]:
    """Infer the types of values by ONNX's inference, or by the operators' own."""
    if not values:
        return {}
    found = infer_declared(keep_needed(graph, values), values, follows_content=follows_content)
    unknown = [value for value in values if value not in found or found[value].dims is None]
    for guesses in (_TRIED, _LAST_TRIED):
        if unknown:
            found.update(_try_extents(keep_needed(graph, unknown), unknown, guesses))
        unknown = [value for value in unknown if value not in found]
    return found


def _try_extents(graph: Graph, values: Sequence[Value], guesses: tuple[int, int]) -> dict[Value, DeclaredSpec]:
    """Infer types with two extents for each free dimension; extents that come out alike are fixed.

    Where both are the same, free extents can't be distinguished from fixed ones, and all stay free.
    """
    made = [value for node in graph.nodes for value in node.outputs if value is not None]
    whole = Graph(graph.inputs, tuple(made), graph.nodes, graph.constants, graph.name)
    inferred = infer_declared(whole, made, follows_content=False)
    tries = [_infer_specs(graph, guess, inferred) for guess in guesses]
    found = {}
    for value in values:
        first, second = [specs.get(value) for specs in tries]
        if first is None or second is None or first.dtype != second.dtype:
            continue
        if first.rank != second.rank:
            found[value] = DeclaredSpec(first.dtype, None)
            continue
        pairs = zip(first.shape, second.shape, strict=True)
        is_reliable = guesses[0] != guesses[1] and value not in inferred
        found[value] = DeclaredSpec(first.dtype, tuple([a if a == b and is_reliable else None for a, b in pairs]))
    return found


def _infer_specs(graph: Graph, guess: int, inferred: Mapping[Value, DeclaredSpec]) -> dict[Value, TensorSpec]:
    """Infer the specs of values, with an extent for each free dimension.

    Args:
        graph: Whose nodes are inferred one by one.
        guess: The extent.
        inferred: Types that stand in where a node's shape depends on content, or an extent contradicts another.
    """
    constants = {value: TensorSpec.of(array) for value, array in graph.constants.items()}
    given = {value: _guess_spec(value.declared, guess) for value in graph.inputs}
    inputs = {value: spec for value, spec in given.items() if spec is not None}
    walk = ShapeInference(graph.producers(), constants, inputs)
    specs = walk.analysis.specs
    for node in graph.nodes:
        if any(value is not None and value not in specs for value in node.inputs):
            continue
        try:
            walk.visit(node)
        except GpuexecError:
            known = {value: _guess_spec(inferred.get(value), guess) for value in node.outputs if value is not None}
            specs.update({value: spec for value, spec in known.items() if spec is not None})
    return specs


def _guess_spec(declared: DeclaredSpec | None, guess: int) -> TensorSpec | None:
    """Return a spec with an extent for each free dimension, or None where the rank is unknown."""
    if declared is None or declared.dims is None:
        return None
    return TensorSpec(tuple([dim if isinstance(dim, int) else guess for dim in declared.dims]), declared.dtype)
