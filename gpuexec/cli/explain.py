"""gpuexec explain: the plans of a model, their arena beside the lower bound, providers, times, and host reads."""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from gpuexec.cli.count_tables import encode_counts, print_launches
from gpuexec.cli.feeds import add_arguments
from gpuexec.cli.free_dims import array_of
from gpuexec.cli.host_rows import print_host_rows
from gpuexec.cli.memory_page import draw_memory
from gpuexec.cli.precision_arguments import take_precision
from gpuexec.cli.predictions import encode_prediction, print_prediction
from gpuexec.cli.provider_arguments import encode_offers, print_offers
from gpuexec.cli.sources import add_method_argument, open_model, read_inputs
from gpuexec.devices.backend import Backend, BackendType
from gpuexec.devices.dependent_launch import find_waiting
from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.errors import InputError
from gpuexec.execution.profiling.lifetimes import name_values
from gpuexec.execution.profiling.terminal import make_table, open_console, print_table
from gpuexec.execution.resources.opened_providers import open_providers, read_providers
from gpuexec.execution.worker import Worker
from gpuexec.ir.command import Launch
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

Array = np.ndarray[Any, Any]
_COUNTED_TARGET = "sm_90"
# The first line of generated text, which names the operators of all steps, and a line of a step with its operator.
_TITLE = re.compile(r"\A// (.*)\.$", re.MULTILINE)
_STEP = re.compile(r"^( *const (?:auto|Acc<\w+>) v(\d+)(?:_\d+)? = .*; {2}// \w[\w.]*)$", re.MULTILINE)
_NEAREST = 3


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
    parser.add_argument(
        "--json",
        action="store_true",
        help="print what is predicted of the plan for a GPU as JSON, and nothing else: launches, bytes, microseconds,"
        " and a row for each command; with --count what was counted of each launch, too",
    )
    parser.add_argument(
        "--count",
        action="store_true",
        help="run once on the simulator in count mode, and print the memory requests of each launch, and the arithmetic"
        " that it issued beside what it needs (see sanitize)",
    )
    parser.add_argument(
        "--source",
        metavar="NODE",
        help="print the generated text of the kernels of a node, with the names of the nodes that it stands for, and"
        " nothing else (see --target)",
    )
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    console = Console(highlight=False, soft_wrap=True)
    opened = open_model(options.model, options.method)
    model = take_precision(opened.model, options)
    target, providers = _open_target(options)
    if options.json and not target.has_kernels:
        raise InputError(f"--json predicts plans for GPUs, got target {target.name!r}. Name one, like --target sm_90.")
    feeds, notes = read_inputs(opened, options)
    for note in () if options.json else notes:
        console.print(note, style="dim", markup=False)
    named = {port.name: TensorSpec.of(array_of(port, feeds[port.name])) for port in model.inputs}
    if model.memories:
        named |= find_initial_specs(model.graph, model.memories, model.dims, named)
    specs = {value: named[value.name] for value in model.graph.inputs}
    partition = find_partition(model.graph, specs, target)
    plans: list[Plan] = []
    predictions: list[PlanPrediction] = []
    reasons: dict[str, str] = {}
    undrawn: dict[str, str] = {}
    offers: Sequence[tuple[str, Offer]] = ()
    if partition.ready is not None:
        given = {value.name: specs[value] for value in partition.ready.inputs}
        ready = run_passes(partition.ready, model._plan_passes, model.disabled_passes, given, target)
        if target.has_textures:
            fused = run_passes(partition.ready, model._plan_passes, model.disabled_passes, given)
            undrawn = explain_blits(fused, given)
        if "recognise_attention" not in model.disabled_passes:
            reasons = explain_softmaxes(partition.ready, given)
        template = plan_graph(ready, given, target, model.dims, providers=providers)
        plans, offers = [template.plan], template.offers
        if target.has_kernels:
            commands = template.specialise(given).commands
            predictions = [predict_plan(template.plan, commands, waits=find_waiting(target))]
    is_whole = not (partition.reads or partition.host_nodes or partition.repeat or partition.rest)
    if options.json:
        counts = _count(model, feeds, target.name) if options.count else None
        _print_json(predictions, counts, offers, is_whole=is_whole)
        return 0
    if options.source is not None:
        _print_generated(plans, options.source)
        return 0
    console.print(f"precision {model.precision}", markup=False)
    for plan in plans:
        _print_plan(console, plan)
    if offers:
        print_offers(console, offers)
    for prediction in predictions:
        print_prediction(open_console(), prediction)
    if reasons:
        _print_reasons(console, ("softmax", "is no attention with the products around it, since"), reasons)
    if undrawn:
        _print_reasons(console, ("operators", "are no region here, since"), undrawn)
    if not is_whole:
        _print_partition(console, partition)
        if options.target is None:
            plans = _print_run(console, model, feeds, options)
            waits = find_waiting(target)
            predictions = [predict_plan(plan, waits=waits) for plan in plans] if target.has_kernels else []
    if options.memory is not None:
        page = draw_memory(Path(options.model).name, plans, name_values(model.graph), predictions)
        write_file(options.memory, page)
        console.print(f"{len(plans)} arenas drawn to {options.memory}", markup=False)
    if options.count:
        print_launches(open_console(), _count(model, feeds, options.target or _COUNTED_TARGET))
    return 0


def _print_json(
    predictions: Sequence[PlanPrediction],
    counts: Sequence[LaunchCounts] | None,
    offers: Sequence[tuple[str, Offer]],
    *,
    is_whole: bool,
) -> None:
    """Print the prediction of what can be planned without a run, and what was counted in one.

    Raises:
        InputError: Nothing can be planned before the host has read or computed something.
    """
    if not predictions:
        raise InputError("--json predicts a plan, and nothing of this model can be planned before the host takes part.")
    counted = {} if counts is None else {"counts": [encode_counts(each) for each in counts]}
    provided = {"providers": encode_offers(offers)} if offers else {}
    print(json.dumps({"is_whole": is_whole, **encode_prediction(predictions[0]), **provided, **counted}, indent=1))


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


def _print_partition(console: Console, partition: Partition) -> None:
    """Print why a plan does not hold the whole model."""
    reads = make_table(("then the host reads", "reader", "why"))
    for read in partition.reads:
        reads.add_row(escape(read.value.name), escape(read.reader), read.role)
    if partition.reads:
        print_table(console, reads)
    for node in partition.host_nodes:
        why = partition.host_calls.get(node, "light")
        console.print(f"then the host computes {node}: {why}", markup=False)
    if partition.repeat is not None:
        console.print(f"then {partition.repeat} runs its body, planned by itself", markup=False)
    if partition.rest is not None:
        console.print(f"then {len(partition.rest.nodes)} nodes are planned from what is known by then")


def _print_run(console: Console, model: Model, feeds: dict[str, Array], options: argparse.Namespace) -> list[Plan]:
    """Run once, and print the plans made and their host time; return all plans in order."""
    with Worker(
        model, backend=BackendType(options.backend), providers=options.providers, tuning=options.tuning
    ) as worker:
        worker.run(feeds)
        for plan in worker.plans[-2::-1]:
            _print_plan(console, plan)
        print_host_rows(console, worker.report())
        return list(worker.plans[::-1])


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
