"""Drawings of profiled runs: the timeline of threads and streams, and the strip of segments with what cut each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuexec.execution.profiling.rows import HOST, SYNCS, EventRow, LayerRow
from gpuexec.execution.profiling.trace import Span, list_spans, place_spans
from gpuexec.system.html import (
    Markup,
    choose_hue,
    draw_box,
    draw_label,
    draw_text,
    make_drawing,
    make_table,
)

WIDTH = 1100.0
_MAX_WIDTH, _LAYER_WIDTH = 6000.0, 14.0
_LEFT, _RIGHT, _TOP = 10.0, 40.0, 24.0
_TITLE, _BOX, _LANE = 14.0, 20.0, 56.0  # of a lane: its title, its boxes, and the whole of it
_STRIP_HEIGHT = 64.0
_TICKS = 8
_MIN_BOX = 0.8
_INSET = 3.0


@dataclass(frozen=True, slots=True)
class RunSegment:
    """Layers of one run that the device got one after the other, without the host in between.

    Attributes:
        plan: Their plan; -1 where the host computed them.
        layers: How many.
        start_ms: When the first began.
        end_ms: When the last ended.
        cut: What the host did before what follows, with what it waited for; empty behind the last.
    """

    plan: int
    layers: int
    start_ms: float
    end_ms: float
    cut: str


def list_segments(layers: Sequence[LayerRow], events: Sequence[EventRow]) -> list[RunSegment]:
    """Return the segments of one run, and the nodes that the host computed, in the order they were issued.

    Args:
        layers: Of the run, in the order they were issued.
        events: Of the run.
    """
    syncs = [row for row in events if row.name in SYNCS and row.start_ms is not None]
    groups: list[list[LayerRow]] = []
    for row in layers:
        if not groups or row.plan != groups[-1][0].plan or row.plan < 0 or row.commands is groups[-1][0].commands:
            groups.append([])
        groups[-1].append(row)
    segments = []
    for number, group in enumerate(groups):
        cut = ""
        if number + 1 < len(groups):
            issued, following = group[-1].issued_ms, groups[number + 1][0]
            between = [row for row in syncs if issued <= (row.start_ms or 0.0) <= following.issued_ms]
            cut = "; ".join(f"{row.name}: {row.about}" for row in between) or (
                "no wait: the next trip" if following.plan == group[0].plan else f"no wait: on to {following.node}"
            )
        starts, ends = zip(*map(_find_interval, group), strict=True)
        segments.append(RunSegment(group[0].plan, len(group), min(starts), max(ends), cut))
    return segments


def draw_segments(segments: Sequence[RunSegment]) -> Markup:
    """Return a drawing of a run's segments over time, and a table of what cut each; empty where there are none."""
    if not segments:
        return Markup("")
    scale = _TimeScale(min(each.start_ms for each in segments), max(each.end_ms for each in segments), WIDTH)
    parts = list(_draw_axis(scale, _STRIP_HEIGHT))
    rows = []
    for number, segment in enumerate(segments):
        x = scale.x(segment.start_ms)
        width = max(_MIN_BOX, scale.x(segment.end_ms) - x)
        what = "the host" if segment.plan < 0 else f"plan {segment.plan}"
        taken = f"{segment.end_ms - segment.start_ms:.3f}"
        about = f"{number}: {what}, {segment.layers} layers, {taken} ms" + (
            f"; then {segment.cut}" if segment.cut else ""
        )
        hue = None if segment.plan < 0 else choose_hue(segment.plan)
        kind = "box event" if segment.plan < 0 else "box segment"
        parts.append(draw_box(x, _TOP, width, _BOX, about, kind=kind, hue=hue))
        parts.append(draw_label(x, _TOP + 14, what, width, kind="name" if segment.plan < 0 else "label"))
        if segment.cut:
            parts.append(draw_box(x + width, _TOP - 4, 2, _BOX + 8, segment.cut, kind="box cut"))
        rows.append((number, what, segment.cut, segment.layers, taken))
    table = make_table(("", "segment", "cut by", "layers", "ms"), rows, numbers=2)
    return Markup(f"{make_drawing('segments of a run', WIDTH, _STRIP_HEIGHT, parts, kind='strip')}\n{table}")


def draw_timeline(layers: Sequence[LayerRow], events: Sequence[EventRow]) -> Markup:
    """Return a drawing of layers and events over time, with an arrow from where the host put a layer on its stream.

    Threads of the host stand above, streams of devices below. Events are cut off where the first layer is issued, and
    a millisecond has the more room the more layers there are. Empty where there are none.
    """
    if not layers:
        return Markup("")
    begin_ms = min(row.issued_ms for row in layers)
    placed = [each for each in place_spans(list_spans(layers, events)) if each[0].end_ns > begin_ms * 1e6]
    placed.sort(key=lambda each: each[0].process != HOST)
    end_ms = max(span.end_ns for span, _ in placed) / 1e6
    scale = _TimeScale(begin_ms, end_ms, min(_MAX_WIDTH, max(WIDTH, _LAYER_WIDTH * len(layers))))
    lanes = {track: number for number, track in enumerate(dict.fromkeys((s.process, t) for s, t in placed))}
    hues = {name: choose_hue(number) for number, name in enumerate(dict.fromkeys(row.operator for row in layers))}
    parts = list(_draw_axis(scale, _TOP + _LANE * len(lanes)))
    for (process, track), number in lanes.items():
        parts.append(draw_text(_LEFT, _TOP + _LANE * number + _TITLE - 4, f"{process}: {track}"))
    open_ends: dict[int, list[int]] = {}
    ends: dict[int, list[tuple[float, float]]] = {}
    for span, track in placed:
        lane = lanes[span.process, track]
        around = [each for each in open_ends.get(lane, []) if each > span.start_ns]
        open_ends[lane] = [*around, span.end_ns]
        inset = min(_INSET * len(around), _BOX / 2 - 2)
        x, y = max(scale.x(span.start_ns / 1e6), _LEFT), _TOP + _LANE * lane + _TITLE
        width = max(_MIN_BOX, scale.x(span.end_ns / 1e6) - x)
        parts += _draw_span(span, x, y + inset, width, _BOX - 2 * inset, hues)
        if span.flow is not None:
            ends.setdefault(span.flow, []).append((x + width, y + _BOX) if span.kind == "issue" else (x, y))
    parts += [_draw_arrow(flow, *found) for flow, found in ends.items() if len(found) == 2]
    return make_drawing("timeline", scale.width, _TOP + _LANE * len(lanes) + 4, parts, kind="timeline")


@dataclass(frozen=True, slots=True)
class _TimeScale:
    """Scale of a drawing: milliseconds to coordinates."""

    begin_ms: float
    end_ms: float
    width: float

    def x(self, ms: float) -> float:
        return _LEFT + (self.width - _LEFT - _RIGHT) * (ms - self.begin_ms) / ((self.end_ms - self.begin_ms) or 1.0)


def _find_interval(row: LayerRow) -> tuple[float, float]:
    """Return when a layer began and ended; what failed, when it was issued."""
    if row.start_ms is None or row.duration_ms is None:
        return row.issued_ms, row.issued_ms + row.issue_ms
    return row.start_ms, row.start_ms + row.duration_ms


def _draw_axis(scale: _TimeScale, height: float) -> Iterator[str]:
    ticks = round(_TICKS * scale.width / WIDTH)
    yield '<g class="axis">'
    for tick in range(ticks + 1):
        ms = (scale.end_ms - scale.begin_ms) * tick / ticks
        x = scale.x(scale.begin_ms + ms)
        yield f'<path d="M{x:.1f} {_TOP - 6:g}V{height:g}" stroke-opacity="0.15"/>'
        yield draw_text(x, 12, f"{ms:.3g} ms", anchor="middle" if tick else "start")
    yield "</g>"


def _draw_span(span: Span, x: float, y: float, width: float, height: float, hues: dict[str, float]) -> Iterator[Markup]:
    taken = (span.end_ns - span.start_ns) / 1e3
    operator = span.about.get("operator", "")
    details = [operator, *span.about.get("commands", ()), span.about.get("about", "")]
    about = ", ".join([f"{span.kind} {span.name}: {taken:,.1f} us", *(each for each in details if each)])
    hue = hues.get(operator) if span.kind == "layer" else None
    yield draw_box(x, y, width, height, about, kind=f"box {span.kind}", hue=hue)
    yield draw_label(x, y + height / 2 + 4, span.name, width, kind="label" if span.kind == "layer" else "name")


def _draw_arrow(flow: int, start: tuple[float, float], end: tuple[float, float]) -> Markup:
    (x, y), (to_x, to_y) = start, end
    middle = (y + to_y) / 2
    return Markup(
        f'<path class="arrow" data-flow="{flow}" d="M{x:.2f} {y:.2f}C{x:.2f} {middle:.2f} {to_x:.2f} {middle:.2f}'
        f' {to_x:.2f} {to_y - 4:.2f}"/><path class="head" d="M{to_x - 3:.2f} {to_y - 6:.2f}h6l-3 6z"/>'
    )
