"""Report of a Worker: counts, waits and memory, as data and as text."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gpuexec.devices.graph_cache import GraphCache
from gpuexec.execution.engine import Engine
from gpuexec.execution.placement import LayerPlacement, annotate, list_measured, list_placements, time_placements
from gpuexec.execution.profiling.profiler import Profiler
from gpuexec.execution.resources.memory_usage import MemoryUsageRow
from gpuexec.execution.resources.syncs import CallRow, CopyRow, ReadRow
from gpuexec.ir.plan import Plan
from gpuexec.ir.precision import STRICT
from gpuexec.model.model import Model
from gpuexec.model.state_spec import Memory
from gpuexec.system.html import make_fragment, make_section, make_table
from gpuexec.system.records import Record

_MIN_COLUMNS = 20


@dataclass(frozen=True, slots=True)
class Report(Record):
    """The runs of a Worker, with their plans and devices, as counts and names.

    ``compared`` is how many layers were compared with another backend. ``host_calls`` are nodes that ran on the host
    although the device has kernels; ``host_reads`` the values read back to go on; ``host_syncs`` implicit waits of the
    caller: (what, why) rows, the last thousand. ``plans_restored`` are plans whose layout came from a program;
    ``plans_refused`` says why others of its plans were made again. ``graphs`` are held now, each a plan launched as one
    with some set of addresses; ``graphs_refused`` says how many the device had no memory for, whose plans go on as
    launches. ``graph_launches`` is how often graphs were launched; ``nodes_updated`` has rows (kernel, why, times) of
    nodes updated before that, since an "address" or the "size" was another. ``profiled`` runs had a profiler,
    and were put on the stream as launches, layer by layer. ``precision`` is what products and convolutions are computed
    in, and the layers that are not. ``device_copies`` are inputs and outputs of the caller's
    that are copied on the device for where they start. ``providers`` are rows (node, provider, why) of the products and
    convolutions for which a library was asked. ``plans_waiting`` are those whose kernels are being compiled in the
    background, ``runs_unfused`` runs in which other plans stood for such; ``uncompiled`` says of kernels that can't be
    compiled there why, and plans go on unfused then. Times in milliseconds.
    """

    backend: str
    reason: str
    runs: int
    plans: int
    variants: int
    plan_ms: float
    compile_ms: float
    compared: int
    host_calls: tuple[CallRow, ...]
    host_reads: tuple[ReadRow, ...]
    host_syncs: tuple[tuple[str, str], ...]
    plans_restored: int = 0
    plans_refused: tuple[str, ...] = ()
    graphs: int = 0
    graphs_refused: int = 0
    graph_launches: int = 0
    nodes_updated: tuple[tuple[str, str, int], ...] = ()
    profiled: int = 0
    device_copies: tuple[CopyRow, ...] = ()
    precision: str = STRICT
    providers: tuple[tuple[str, str, str], ...] = ()
    plans_waiting: int = 0
    runs_unfused: int = 0
    uncompiled: tuple[str, ...] = ()
    _plans: tuple[Plan, ...] = field(default=(), repr=False, compare=False)
    _planned: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False, compare=False)
    _FOUND: ClassVar = ("layers",)

    @property
    def layers(self) -> tuple[LayerPlacement, ...]:
        """The layers of the plans, newest plan first, and the nodes that the host computed: where each runs."""
        return list_placements(self._plans, self.backend, self.host_calls)

    def annotate(self, model: Model, profiler: Profiler | None = None) -> Model:
        """Return a model whose nodes say where they ran, as metadata: `Model.save` writes it, Netron shows it.

            worker.report().annotate(model).save("where.onnx")

        The keys are ``gpuexec.device``, ``kernel``, ``region`` (all nodes that run as one), ``bytes``, ``us`` (with
        ``us_is``: measured or predicted), and ``host_reason`` of what the host computed. Other metadata stays.

        Args:
            model: The Worker's, or another with nodes of the same names.
            profiler: Of some of the Worker's runs, whose times to write; waits for them.

        Raises:
            InputError: No layer is of a node of the model.
        """
        times = {} if profiler is None else list_measured(profiler)
        return annotate(model, time_placements(self.layers, times, "measured"), self._planned)

    def _repr_html_(self) -> str:
        return _make_fragment(self)


def make_report(engine: Engine, reason: str) -> Report:
    """Return what an engine did so far; ``reason`` says why it runs where it does."""
    counters, syncs = engine.planning.counters, engine.syncs
    return Report(
        backend=engine.backend.device.name,
        reason=reason,
        runs=engine.run_counter.number,
        plans=counters.plans,
        variants=counters.variants,
        plan_ms=counters.plan_ms,
        compile_ms=counters.compile_ms,
        compared=0 if engine.comparer is None else engine.comparer.compared,
        host_calls=syncs.calls,
        host_reads=syncs.reads,
        host_syncs=syncs.waits,
        plans_restored=counters.restored,
        plans_refused=tuple(counters.refused),
        graphs=engine.planning.graphs.count,
        graphs_refused=engine.planning.graphs.refused,
        graph_launches=engine.planning.graphs.launched,
        nodes_updated=_list_updates(engine.planning.graphs),
        profiled=engine.profiled,
        device_copies=syncs.copies,
        precision=str(engine.model.precision),
        providers=tuple((node, offer.chosen, offer.reason) for node, offer in dict(engine.planning.offers).items()),
        plans_waiting=0 if engine.planning.compiler is None else engine.planning.compiler.waiting,
        runs_unfused=counters.unfused,
        uncompiled=tuple(counters.uncompiled),
        _plans=tuple(engine.planning.plans),
        _planned=dict(engine.planning.planned),
    )


def count_memory(engine: Engine) -> dict[str, int]:
    """Return bytes held, by purpose."""
    return {row.name: row.nbytes for row in describe_memory(engine)} | {
        "arena_lower_bound": max((plan.layout.lower_bound for plan in engine.planning.plans), default=0)
    }


def describe_memory(engine: Engine) -> tuple[MemoryUsageRow, ...]:
    """Return what memory is held, and since when."""
    last = engine.run_counter.number
    return engine.memory_usage.list_rows(last - 1 if last else None)


class PrintedText(str):
    r"""Text of several lines, which an interactive Python or a notebook shows as such, and not with ``\n`` in quotes.

    It is a ``str`` in all else. Lines are folded there to the width of the terminal, what follows indented below.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        width = max(_MIN_COLUMNS, shutil.get_terminal_size().columns)
        return "\n".join(part for line in self.split("\n") for part in _fold(line, width))


def summarise(
    model_name: str, nodes: int, report: Report, memory: Sequence[MemoryUsageRow], states: Sequence[Memory]
) -> PrintedText:
    """Return report, memory and states as readable text."""
    lines = [
        f"{model_name}: {nodes} nodes on {report.backend} ({report.reason})",
        f"  runs {report.runs}, plans {report.plans}, sizes {report.variants}",
        *([f"  precision {report.precision}"] if report.precision != STRICT else []),
        *([f"  providers {_count_providers(report)}"] if report.providers else []),
        f"  planning {report.plan_ms:.1f} ms, compiling {report.compile_ms:.1f} ms",
        *([f"  plans restored from the program {report.plans_restored}"] if report.plans_restored else []),
        *(f"  a plan of the program was made again: {why}" for why in report.plans_refused),
        *([f"  plans that wait for kernels {report.plans_waiting}"] if report.plans_waiting else []),
        *([f"  runs unfused meanwhile {report.runs_unfused}"] if report.runs_unfused else []),
        *(f"  a plan goes on unfused: {why}" for why in report.uncompiled),
        *([f"  graphs {report.graphs}, launched {report.graph_launches} times"] if report.graphs else []),
        *([f"  nodes updated {_spell_updates(report)}"] if report.nodes_updated else []),
        *([f"  runs profiled, as launches layer by layer {report.profiled}"] if report.profiled else []),
        *([f"  graphs there was no memory for {report.graphs_refused}"] if report.graphs_refused else []),
        *(f"  memory {row}" for row in memory if row.most_nbytes),
    ]
    lines += [
        f"  host call {row.node} ({row.operator}), {row.times} times, {row.computed_ms:.2f} ms: {row.why}"
        for row in report.host_calls
    ]
    lines += [
        f"  host read {row.value} for {row.node} ({row.why}), {row.times} times, {row.nbytes} B,"
        f" waited {row.waited_ms:.2f} ms, copied {row.copied_ms:.2f} ms"
        for row in report.host_reads
    ]
    lines += [
        f"  device copy {row.value}, {row.times} times, {row.nbytes} B: {row.why}" for row in report.device_copies
    ]
    if report.compared:
        lines.append(f"  compared {report.compared} layers with NumPy: all within their operators' tolerances")
    lines += [f"  host wait for {what}: {why}" for what, why in report.host_syncs]
    lines += [f"  state {each}" for each in states]
    return PrintedText("\n".join(lines))


def _fold(line: str, width: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, width, subsequent_indent=indent) or [""]


def _list_updates(graphs: GraphCache) -> tuple[tuple[str, str, int], ...]:
    rows = dict(graphs.updated).items()
    return tuple(sorted((kernel, "size" if is_size else "address", times) for (kernel, is_size), times in rows))


def _spell_updates(report: Report) -> str:
    return ", ".join(f"{kernel} {times} (another {why})" for kernel, why, times in report.nodes_updated)


def _count_providers(report: Report) -> str:
    counts = Counter(provider for _, provider, _ in report.providers)
    return ", ".join(f"{provider} {count}" for provider, count in sorted(counts.items()))


def _make_fragment(report: Report) -> str:
    """Return a report for notebooks: counts, and a table of each kind of rows that there are."""
    facts = [
        ("backend", f"{report.backend} ({report.reason})"),
        ("runs", report.runs),
        ("plans, sizes", f"{report.plans}, {report.variants}"),
        ("planning, compiling", f"{report.plan_ms:.1f} ms, {report.compile_ms:.1f} ms"),
        ("precision", report.precision),
    ]
    counts = [
        ("plans restored from the program", report.plans_restored),
        ("plans that wait for kernels", report.plans_waiting),
        ("runs unfused meanwhile", report.runs_unfused),
        ("graphs", report.graphs),
        ("launches of graphs", report.graph_launches),
        ("graphs there was no memory for", report.graphs_refused),
        ("runs profiled", report.profiled),
        ("layers compared with NumPy", report.compared),
    ]
    calls = [(row.node, row.operator, row.why, row.times, f"{row.computed_ms:.2f}") for row in report.host_calls]
    reads = [
        (row.value, row.node, row.why, row.times, f"{row.nbytes:,}", f"{row.waited_ms:.2f}", f"{row.copied_ms:.2f}")
        for row in report.host_reads
    ]
    copies = [(row.value, row.why, row.times, f"{row.nbytes:,}") for row in report.device_copies]
    refused = [("made again", why) for why in report.plans_refused] + [("unfused", why) for why in report.uncompiled]
    sections = {
        "Computed on the host": make_table(("node", "operator", "why", "times", "ms"), calls, numbers=2),
        "Read by the host": make_table(
            ("value", "node", "why", "times", "bytes", "waited ms", "copied ms"), reads, numbers=4
        ),
        "Waited for by the host": make_table(("for", "why"), report.host_syncs),
        "Copied on the device": make_table(("value", "why", "times", "bytes"), copies, numbers=2),
        "Nodes of graphs updated": make_table(("kernel", "another", "times"), report.nodes_updated, numbers=1),
        "Providers": make_table(("node", "provider", "why"), report.providers),
        "Plans": make_table(("", "why"), refused),
    }
    return make_fragment(
        f"Report of a Worker on {report.backend}",
        make_table((), [*facts, *(row for row in counts if row[1])]),
        *(make_section(title, table) for title, table in sections.items()),
    )
