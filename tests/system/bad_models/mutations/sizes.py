"""Size mutations: deep, long and exponentially growing models in small files."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.system.bad_models.mutant import Draft, mutation


def replace_graph(draft: Draft, nodes: list[onnx.NodeProto], output: str, *constants: TensorProto) -> None:
    """Put another graph in place: input x of ``[4]``, one output of unknown shape."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "large", [x], [y], constants)
    draft.model.CopyFrom(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


def ints(name: str, *values: int) -> TensorProto:
    """Return an initializer of int64."""
    return numpy_helper.from_array(np.array(values, np.int64), name)


@mutation
def double_constants(draft: Draft) -> None:
    """Each node joins the last result with itself; all of it follows from a constant."""
    depth = draft.pick((20, 40, 70))
    nodes = [helper.make_node("Concat", [f"t{i}"] * 2, [f"t{i + 1}"], axis=0) for i in range(depth)]
    start = numpy_helper.from_array(np.ones(1 << 12, np.float32), "t0")
    replace_graph(draft, [*nodes, helper.make_node("ReduceMax", [f"t{depth}"], ["y"])], "y", start)


@mutation
def double_input(draft: Draft) -> None:
    depth = draft.pick((20, 40, 70))
    nodes = [helper.make_node("Concat", [f"t{i}"] * 2, [f"t{i + 1}"], axis=0) for i in range(depth)]
    nodes.insert(0, helper.make_node("Neg", ["x"], ["t0"]))
    replace_graph(draft, [*nodes, helper.make_node("ReduceMax", [f"t{depth}"], ["y"])], "y")


@mutation
def ask_for_a_huge_tensor(draft: Draft) -> None:
    """Of constants: an Expand, a Tile, a ConstantOfShape, a Range, a Pad, a Resize, an EyeLike."""
    many = draft.pick((2**20, 2**31, 2**40, 2**62))
    one = numpy_helper.from_array(np.ones((1,), np.float32), "one")
    options: list[tuple[list[onnx.NodeProto], list[TensorProto]]] = [
        ([helper.make_node("Expand", ["x", "s"], ["y"])], [ints("s", many, many, 4)]),
        ([helper.make_node("Expand", ["one", "s"], ["y"])], [ints("s", many), one]),
        ([helper.make_node("Tile", ["x", "s"], ["y"])], [ints("s", many)]),
        ([helper.make_node("ConstantOfShape", ["s"], ["y"])], [ints("s", many, 1024)]),
        ([helper.make_node("Pad", ["x", "s"], ["y"])], [ints("s", many, many)]),
        ([helper.make_node("Reshape", ["x", "s"], ["y"])], [ints("s", many, many, 0)]),
        (
            [helper.make_node("Range", ["a", "b", "c"], ["r"]), helper.make_node("Cast", ["r"], ["y"], to=1)],
            [
                helper.make_tensor("a", 7, [], [0]),
                helper.make_tensor("b", 7, [], [many]),
                helper.make_tensor("c", 7, [], [1]),
            ],
        ),
        (
            [helper.make_node("Resize", ["x", "", "f"], ["y"], mode="nearest")],
            [numpy_helper.from_array(np.array([float(many)], np.float32), "f")],
        ),
        (
            [helper.make_node("OneHot", ["i", "d", "v"], ["y"])],
            [ints("i", 1), ints("d", many), numpy_helper.from_array(np.array([0, 1], np.float32), "v")],
        ),
    ]
    nodes, constants = draft.pick(options)
    replace_graph(draft, nodes, "y", *constants)


ask_for_a_huge_tensor_again = mutation(ask_for_a_huge_tensor)


@mutation
def chain_many_nodes(draft: Draft) -> None:
    count = 3000
    nodes = [helper.make_node(draft.pick(("Relu", "Neg")), [f"t{i}"], [f"t{i + 1}"]) for i in range(count)]
    nodes[0].input[0] = "x"
    if draft.rng.random() < 0.5:
        nodes.reverse()
    replace_graph(draft, nodes, f"t{count}")


@mutation
def nest_functions(draft: Draft) -> None:
    """Each function calls the next one twice: 2**depth nodes of a few hundred bytes."""
    depth = draft.pick((8, 24, 60))
    replace_graph(draft, [helper.make_node("f0", ["x"], ["y"], domain="deep")], "y")
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("deep", 1)]
    for i in range(depth):
        inner = (f"f{i + 1}", "deep") if i + 1 < depth else ("Neg", "")
        nodes = [helper.make_node(inner[0], [a], [b], domain=inner[1]) for a, b in (("a", "m"), ("m", "b"))]
        draft.model.functions.append(helper.make_function("deep", f"f{i}", ["a"], ["b"], nodes, opsets))
    draft.model.opset_import.add(domain="deep", version=1)


@mutation
def nest_graphs(draft: Draft) -> None:
    """Branches in branches, as deep as protobuf still takes them."""
    depth = draft.pick((3, 15, 24))
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    for level in range(depth):
        then = _make_body(f"then{level}", nodes)
        other = _make_body(f"else{level}", [helper.make_node("Abs", ["x"], [f"a{level}"])])
        condition = helper.make_node("Constant", [], [f"c{level}"], value=helper.make_tensor("v", 9, [], [True]))
        nodes = [
            condition,
            helper.make_node("If", [f"c{level}"], [f"y{level}"], then_branch=then, else_branch=other),
        ]
    replace_graph(draft, nodes, f"y{depth - 1}")


@mutation
def nest_bytes(draft: Draft) -> None:
    """Graphs in attributes of nodes of graphs, deeper than protobuf takes them."""
    graph = b""
    for _ in range(draft.pick((20, 60, 5000))):
        attribute = _write_field(1, b"body") + _write_field(6, graph) + b"\xa0\x01\x05"
        graph = _write_field(1, _write_field(4, b"If") + _write_field(5, attribute))
    head = onnx.ModelProto(ir_version=10, opset_import=[helper.make_opsetid("", 18)])
    draft.content = head.SerializeToString() + _write_field(7, graph)


def _write_field(number: int, content: bytes) -> bytes:
    """Return a field of bytes as protobuf writes it."""
    size, varint = len(content), b""
    while size > 127:
        size, varint = size >> 7, varint + bytes([size & 127 | 128])
    return bytes([number << 3 | 2]) + varint + bytes([size]) + content


def _make_body(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(nodes[-1].output[0], 1, None)])


@mutation
def raise_the_rank(draft: Draft) -> None:
    """Unsqueeze and Reshape to more axes than NumPy has."""
    rank = draft.pick((9, 33, 65, 200))
    if draft.rng.random() < 0.5:
        node, constant = helper.make_node("Reshape", ["x", "s"], ["r"]), ints("s", 4, *([1] * (rank - 1)))
    else:
        node, constant = helper.make_node("Unsqueeze", ["x", "s"], ["r"]), ints("s", *range(1, rank))
    last = helper.make_node(draft.pick(("Neg", "Transpose", "Softmax", "ReduceSum", "Identity")), ["r"], ["y"])
    replace_graph(draft, [node, last], "y", constant)
