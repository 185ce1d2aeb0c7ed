"""Attribute mutations: removed, duplicated, of another type, with absurd values."""

from __future__ import annotations

import onnx
from onnx import AttributeProto, helper

from tests.system.bad_models.mutant import ABSURD_FLOATS, ABSURD_INTS, HUGE, ODD_STRINGS, Draft, mutation

_INTS = (AttributeProto.INT, AttributeProto.INTS)


@mutation
def remove_attribute(draft: Draft) -> None:
    node = draft.pick(node for node in draft.graph.node if node.attribute)
    del node.attribute[draft.rng.randrange(len(node.attribute))]


@mutation
def double_attribute(draft: Draft) -> None:
    node = draft.pick(node for node in draft.graph.node if node.attribute)
    node.attribute.append(node.attribute[0])


@mutation
def rename_attribute(draft: Draft) -> None:
    draft.attribute().name = draft.pick(("axis", "speed", "value", "self", "axes", *ODD_STRINGS))


@mutation
def change_type_of_attribute(draft: Draft) -> None:
    draft.attribute().type = draft.pick(AttributeProto.AttributeType.values())


@mutation
def refer_to_an_attribute(draft: Draft) -> None:
    draft.attribute().ref_attr_name = "by"


@mutation
def set_int(draft: Draft) -> None:
    attribute = draft.attribute(*_INTS)
    if attribute.type == AttributeProto.INT:
        attribute.i = draft.pick(ABSURD_INTS)
    elif not attribute.ints:  # another mutation left none
        attribute.ints.append(draft.pick(ABSURD_INTS))
    else:
        attribute.ints[draft.rng.randrange(len(attribute.ints))] = draft.pick(ABSURD_INTS)


set_int_again = mutation(set_int)


@mutation
def set_all_ints(draft: Draft) -> None:
    attribute = draft.attribute(AttributeProto.INTS)
    attribute.ints[:] = [draft.pick((*ABSURD_INTS, 2, 3))] * len(attribute.ints)


@mutation
def change_number_of_ints(draft: Draft) -> None:
    attribute = draft.attribute(AttributeProto.INTS)
    attribute.ints[:] = list(range(draft.pick((0, 1, 3, 5, 65, 100_000))))


@mutation
def set_float(draft: Draft) -> None:
    attribute = draft.attribute(AttributeProto.FLOAT, AttributeProto.FLOATS)
    if attribute.type == AttributeProto.FLOAT:
        attribute.f = draft.pick(ABSURD_FLOATS)
    else:
        attribute.floats[:] = [draft.pick(ABSURD_FLOATS)] * len(attribute.floats)


@mutation
def set_string(draft: Draft) -> None:
    attribute = draft.attribute(AttributeProto.STRING)
    attribute.s = draft.pick((b"\xff\xfe", b"mystery", b"linear", b"SAME_LOWER", *(s.encode() for s in ODD_STRINGS)))


@mutation
def add_attribute(draft: Draft) -> None:
    """An attribute that the operator does not have, or has and was left at its default."""
    name = draft.pick(
        ("axis", "axes", "perm", "to", "group", "dilations", "kernel_shape", "pads", "strides", "alpha", "keepdims")
        + ("mode", "value", "output_shape", "hidden_size", "direction", "epsilon", "num_outputs", "body", "fill")
    )
    values: tuple[object, ...] = (
        *ABSURD_INTS,
        [0, 0],
        [-1],
        [*HUGE],
        0.5,
        float("nan"),
        [0.5, 1.5],
        "text",
        ["a", "b"],
    )
    draft.pick(draft.graph.node).attribute.append(helper.make_attribute(name, draft.pick(values)))


@mutation
def add_attribute_of_another_kind(draft: Draft) -> None:
    """A graph, a type, a sparse tensor or an empty tensor."""
    kind = draft.pick(("graph", "type", "sparse", "tensor", "nothing"))
    attribute = AttributeProto(name=draft.pick(("axis", "value", "body", "to")))
    if kind == "graph":
        attribute.type = AttributeProto.GRAPH
        attribute.g.CopyFrom(draft.graph)
    elif kind == "type":
        attribute.type = AttributeProto.TYPE_PROTO
        attribute.tp.tensor_type.elem_type = 1
    elif kind == "sparse":
        attribute.type = AttributeProto.SPARSE_TENSOR
        attribute.sparse_tensor.CopyFrom(onnx.SparseTensorProto(dims=[3]))
    elif kind == "tensor":
        attribute.type = AttributeProto.TENSOR
    draft.pick(draft.graph.node).attribute.append(attribute)


@mutation
def spoil_subgraph(draft: Draft) -> None:
    """A body of If, Loop or Scan that lacks something or has it twice."""
    body = draft.attribute(AttributeProto.GRAPH).g
    part = draft.pick((body.input, body.output, body.node, body.initializer))
    if draft.rng.random() < 0.4:
        part.append(draft.pick(part))
    elif draft.rng.random() < 0.5:
        del part[draft.rng.randrange(len(part)) if part else 0 :]
    else:
        node = draft.pick(body.node)
        names = node.input if node.input else node.output
        names[0] = draft.pick(("nowhere", *ODD_STRINGS, *(info.name for info in draft.graph.input)))
