"""gpuexec explain: the plan of a model, its arena beside the lower bound, and every value kept on the host."""

from __future__ import annotations

import argparse
from typing import Any

from gpuexec import model as models
from gpuexec.cli.feeds import add_arguments, parse_dims, parse_rows, read_feeds
from gpuexec.planner.template import plan_graph
from gpuexec.runtime.backend import BackendType
from gpuexec.spec import TensorSpec
from gpuexec.target import Target


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain", help="print the plan: commands, memory, values kept on the host"
    )
    add_arguments(parser)
    parser.add_argument(
        "--target", metavar="NAME", help="plan for this target without the device, e.g. sm_90 (default: by --backend)"
    )
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    model = models.load(options.model)
    feeds, notes = read_feeds(model, options.input, parse_dims(options.dims), parse_rows(options.rows))
    for note in notes:
        console.print(note, style="dim", markup=False)
    specs = {name: TensorSpec(array.shape, array.dtype).with_value(array) for name, array in feeds.items()}
    template = plan_graph(model.graph, specs, _target(options), model.dims)
    plan = template.plan
    console.print(str(plan), markup=False)
    console.print(f"arena {plan.layout.nbytes:,} bytes, lower bound {plan.layout.lower_bound:,} bytes")
    kept = Table("kept on the host", "reader", "why", "bytes", box=None)
    for row in plan.host_values:
        kept.add_row(row.value, row.reader, row.why, str(row.nbytes))
    if plan.host_values:
        console.print(kept)
    else:
        console.print("no value is kept on the host")
    return 0


def _target(options: argparse.Namespace) -> Target:
    if options.target is not None:
        return Target.named(options.target)
    from gpuexec.runtime.backend import open_backend

    return open_backend(BackendType(options.backend)).device.target
