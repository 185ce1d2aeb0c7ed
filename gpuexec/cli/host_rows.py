"""What runs read and computed on the host, as tables."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpuexec.report import Report


def print_host_rows(console: Console, report: Report) -> None:
    """Print host reads with waiting and copying apart, and host calls; nothing where there are none."""
    if report.host_reads:
        reads = Table("host reads", "node", "why", "times", "bytes", "waited ms", "copied ms", box=None)
        for row in report.host_reads:
            times = (str(row.times), str(row.nbytes), f"{row.waited_ms:.2f}", f"{row.copied_ms:.2f}")
            reads.add_row(escape(row.value), escape(row.node), row.why, *times)
        console.print(reads)
    if report.host_calls:
        calls = Table("host calls", "operator", "why", "times", "ms", box=None)
        for call in report.host_calls:
            calls.add_row(escape(call.node), call.operator, call.why, str(call.times), f"{call.computed_ms:.2f}")
        console.print(calls)
