"""Graph mutations: missing, duplicated, cyclic and unknown nodes and names."""

from __future__ import annotations

import onnx

from tests.system.bad_models.mutant import ODD_STRINGS, Draft, mutation


@mutation
def rename_input_of_node(draft: Draft) -> None:
    node = draft.pick(node for node in draft.graph.node if node.input)
    node.input[draft.rng.randrange(len(node.input))] = draft.pick(("nowhere", *ODD_STRINGS))


@mutation
def rename_output_of_node(draft: Draft) -> None:
    node = draft.pick(node for node in draft.graph.node if node.output)
    node.output[draft.rng.randrange(len(node.output))] = draft.pick(("nowhere", *ODD_STRINGS))


@mutation
def swap_names(draft: Draft) -> None:
    """Two inputs of nodes change places: other shapes, other types, perhaps a circle."""
    places = [(node, index) for node in draft.graph.node for index in range(len(node.input))]
    (a, i), (b, j) = draft.pick(places), draft.pick(places)
    a.input[i], b.input[j] = b.input[j], a.input[i]


@mutation
def make_cycle(draft: Draft) -> None:
    node = draft.pick(node for node in draft.graph.node if node.input)
    later = draft.pick(name for other in draft.graph.node for name in other.output if name)
    node.input[draft.rng.randrange(len(node.input))] = later


@mutation
def feed_itself(draft: Draft) -> None:
    node = draft.pick(node for node in draft.graph.node if node.input and node.output)
    node.input[0] = node.output[0]


@mutation
def double_node(draft: Draft) -> None:
    draft.graph.node.append(draft.pick(draft.graph.node))


@mutation
def double_name_of_output(draft: Draft) -> None:
    names = [name for node in draft.graph.node for name in node.output]
    node = draft.pick(node for node in draft.graph.node if node.output)
    node.output[0] = draft.pick([*names, *(info.name for info in draft.graph.input)])


@mutation
def double_initializer(draft: Draft) -> None:
    draft.graph.initializer.append(draft.pick(draft.graph.initializer))


@mutation
def double_port(draft: Draft) -> None:
    ports = draft.pick((draft.graph.input, draft.graph.output))
    ports.append(draft.pick(ports))


@mutation
def remove_node(draft: Draft) -> None:
    del draft.graph.node[draft.rng.randrange(len(draft.graph.node) or 1)]


@mutation
def remove_all_nodes(draft: Draft) -> None:
    del draft.graph.node[:]


@mutation
def remove_ports(draft: Draft) -> None:
    ports = draft.pick((draft.graph.input, draft.graph.output))
    del ports[draft.pick((0, -1)) :]


@mutation
def rename_port(draft: Draft) -> None:
    draft.info().name = draft.pick(("nowhere", *ODD_STRINGS))


@mutation
def remove_inputs_of_node(draft: Draft) -> None:
    node = draft.pick(node for node in draft.graph.node if node.input)
    del node.input[draft.rng.randrange(len(node.input)) :]


@mutation
def add_inputs_to_node(draft: Draft) -> None:
    node = draft.pick(draft.graph.node)
    name = draft.pick([name for other in draft.graph.node for name in other.input])
    node.input.extend([name] * draft.pick((1, 2, 200)))


@mutation
def remove_outputs_of_node(draft: Draft) -> None:
    node = draft.pick(node for node in draft.graph.node if node.output)
    del node.output[draft.rng.randrange(len(node.output)) :]


@mutation
def add_outputs_to_node(draft: Draft) -> None:
    node = draft.pick(draft.graph.node)
    node.output.extend(f"more{i}" for i in range(draft.pick((1, 2, 200))))


@mutation
def reverse_nodes(draft: Draft) -> None:
    nodes = list(draft.graph.node)[::-1]
    del draft.graph.node[:]
    draft.graph.node.extend(nodes)


@mutation
def set_operator(draft: Draft) -> None:
    """Another operator for the same operands: one that exists, or none."""
    types = [node.op_type for node in draft.graph.node]
    known = (
        "Relu",
        "Add",
        "Reshape",
        "Conv",
        "MatMul",
        "Concat",
        "Constant",
        "Shape",
        "Expand",
        "Loop",
        "LSTM",
        "TopK",
    )
    draft.pick(draft.graph.node).op_type = draft.pick((*types, *known, *known, "Nothing", *ODD_STRINGS))


@mutation
def set_domain(draft: Draft) -> None:
    draft.pick(draft.graph.node).domain = draft.pick(("ai.onnx", "ai.onnx.ml", "com.microsoft", "own", *ODD_STRINGS))


@mutation
def rename_node(draft: Draft) -> None:
    draft.pick(draft.graph.node).name = draft.pick((*ODD_STRINGS, *(node.name for node in draft.graph.node)))


@mutation
def make_functions_recursive(draft: Draft) -> None:
    """Functions that call themselves, or each other."""
    bodies = []
    for name, callee in draft.pick(((("f", "f"),), (("f", "g"), ("g", "f")))):
        body = onnx.FunctionProto(name=name, domain="round", input=["a"], output=["b"])
        body.opset_import.add(domain="", version=18)
        body.opset_import.add(domain="round", version=1)
        body.node.add(op_type=callee, domain="round", input=["a"], output=["b"])
        bodies.append(body)
    draft.model.functions.extend(bodies)
    draft.model.opset_import.add(domain="round", version=1)
    node = draft.pick(draft.graph.node)
    node.op_type, node.domain = "f", "round"
    del node.attribute[:]


@mutation
def spoil_function(draft: Draft) -> None:
    function = draft.pick(draft.model.functions)
    part = draft.pick((function.input, function.output, function.node, function.attribute, function.opset_import))
    if draft.rng.random() < 0.5:
        part.append(draft.pick(part))
    else:
        del part[draft.rng.randrange(len(part)) if part else 0 :]
