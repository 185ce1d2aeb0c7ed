"""Graphs with bodies, as text and as read."""

from __future__ import annotations

import onnx
from onnx import parser

from gpuexec.importer import load_graph
from gpuexec.ir.graphs import Graph, Node


def parse(text: str, opset: int = 18, rest: str = "") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "loc": 1]> agraph {text} {rest}')


def load(text: str, opset: int = 18, rest: str = "") -> Graph:
    return load_graph(parse(text, opset, rest)).graph


def node_of(graph: Graph, operator_name: str) -> Node:
    (node,) = (node for node in graph.nodes if node.operator.name == operator_name)
    return node


def names(values: object) -> list[str | None]:
    return [None if value is None else value.name for value in values]  # type: ignore[attr-defined]
