"""gpuexec info: description of a model or program, without running it."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from gpuexec.cli.program_rows import print_program
from gpuexec.cli.sources import is_program
from gpuexec.execution.profiling.terminal import make_table, open_console, print_table
from gpuexec.ir.graphs import walk
from gpuexec.model.loading import load


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "info", help="show inputs, outputs, operators and size of a model, or what a program holds"
    )
    parser.add_argument("model", help="the ONNX file, or a program (.gxp)")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    from rich.markup import escape

    console = open_console()
    if is_program(options.model):
        print_program(console, options.model)
        return 0
    model = load(options.model)
    info = model.info
    console.print(
        f"[bold]{escape(options.model)}[/bold]: opset {info.opset}, IR {info.ir_version}, "
        f"by {escape(info.producer) or 'unknown'}"
    )
    ports = make_table(("", "name", "type"))
    for kind, rows in (("input", model.inputs), ("output", model.outputs)):
        for port in rows:
            ports.add_row(kind, escape(port.name), escape(str(port.spec)))
    print_table(console, ports)
    graphs = list(walk(model.graph))
    weights = sum(array.nbytes for graph in graphs for array in graph.constants.values())
    inner = sum(len(graph.nodes) for graph in graphs[1:])
    where = f", {inner} of them in {len(graphs) - 1} bodies of If, Loop and Scan" if len(graphs) > 1 else ""
    console.print(
        f"{info.node_count} nodes, {len(model.graph.nodes) + inner} after the load passes{where}; "
        f"weights {weights:,} bytes"
    )
    operators = make_table(("operator",), ("nodes",))
    for name, count in Counter(node.operator.name for graph in graphs for node in graph.nodes).most_common():
        operators.add_row(name, str(count))
    print_table(console, operators)
    return 0
