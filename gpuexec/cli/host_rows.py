"""Tables of host reads and host computations of runs."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from gpuexec.execution.profiling.terminal import make_table, print_table
from gpuexec.execution.report import Report


def print_host_rows(console: Console, report: Report) -> None:
    """Print host reads with waiting and copying apart, and host calls, if there are any."""
    if report.host_reads:
        reads = make_table(("host reads", "node", "why"), ("times", "bytes", "waited ms", "copied ms"))
        for row in report.host_reads:
            times = (str(row.times), str(row.nbytes), f"{row.waited_ms:.2f}", f"{row.copied_ms:.2f}")
            reads.add_row(escape(row.value), escape(row.node), row.why, *times)
        print_table(console, reads)
    if report.host_calls:
        calls = make_table(("host calls", "operator", "why"), ("times", "ms"))
        for call in report.host_calls:
            calls.add_row(escape(call.node), call.operator, call.why, str(call.times), f"{call.computed_ms:.2f}")
        print_table(console, calls)
