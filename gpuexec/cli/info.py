"""gpuexec info: description of a model or program, without running it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from gpuexec.cli.json_output import add_json_argument, open_tables, print_json
from gpuexec.cli.sources import is_program, open_program
from gpuexec.execution.profiling.terminal import make_table, print_table
from gpuexec.model.loading import load
from gpuexec.model.model import Model
from gpuexec.program.bounds import find_bounds
from gpuexec.program.contents import Contents, StoredMethod


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "info", help="show inputs, outputs, operators and size of a model, or what a program holds"
    )
    parser.add_argument("model", help="the ONNX file, or a program (.gxp)")
    add_json_argument(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    console = open_tables(options)
    if is_program(options.model):
        contents = open_program(options.model)
        _print_program(console, options.model, contents)
        print_json(options, path=options.model, nbytes=os.path.getsize(options.model), **contents.to_dict())
        return 0
    model = load(options.model)
    described = model.to_dict()
    _print_model(console, options.model, model, described)
    print_json(options, path=options.model, **described)
    return 0


def _print_model(console: Console, path: str, model: Model, described: Mapping[str, Any]) -> None:
    info = model.info
    console.print(
        f"[bold]{escape(path)}[/bold]: opset {info.opset}, IR {info.ir_version}, "
        f"by {escape(info.producer) or 'unknown'}"
    )
    ports = make_table(("", "name", "type"))
    for kind, rows in (("input", model.inputs), ("output", model.outputs)):
        for port in rows:
            ports.add_row(kind, escape(port.name), escape(str(port.spec)))
    print_table(console, ports)
    inner = described["nodes"] - len(model.graph.nodes)
    where = f", {inner} of them in {described['bodies']} bodies of If, Loop and Scan" if described["bodies"] else ""
    console.print(
        f"{info.node_count} nodes, {described['nodes']} after the load passes{where}; "
        f"weights {described['weights_nbytes']:,} bytes"
    )
    operators = make_table(("operator",), ("nodes",))
    for name, count in described["operators"].items():
        operators.add_row(name, str(count))
    print_table(console, operators)


def _print_program(console: Console, path: str, contents: Contents) -> None:
    """Print methods, inputs with their bounds, arenas by target, architectures, sizes and cases."""
    major, minor = contents.version
    console.print(
        f"[bold]{escape(path)}[/bold]: format {major}.{minor}, by {escape(contents.writer) or 'unknown'}, "
        f"{os.path.getsize(path):,} bytes, all checksums match"
    )
    for note in contents.notes:
        console.print(note, style="dim", markup=False)
    for name, method in contents.methods.items():
        _print_method(console, name, method)
    _print_code(console, contents)


def _print_method(console: Console, name: str, method: StoredMethod) -> None:
    model = method.model
    console.print(f"method [bold]{escape(name)}[/bold]: {len(model.graph.nodes)} nodes, {len(method.cases)} cases")
    ports = make_table(("", "name", "type", "bounds"))
    for bounds in find_bounds(model):
        ranges = "" if bounds.ranges is None else ", ".join(map(_show_range, bounds.ranges))
        ports.add_row("input", escape(bounds.name), escape(str(bounds.declared)), f"\\[{ranges}]")
    for port in model.outputs:
        ports.add_row("output", escape(port.name), escape(str(port.spec)), "")
    for memory in model.memories:
        ports.add_row("memory", escape(memory.input), escape(f"from {memory.output}"), memory.form)
    print_table(console, ports)
    plans = make_table(("target",), ("commands", "arena", "lower bound"))
    for target, rows in method.plans.items():
        for plan in rows:
            arena = plan.layout
            plans.add_row(target, str(len(plan.segment.commands)), f"{arena.nbytes:,}", f"{arena.lower_bound:,}")
        if not rows:
            plans.add_row(target, "planned when it is run", "", "")
    print_table(console, plans)
    for gap in method.gaps:
        console.print(gap, style="yellow", markup=False)


def _show_range(bound: tuple[int, int] | None) -> str:
    if bound is None:
        return "any"
    low, high = bound
    return str(low) if low == high else f"{low}..{high}"


def _print_code(console: Console, contents: Contents) -> None:
    console.print(f"weights {contents.weights_nbytes:,} bytes, shared by all methods")
    code = contents.code
    for architecture in code.architectures:
        kernels = [each for each in code.kernels if each.architecture == architecture]
        nbytes = sum(each.image.nbytes for each in kernels)
        what = "PTX for later ones" if kernels[0].is_ptx else "machine code"
        compilers = ", ".join(sorted({each.compiler for each in kernels}))
        console.print(
            f"{architecture}: {len(kernels)} kernels, {nbytes:,} bytes of {what}, by {compilers}", markup=False
        )
