"""gpuexec explain: the plans of a model, their arena beside the lower bound, providers, times, and host reads."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from gpuexec.cli.count_tables import encode_counts, print_launches
from gpuexec.cli.feeds import add_arguments
from gpuexec.cli.free_dims import array_of
from gpuexec.cli.host_rows import print_host_rows
from gpuexec.cli.json_output import add_json_argument, open_output, open_tables, print_json
from gpuexec.cli.memory_page import draw_memory
from gpuexec.cli.precision_arguments import take_precision
from gpuexec.cli.predictions import print_prediction
from gpuexec.cli.provider_arguments import encode_offers, print_offers
from gpuexec.cli.sources import add_method_argument, check_output, open_model, open_worker, read_inputs
from gpuexec.devices.backend import Backend, BackendType
from gpuexec.devices.dependent_launch import find_waiting
from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.errors import InputError
from gpuexec.execution.placement import LayerPlacement, annotate, list_measured, list_placements, time_placements
from gpuexec.execution.profiling.profiler import Profiler
from gpuexec.execution.profiling.terminal import make_table, print_table
from gpuexec.execution.report import Report
from gpuexec.execution.resources.opened_providers import open_providers, read_providers
from gpuexec.execution.worker import Worker
from gpuexec.ir.command import Launch
from gpuexec.ir.graphs import list_made, name_values
from gpuexec.ir.instances import instantiations
from gpuexec.ir.plan import Plan
from gpuexec.ir.provider import Offer
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.model.initial_state import find_initial_specs
from gpuexec.model.model import Model
from gpuexec.passes import run_passes
from gpuexec.passes.clusters import explain_blits
from gpuexec.passes.recognise_attention import explain_softmaxes
from gpuexec.planner.partition import Partition
from gpuexec.planner.partitioner import find_partition
from gpuexec.planner.prediction import PlanPrediction, predict_plan
from gpuexec.planner.providers import Providers
from gpuexec.planner.template import plan_graph
from gpuexec.system.atomic_file import write_file
from gpuexec.system.records import Record

Array = np.ndarray[Any, Any]
_COUNTED_TARGET = "sm_90"
# The first line of generated text, which names the operators of all steps, and a line of a step with its operator.
_TITLE = re.compile(r"\A// (.*)\.$", re.MULTILINE)
_STEP = re.compile(r"^( *const (?:auto|Acc<\w+>) v(\d+)(?:_\d+)? = .*; {2}// \w[\w.]*)$", re.MULTILINE)
_NEAREST = 3
_TIMED_RUNS = 10  # for --onnx, behind a first one


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain", help="print the plans: commands, memory, values kept or read on the host"
    )
    add_arguments(parser)
    add_method_argument(parser)
    parser.add_argument(
        "--target", metavar="NAME", help="plan for this target without the device, e.g. sm_90 (default: by --backend)"
    )
    parser.add_argument(
        "--memory", metavar="OUT.html", type=Path, help="draw the arena over time, of every part that was planned"
    )
    add_json_argument(parser)
    parser.add_argument(
        "--count",
        action="store_true",
        help="run once on the simulator in count mode, and print the memory requests of each launch, and the arithmetic"
        " that it issued beside what it needs (see sanitize)",
    )
    parser.add_argument(
        "--onnx",
        metavar="OUT.onnx",
        help="write the model with where each node runs as its metadata, which Netron shows: device, kernel, region,"
        " bytes, microseconds (predicted with --target; else measured in some runs), and why the host computes it",
    )
    parser.add_argument(
        "--source",
        metavar="NODE",
        help="print the generated text of the kernels of a node, with the names of the nodes that it stands for, and"
        " nothing else (see --target)",
    )
    parser.set_defaults(main=main)


@dataclass(slots=True)
class Explanation(Record):
    """The plans of a model, and what is beside them.

    Attributes:
        model: Path of the file.
        target: Name of the target that it is planned for.
        precision: What products and convolutions are computed in.
        notes: About the inputs.
        plans: Those that can be made without a run; where that is not the whole model and there is a device, all that
            a run made.
        predictions: Of the plans, in order, for a GPU.
        layers: Where each layer runs, where that was asked for by --onnx.
        providers: The nodes that libraries could compute, with what was taken.
        softmaxes: Of softmaxes that are no attention with the products around them, why.
        unfused: Of operators that are no region on textures, why.
        is_whole: Whether one plan holds all of the model.
        host: What the host has to do between the plans, and why.
        report: Of the run that was needed to plan it all.
        counts: What was counted of each launch.
    """

    model: str
    target: str
    precision: str
    notes: Sequence[str]
    plans: Sequence[Plan] = ()
    predictions: Sequence[PlanPrediction] = ()
    layers: Sequence[LayerPlacement] = ()
    providers: Sequence[Mapping[str, Any]] = ()
    softmaxes: Mapping[str, str] = field(default_factory=dict)
    unfused: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = True
    host: Sequence[HostPart] = ()
    report: Report | None = None
    counts: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class HostPart:
    """Something that the host does between plans: it reads a value, or computes a node or a loop's trips."""

    does: str
    name: str
    reader: str
    why: str


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    console, tables = open_output(options), open_tables(options)
    if options.onnx is not None:
        check_output(options.onnx, [options.model], ".onnx")
    opened = open_model(options.model, options.method)
    model = take_precision(opened.model, options)
    target, providers = _open_target(options)
    feeds, notes = read_inputs(opened, options)
    found = Explanation(options.model, target.name, str(model.precision), notes)
    partition, offers, made = _plan(found, model, feeds, target, providers)
    if options.source is not None:
        _print_generated(found.plans, options.source)
        return 0
    for note in notes:
        console.print(note, style="dim", markup=False)
    console.print(f"precision {found.precision}", markup=False)
    for plan in found.plans:
        _print_plan(console, plan)
    if offers:
        print_offers(console, offers)
    for prediction in found.predictions:
        print_prediction(tables, prediction)
    if found.softmaxes:
        _print_reasons(console, ("softmax", "is no attention with the products around it, since"), found.softmaxes)
    if found.unfused:
        _print_reasons(console, ("operators", "are no region here, since"), found.unfused)
    if not found.is_whole:
        _print_partition(console, found.host, partition)
        if options.target is None:
            _run(console, found, model, feeds, target, options)
    if options.memory is not None:
        page = draw_memory(Path(options.model).name, found.plans, name_values(model.graph), found.predictions)
        write_file(options.memory, page)
        console.print(f"{len(found.plans)} arenas drawn to {options.memory}", markup=False)
    if options.count:
        counts = _count(model, feeds, options.target or _COUNTED_TARGET)
        print_launches(tables, counts)
        found.counts = [encode_counts(each) for each in counts]
    if options.onnx is not None:
        found.layers, placed = _place(found, made, model, feeds, options)
        if not found.layers:
            raise InputError("--onnx: nothing of this model is planned without a run. Leave out --target.")
        annotate(model, found.layers, placed).save(options.onnx)
        console.print(f"written to {options.onnx}: {len(found.layers)} layers", markup=False)
    print_json(options, **found.to_dict())
    return 0


def _place(
    found: Explanation,
    made: Mapping[str, tuple[str, ...]],
    model: Model,
    feeds: Mapping[str, Array],
    options: argparse.Namespace,
) -> tuple[tuple[LayerPlacement, ...], Mapping[str, tuple[str, ...]]]:
    """Return where each layer runs, and what it makes; times are predicted for a target, or measured on the device."""
    if options.target is not None:
        times: dict[str, float] = {}
        for command in (each for prediction in found.predictions for each in prediction.commands):
            times[command.origin] = times.get(command.origin, 0.0) + command.predicted_us
        return time_placements(list_placements(found.plans, found.target), times, "predicted"), made
    profiler = Profiler(memory=False)
    with open_worker(model, options, profiler=profiler) as worker:
        for _ in range(1 + _TIMED_RUNS):
            if model.memories:
                worker.state.reset()
            worker.run(feeds)
        report = worker.report()
        return time_placements(report.layers, list_measured(profiler, skip=1), "measured"), report._planned


def _plan(
    found: Explanation, model: Model, feeds: Mapping[str, Array], target: Target, providers: Providers
) -> tuple[Partition, Sequence[tuple[str, Offer]], dict[str, tuple[str, ...]]]:
    """Plan what can be planned without a run; return where that ends, what libraries offered, and what nodes make."""
    named = {port.name: TensorSpec.of(array_of(port, feeds[port.name])) for port in model.inputs}
    if model.memories:
        named |= find_initial_specs(model.graph, model.memories, model.dims, named)
    specs = {value: named[value.name] for value in model.graph.inputs}
    partition = find_partition(model.graph, specs, target)
    found.is_whole = not (partition.reads or partition.host_nodes or partition.repeat or partition.rest)
    found.host = _list_host_parts(partition)
    if partition.ready is None:
        return partition, (), {}
    given = {value.name: specs[value] for value in partition.ready.inputs}
    ready = run_passes(partition.ready, model._plan_passes, model.disabled_passes, given, target)
    if target.has_textures:
        fused = run_passes(partition.ready, model._plan_passes, model.disabled_passes, given)
        found.unfused = explain_blits(fused, given)
    if "recognise_attention" not in model.disabled_passes:
        found.softmaxes = explain_softmaxes(partition.ready, given)
    template = plan_graph(ready, given, target, model.dims, providers=providers)
    found.plans, found.providers = [template.plan], encode_offers(template.offers)
    if target.has_kernels:
        commands = template.specialise(given).commands
        found.predictions = [predict_plan(template.plan, commands, waits=find_waiting(target))]
    return partition, template.offers, list_made(template.graph)


def _list_host_parts(partition: Partition) -> list[HostPart]:
    reads = [HostPart("read", read.value.name, read.reader, read.role) for read in partition.reads]
    calls = [
        HostPart("compute", str(node), "", partition.host_calls.get(node, "light")) for node in partition.host_nodes
    ]
    repeat = partition.repeat
    return [*reads, *calls, *([] if repeat is None else [HostPart("repeat", str(repeat), "", "its body")])]


def _print_reasons(console: Console, titles: tuple[str, str], reasons: Mapping[str, str]) -> None:
    """Print why nodes did not become something else."""
    left = make_table(titles, ())
    for name, reason in reasons.items():
        left.add_row(name, reason)
    print_table(console, left)


def _print_plan(console: Console, plan: Plan) -> None:
    console.print(str(plan), markup=False)
    console.print(f"arena {plan.layout.nbytes:,} bytes, lower bound {plan.layout.lower_bound:,} bytes")
    kernels = plan.kernels()
    generated = sum(bool(kernel.text) for kernel in kernels)
    if generated:
        console.print(
            f"kernels {len(kernels)}, {generated} of generated text: a Worker with compile='background' runs unfused"
            " until they are compiled"
        )
    kept = make_table(("kept on the host", "reader", "why"), ("bytes",))
    for row in plan.host_values:
        kept.add_row(row.value, row.reader, row.why, str(row.nbytes))
    if plan.host_values:
        print_table(console, kept)
    else:
        console.print("no value is kept on the host")


def _print_generated(plans: Sequence[Plan], node: str) -> None:
    """Print the text of each kernel that a node has a part in.

    Args:
        plans: Where to look.
        node: A node of the model, or of a plan.

    Raises:
        InputError: No kernel of generated text is launched for it; names nodes that one is launched for.
    """
    rows = [
        (origin, command.kernel)
        for plan in plans
        for origin, command in zip(plan.segment.origins, plan.segment.commands, strict=True)
        if isinstance(command, Launch) and command.kernel.text
    ]
    found = dict.fromkeys((origin, kernel) for origin, kernel in rows if node in (origin, *origin.split("+")))
    if not found:
        names = list(dict.fromkeys(name for origin, _ in rows for name in origin.split("+")))
        near = difflib.get_close_matches(node, names, n=_NEAREST, cutoff=0.0)
        others = f"; there are such of {len(names)} nodes, like {', '.join(map(repr, near))}" if near else ""
        raise InputError(f"No kernel of generated text is launched for node {node!r}{others}.", node=node)
    for origin, kernel in found:
        print(f"// {kernel.source}: {kernel.expression}")
        print(_name_steps(kernel.text, origin))


def _name_steps(text: str, origin: str) -> str:
    """Return text with the node of each step behind it, or all names in front where there are more steps than nodes."""
    names, title = origin.split("+"), _TITLE.search(text)
    count = 0 if title is None else sum(" " not in word for word in title[1].split(", "))
    if any(int(match[2]) >= min(count, len(names)) for match in _STEP.finditer(text)):
        return f"// {origin}\n{text}"
    own = names[len(names) - count :]  # a producer and its view stand in front of the steps
    return _STEP.sub(lambda match: f"{match[1]} {own[int(match[2])]}", text)


def _print_partition(console: Console, host: Sequence[HostPart], partition: Partition) -> None:
    """Print why a plan does not hold the whole model."""
    reads = make_table(("then the host reads", "reader", "why"))
    for part in host:
        if part.does == "read":
            reads.add_row(escape(part.name), escape(part.reader), part.why)
    if partition.reads:
        print_table(console, reads)
    for part in host:
        if part.does == "compute":
            console.print(f"then the host computes {part.name}: {part.why}", markup=False)
        elif part.does == "repeat":
            console.print(f"then {part.name} runs its body, planned by itself", markup=False)
    if partition.rest is not None:
        console.print(f"then {len(partition.rest.nodes)} nodes are planned from what is known by then")


def _run(
    console: Console,
    found: Explanation,
    model: Model,
    feeds: dict[str, Array],
    target: Target,
    options: argparse.Namespace,
) -> None:
    """Run once, note all plans in order, and print those that are new and what the host did."""
    shown = len(found.plans)
    with open_worker(model, options) as worker:
        worker.run(feeds)
        found.plans, found.report = worker.plans[::-1], worker.report()
    for plan in found.plans[shown:]:
        _print_plan(console, plan)
    print_host_rows(console, found.report)
    waits = find_waiting(target)
    found.predictions = [predict_plan(plan, waits=waits) for plan in found.plans] if target.has_kernels else []


def _count(model: Model, feeds: dict[str, Array], target: str) -> Sequence[LaunchCounts]:
    """Run once on a simulator in count mode; return what was counted of each launch.

    Raises:
        InputError: The target has no CUDA kernels.
    """
    if Target.named(target).kind != "cuda":
        raise InputError(f"--count counts what CUDA kernels do, got --target {target!r}. Name one like 'sm_90'.")
    device = SimulatorDevice(instantiations, target, count_kernels=True)
    try:
        with Worker(model, backend=Backend(device, BackendType.SIMULATOR, "counts memory requests")) as worker:
            worker.run(feeds)
        return device.counts
    finally:
        device.close()


def _open_target(options: argparse.Namespace) -> tuple[Target, Providers]:
    """Return what to plan for, and the providers there: those asked for where no device is opened."""
    providers = read_providers(options.providers, options.tuning)
    if options.target is not None:
        return Target.named(options.target), providers
    from gpuexec.devices.backend import open_backend

    device = open_backend(BackendType(options.backend)).device
    return device.target, open_providers(providers, device)
