"""A tour of the packages with the digits model: the data each passes to the next, from bytes to answer.

    python examples/tour.py            all rooms, one after the other
    python examples/tour.py plan run   some of them

bytes -> Graph -> passes -> commands -> Plan -> recording -> run -> answer
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from digits import HERE, Array, load_images
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import gpuexec as gx
from gpuexec.devices.device import Region
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.importer.load import ImportedModel, load_graph
from gpuexec.ir.command import HostCall, Launch
from gpuexec.ir.graphs import Graph, name_values
from gpuexec.ir.plan import Plan, Role, list_lifetimes
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.passes import AT_LOAD, AT_PLAN, run_passes
from gpuexec.planner.template import plan_graph

FILE = HERE / "models" / "digits.onnx"
TARGET = "sm_90"
COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
console = Console(highlight=False, width=110)


@dataclass(frozen=True, slots=True)
class Journey:
    """What the rooms hand on: a picture to read, the file's graph, the graph after the load passes, its plan."""

    x: Array
    label: int
    specs: dict[str, TensorSpec]
    imported: ImportedModel
    graph: Graph
    plan: Plan


def begin() -> Journey:
    """Go through the rooms once, silently, with one picture."""
    images, labels = load_images(1)
    imported = load_graph(FILE)
    specs = {"image": TensorSpec(images.shape, images.dtype)}
    graph = run_passes(imported.graph, (*AT_LOAD, *AT_PLAN), specs=specs)
    plan = plan_graph(graph, specs, Target.named(TARGET)).plan
    return Journey(images, int(labels[0]), specs, imported, graph, plan)


def show_bytes(journey: Journey) -> None:
    """An ONNX file is a message of protobuf: nodes, weights, inputs, outputs."""
    content = FILE.read_bytes()
    for start in range(0, 96, 16):
        row = content[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        console.print(f"  [dim]{start:04x}[/]  {row.hex(' ')}  [cyan]{escape(text)}[/]")
    said = journey.imported
    console.print(f"  ... {len(content):,} bytes; opset {said.opset}, IR {said.ir_version}, by {said.producer}")
    for value in (*said.graph.inputs, *said.graph.outputs):
        verb = "takes" if value in said.graph.inputs else "gives"
        console.print(f"  {verb} [cyan]{value.name}[/] {escape(str(value.declared))}")


def show_graph(journey: Journey) -> None:
    """The importer brings every node to the newest form of its operator, with its attributes bound."""
    print_graph(journey.imported.graph)


def show_passes(journey: Journey) -> None:
    """Passes make graphs of graphs: some when a model is loaded, some when shapes are known."""
    table = open_table("pass", "nodes", "weights", "what it does")
    graph = journey.imported.graph
    for each in (*AT_LOAD, *AT_PLAN):
        after = run_passes(graph, [each], specs=journey.specs)
        is_changed = after is not graph and (len(after.nodes), weigh(after)) != (len(graph.nodes), weigh(graph))
        counts = [
            f"{old:,} → {new:,}" if old != new else f"{old:,}"
            for old, new in ((len(graph.nodes), len(after.nodes)), (weigh(graph), weigh(after)))
        ]
        table.add_row(each.name, *counts, cut(each.summary, 52), style="bold" if is_changed else "dim")
        graph = after
    console.print(table)
    console.print("\n  and what is left:")
    print_graph(graph)


def show_commands(journey: Journey) -> None:
    """The planner infers shapes and asks each operator for its commands: for a GPU launches, for the CPU calls."""
    on_cpu = plan_graph(journey.graph, journey.specs, Target.named("cpu")).plan.segment
    segment = journey.plan.segment
    calls = dict(zip(on_cpu.origins, on_cpu.commands, strict=True))
    table = open_table("", "node", f"on {TARGET}", "grid x block", "on the CPU", "after")
    for index, (command, origin) in enumerate(zip(segment.commands, segment.origins, strict=True)):
        before = ", ".join(str(a) for a, b in segment.edges if b == index)
        call = calls.get(origin)
        named = call.operator if isinstance(call, HostCall) else "-"
        kernel, extent = type(command).__name__, ""
        if isinstance(command, Launch):
            kernel, extent = command.kernel.expression, f"{np.prod(command.grid)} x {np.prod(command.block)}"
        table.add_row(str(index), cut(origin, 25), cut(kernel, 31), extent, cut(named, 17), before)
    console.print(table)


def show_plan(journey: Journey) -> None:
    """A plan is data, with no pointers: who lies where in the arena, and when. Time goes right, bytes go up."""
    plan = journey.plan
    lifetimes = list_lifetimes(plan, name_values(journey.graph))
    count, rows, width = len(plan.segment.commands), 12, 6
    for row in reversed(range(rows)):
        low, high = (plan.layout.nbytes * edge // rows for edge in (row, row + 1))
        line = f"  [dim]{low:>7,}[/] "
        for command in range(count):
            held = {
                index: min(high, lifetime.offset + lifetime.nbytes) - max(low, lifetime.offset)
                for index, lifetime in enumerate(lifetimes)
                if lifetime.first <= command < lifetime.last
            }
            winner = max(held, key=lambda index: held[index], default=0)
            is_free = not held or held[winner] <= 0
            line += "·" * width if is_free else f"[{COLOURS[winner % len(COLOURS)]}]{'█' * width}[/]"
        console.print(line)
    console.print(f"  {'':7} [dim]{''.join(f'{index:<{width}}' for index in range(count))}[/]")
    for index, lifetime in enumerate(lifetimes):
        colour = COLOURS[index % len(COLOURS)]
        where = f"%{lifetime.buffer:<3} {lifetime.nbytes:>7,} bytes at {lifetime.offset:>7,}"
        console.print(f"  [{colour}]██[/] {where}  {escape(', '.join(lifetime.values))}")
    console.print(f"  arena {plan.layout.nbytes:,} bytes; no layout takes less than {plan.layout.lower_bound:,}")
    for role in (Role.INPUT, Role.CONSTANT, Role.OUTPUT):
        of_role = [buffer for buffer in plan.buffers if buffer.role is role]
        total = sum(buffer.nbytes for buffer in of_role)
        console.print(f"  and {len(of_role)} of role {role.value}, {total:,} bytes, elsewhere")


def show_recording(journey: Journey) -> None:
    """A recording is a plan with addresses; for another input only the words that hold its address are changed."""
    plan, device = journey.plan, TracerDevice(TARGET)  # it writes down what it is told, and does nothing
    arena = device.allocate(plan.layout.nbytes)
    memory = {number: Region(arena, offset, plan.buffers[number].nbytes) for number, offset in plan.layout.offsets}
    bound: dict[int, Region] = {}
    for buffer in plan.buffers:
        if buffer.id not in memory:
            region = Region(device.allocate(buffer.nbytes), 0, buffer.nbytes)
            (memory if buffer.role is Role.CONSTANT else bound)[buffer.id] = region
    device.load(plan.kernels())
    recording, stream = device.record(plan.segment, memory), device.create_stream()
    first = submit(device, lambda: recording.submit(stream, bound))
    (image,) = (port.buffer for port in plan.inputs if port.buffer is not None)
    bound[image] = Region(device.allocate(journey.x.nbytes), 0, journey.x.nbytes)
    second = submit(device, lambda: recording.submit(stream, bound))
    for index, ((name, old), (_, new)) in enumerate(zip(first, second, strict=True)):
        words = [
            f"[bold yellow]{a.hex()} → {b.hex()}[/]" if a != b else f"[dim]{a.hex()[:16]}[/]"
            for a, b in zip(old, new, strict=True)
        ]
        more = f" [dim]and {len(words) - 2} more[/]" if len(words) > 2 else ""
        console.print(f"  {index}  {escape(name[:30]):30}  {' '.join(words[:2])}{more}", soft_wrap=True)
    (packed, again) = ([word for _, words in log for word in words] for log in (first, second))
    changed = sum(a != b for a, b in zip(packed, again, strict=True))
    console.print(f"  {len(packed)} arguments packed once; {changed} of them patched for the second submission")


def show_run(journey: Journey) -> None:
    """A run is put on the stream, and nothing waits; what comes back is a Tensor that may be pending."""
    with gx.Worker(gx.load(FILE)) as worker:
        console.print(f"  on {worker.backend_type.name}: {cut(worker.backend_reason, 90)}")
        run = worker.schedule(journey.x)
        y = run.peek_output("logits")
        console.print(f"  schedule       {run}")
        console.print(f"  peek_output    {escape(str(y))}")
        request = y.readback_request()
        console.print(f"  readback       {request}")
        others = 0
        while not request.is_done():
            others += 1
        console.print(f"  meanwhile      {others:,} other things were done")
        console.print(f"  readback       {request}")
        report = worker.report()
        console.print(
            f"  report         {report.runs} run, {report.plans} plan in {report.plan_ms:.1f} ms,"
            f" host calls {len(report.host_calls)}, host reads {len(report.host_reads)},"
            f" waits nobody asked for {len(report.host_syncs)}"
        )
        for row in worker.memory_report():
            if row.most_nbytes:
                console.print(f"  held           {row}")


def show_answer(journey: Journey) -> None:
    """The answer is an array of the caller's own."""
    with gx.Worker(gx.load(FILE)) as worker:
        worker.schedule(journey.x)
        scores = worker.read_output("probabilities")[0]
    picture = journey.x[0, 0] / journey.x.max()
    for row in range(max(len(picture), len(scores))):
        pixels = "".join(" ░▒▓█"[round(4 * float(v))] * 2 for v in picture[row]) if row < len(picture) else " " * 16
        bar = "█" * round(40 * float(scores[row]))
        colour = "bold green" if row == scores.argmax() else "dim"
        console.print(f"  {pixels}   [{colour}]{row} {bar} {scores[row]:.3f}[/]")
    console.print(f"\nread right: {int(scores.argmax()) == journey.label}")


ROOMS: dict[str, Callable[[Journey], None]] = {
    "bytes": show_bytes,
    "graph": show_graph,
    "passes": show_passes,
    "commands": show_commands,
    "plan": show_plan,
    "recording": show_recording,
    "run": show_run,
    "answer": show_answer,
}


def print_graph(graph: Graph) -> None:
    """Print a node a line."""
    table = open_table("operator", "node", "takes", "gives")
    for node in graph.nodes:
        takes, gives = (
            ", ".join("-" if value is None else value.name for value in side) for side in (node.inputs, node.outputs)
        )
        table.add_row(cut(node.operator.name, 18), cut(node.name, 25), cut(takes, 40), gives)
    console.print(table)


def open_table(*columns: str) -> Table:
    """Return a plain table."""
    table = Table(*columns, box=None, padding=(0, 1, 0, 2), header_style="dim")
    for column in table.columns:
        column.no_wrap = True
    return table


def cut(text: str, width: int) -> str:
    """Return the beginning of a text, as the console shows it."""
    return escape(text if len(text) <= width else f"{text[: width - 1]}…")


def weigh(graph: Graph) -> int:
    """Return the bytes of a graph's weights."""
    return sum(array.nbytes for array in graph.constants.values())


def submit(device: TracerDevice, put: Callable[[], None]) -> list[tuple[str, list[bytes]]]:
    """Return kernel and arguments of each launch that a call put on the stream."""
    device.log.clear()
    put()
    rows: list[tuple[Any, ...]] = [row for row in device.log if row[0] == "launch"]
    return [(row[1].partition(":")[2], list(row[4])) for row in rows]


def main(rooms: list[str]) -> None:
    """Show rooms by name; all without a name."""
    unknown = sorted(set(rooms) - set(ROOMS))
    if unknown:
        raise SystemExit(f"There is no room {', '.join(unknown)}; there are {', '.join(ROOMS)}.")
    journey = begin()
    for number, name in enumerate(rooms or ROOMS, 1):
        show = ROOMS[name]
        console.print()
        console.rule(f"[bold]{number}  {name}[/]", align="left")
        console.print(f"[italic]{(show.__doc__ or '').strip()}[/]\n")
        show(journey)


if __name__ == "__main__":
    main(sys.argv[1:])
