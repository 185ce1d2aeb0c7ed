"""Program description for `gpuexec info`."""

from __future__ import annotations

import os

from rich.console import Console
from rich.markup import escape

from gpuexec.cli.sources import open_program
from gpuexec.execution.profiling.terminal import make_table, print_table
from gpuexec.program.bounds import find_bounds
from gpuexec.program.contents import Contents, StoredMethod


def print_program(console: Console, path: str) -> None:
    """Print methods, inputs with their bounds, arenas by target, architectures, sizes and cases."""
    contents = open_program(path)
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
