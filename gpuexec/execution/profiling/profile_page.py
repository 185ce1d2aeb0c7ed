"""Profile as a fragment for notebooks and as a page: segments, timeline, roofline, and the time of each layer."""

from __future__ import annotations

from collections.abc import Sequence

from gpuexec.execution.profiling.rows import EventRow, LayerRow, RunRow, Summary
from gpuexec.execution.profiling.tables import spell
from gpuexec.execution.profiling.timeline_drawing import draw_segments, draw_timeline, list_segments
from gpuexec.ir.gpus import find_gpu_named
from gpuexec.ir.roofline import RooflinePoint, draw_roofline
from gpuexec.system.html import Markup, draw_bar, make_fragment, make_page, make_paragraph, make_section, make_table


def make_profile_fragment(
    runs: Sequence[RunRow], layers: Sequence[LayerRow], events: Sequence[EventRow], summaries: Sequence[Summary]
) -> str:
    """Return a profile for notebooks: the segments of its last run, and a table of summaries."""
    return make_fragment(
        f"Profile of {len(runs)} {'run' if len(runs) == 1 else 'runs'}",
        _draw_last(runs, layers, events),
        _make_summary(summaries),
    )


def make_profile_page(
    runs: Sequence[RunRow],
    layers: Sequence[LayerRow],
    events: Sequence[EventRow],
    summaries: Sequence[Summary],
    drawn: int,
) -> str:
    """Return a profile as a whole page, well-formed as XML too.

    Args:
        runs: All of them.
        layers: Of these runs.
        events: Of these runs.
        summaries: Of these layers.
        drawn: How many runs the timeline shows, the last ones.
    """
    shown = {row.run for row in runs[-drawn:]}
    return make_page(
        f"Profile of {len(runs)} {'run' if len(runs) == 1 else 'runs'}",
        _draw_last(runs, layers, events),
        make_section(
            f"Timeline of the last {len(shown)} runs" if len(shown) > 1 else "Timeline of the last run",
            make_paragraph("Arrows go from where the host put a layer on its stream to where the device began it."),
            draw_timeline(
                [row for row in layers if row.run in shown], [row for row in events if row.run in shown | {-1}]
            ),
        )
        if shown
        else "",
        _make_roofline(layers, summaries),
        _make_summary(summaries),
    )


def _draw_last(runs: Sequence[RunRow], layers: Sequence[LayerRow], events: Sequence[EventRow]) -> Markup:
    if not runs:
        return make_paragraph("No run was profiled yet.")
    last = runs[-1].run
    segments = list_segments([row for row in layers if row.run == last], [row for row in events if row.run == last])
    return make_section(f"Segments of run {last} of {runs[-1].model}, on {runs[-1].device}", draw_segments(segments))


def _make_roofline(layers: Sequence[LayerRow], summaries: Sequence[Summary]) -> Markup:
    devices = dict.fromkeys(row.device for row in layers if row.plan >= 0)
    gpu = find_gpu_named(next(iter(devices))) if len(devices) == 1 else None
    points = []
    for row in summaries:
        us, flops = row.avg_ms * 1e3, row.flops or 0
        about = f"{row.name}: {row.operator}, {us:,.1f} us, {flops:,} operations, {row.nbytes:,} bytes"
        # What is above the roof of floats is on tensor cores.
        is_on_matrices = gpu is not None and us > 0 and flops / us * 1e6 > gpu.float_rate
        points.append(RooflinePoint(about, flops, row.nbytes, us, "", is_on_matrices))
    drawing = draw_roofline(points, gpu, sum(row.avg_ms for row in summaries) * 1e3)
    about = "A circle is a layer as measured, its area the time it takes. " + (
        "The line is what the GPU could do at best." if gpu else f"The roofs of {', '.join(devices)} are not known."
    )
    return make_section("Roofline", make_paragraph(about), drawing) if drawing else Markup("")


def _make_summary(summaries: Sequence[Summary]) -> Markup:
    rows = [
        (
            row.name,
            row.operator,
            draw_bar(row.share, row.name),
            f"{100 * row.share:.1f}",
            f"{row.avg_ms:.4f}",
            f"{row.p50_ms:.4f}",
            f"{row.p90_ms:.4f}",
            "-" if row.flops is None else spell(row.flops),
            spell(row.nbytes),
        )
        for row in summaries
    ]
    titles = ("layer", "operator", "share", "%", "avg ms", "p50", "p90", "FLOP", "bytes")
    return make_section("Layers", make_table(titles, rows, numbers=6))
