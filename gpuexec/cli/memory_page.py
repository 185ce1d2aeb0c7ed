"""HTML page of the arena of plans over time, and of their predicted times as a roofline, without dependencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gpuexec.cli.predictions import draw_roofline
from gpuexec.execution.profiling.lifetimes import BufferLifetime, list_lifetimes
from gpuexec.ir.geometry import round_up
from gpuexec.ir.plan import Plan
from gpuexec.planner.arena import ALIGNMENT
from gpuexec.planner.prediction import PlanPrediction

WIDTH, HEIGHT = 1100.0, 420.0
_LEFT, _TOP, _RIGHT, _BOTTOM = 80.0, 24.0, 20.0, 30.0
_TICKS = 8
_LETTER_WIDTH = 6.2
# Degrees between the colours of successive buffers: far apart, and without early repetition.
_TURN = 137.5


def draw_memory(
    title: str,
    plans: Sequence[Plan],
    made_by: Mapping[str, Sequence[str]],
    predictions: Sequence[PlanPrediction] = (),
) -> str:
    """Return an HTML page, well-formed as XML too, with a drawing of each plan's arena: commands by bytes.

    Args:
        title: Name of the model.
        plans: The plans, in order.
        made_by: Nodes by the values that they make.
        predictions: A prediction for each plan, drawn as a roofline below its arena; empty: there are none.
    """
    parts = []
    for number, plan in enumerate(plans, 1):
        parts.append(_draw_part(number, len(plans), plan, list_lifetimes(plan, made_by)))
        parts += [_draw_prediction(each) for each in predictions[number - 1 : number]]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8"/>',
            f"<title>Memory of {_escape(title)}</title>",
            f"<style>{_STYLE}</style></head><body>",
            f"<h1>Memory of {_escape(title)}</h1>",
            "<p>Time goes to the right, a command at a time; bytes of the arena go up. A rectangle is a buffer, from"
            " the first command that uses it to the last.</p>",
            *parts,
            f"<script>{_SCRIPT}</script></body></html>",
            "",
        ]
    )


def find_peak(lifetimes: Sequence[BufferLifetime], commands: int) -> tuple[int, int]:
    """Return the command during which the most bytes are in use, and how many, in whole units of alignment."""
    loads = [0] * (commands + 1)
    for lifetime in lifetimes:
        for command in range(lifetime.first, lifetime.last):
            loads[command] += round_up(lifetime.nbytes, ALIGNMENT)
    peak = max(loads)
    return loads.index(peak), peak


@dataclass(frozen=True, slots=True)
class _Scale:
    """Scale of the drawing: commands and bytes to coordinates."""

    commands: int
    nbytes: int

    def x(self, command: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * command / max(self.commands, 1)

    def y(self, nbytes: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * nbytes / max(self.nbytes, 1)


def _draw_part(number: int, count: int, plan: Plan, lifetimes: Sequence[BufferLifetime]) -> str:
    layout, commands = plan.layout, len(plan.segment.commands)
    scale = _Scale(commands, max(layout.nbytes, layout.lower_bound))
    ratio = layout.nbytes / layout.lower_bound if layout.lower_bound else 1.0
    moment, peak = find_peak(lifetimes, commands)
    part = f"Part {number} of {count}: " if count > 1 else ""
    lines = [
        f"<section><h2>{part}{commands} commands for {_escape(plan.target)}</h2>",
        f"<p>arena {layout.nbytes:,} bytes, lower bound {layout.lower_bound:,} bytes ({ratio:.3f}), peak {peak:,} bytes"
        f" at command {moment}, {len(lifetimes)} buffers</p>",
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" xmlns="http://www.w3.org/2000/svg" role="img">',
        *_draw_axes(scale),
        f'<rect class="peak" x="{scale.x(moment):.3f}" y="{_TOP:g}" width="{scale.x(moment + 1) - scale.x(moment):.3f}"'
        f' height="{HEIGHT - _TOP - _BOTTOM:g}"><title>peak: {peak:,} bytes at command {moment}</title></rect>',
        *(line for lifetime in lifetimes for line in _draw_lifetime(lifetime, scale)),
        _draw_level("bound", layout.lower_bound, "lower bound", scale),
        _draw_level("arena", layout.nbytes, "arena", scale),
        "</svg>",
        '<p class="about">Point at a buffer.</p></section>',
    ]
    return "\n".join(lines)


def _draw_prediction(prediction: PlanPrediction) -> str:
    return "\n".join(
        [
            f"<section><h2>Predicted: {prediction.predicted_us:,.0f} us on {_escape(prediction.gpu.name)}</h2>",
            f"<p>{prediction.launches} launches, at least {prediction.floor_us:,.0f} us; {prediction.moved_nbytes:,}"
            f" bytes moved of at least {prediction.minimum_nbytes:,}. A circle is a command, its area the time it"
            " takes; the line is what the GPU could do at best.</p>",
            draw_roofline(prediction),
            '<p class="about">Point at a command.</p></section>',
        ]
    )


def _draw_axes(scale: _Scale) -> Iterator[str]:
    yield f'<g class="axis"><path d="M{_LEFT:g} {_TOP:g}V{HEIGHT - _BOTTOM:g}H{WIDTH - _RIGHT:g}"/>'
    step = max(1, -(-scale.commands // _TICKS))
    for command in range(0, scale.commands + 1, step):
        yield f'<text x="{scale.x(command):.1f}" y="{HEIGHT - 10:g}" text-anchor="middle">{command}</text>'
    for tick in range(_TICKS // 2 + 1):
        nbytes = scale.nbytes * tick // (_TICKS // 2)
        yield f'<text x="{_LEFT - 6:g}" y="{scale.y(nbytes) + 4:.1f}" text-anchor="end">{_spell(nbytes)}</text>'
    yield "</g>"


def _draw_lifetime(lifetime: BufferLifetime, scale: _Scale) -> Iterator[str]:
    x, y = scale.x(lifetime.first), scale.y(lifetime.offset + lifetime.nbytes)
    width, height = scale.x(lifetime.last) - x, scale.y(lifetime.offset) - y
    data = {
        "buffer": lifetime.buffer,
        "offset": lifetime.offset,
        "nbytes": lifetime.nbytes,
        "first": lifetime.first,
        "last": lifetime.last,
    }
    attributes = " ".join(f'data-{name}="{value}"' for name, value in data.items())
    hue = lifetime.buffer * _TURN % 360
    yield (
        f'<rect class="buffer" x="{x:.3f}" y="{y:.3f}" width="{width:.3f}" height="{height:.3f}"'
        f' fill="hsl({hue:.0f} 55% 62%)" {attributes}><title>{_escape(str(lifetime))}</title></rect>'
    )
    label = (lifetime.nodes or ("",))[0]
    room = int(width / _LETTER_WIDTH) - 1
    if room > 2 and height > 13 and label:
        shown = label if len(label) <= room else label[: room - 1] + "…"
        yield f'<text class="label" x="{x + 4:.1f}" y="{y + 12:.1f}">{_escape(shown)}</text>'


def _draw_level(name: str, nbytes: int, text: str, scale: _Scale) -> str:
    y = scale.y(nbytes)
    # The arena's name stands at the right end, the bound's at the left: the two are often one line.
    x, anchor = (WIDTH - _RIGHT, "end") if name == "arena" else (_LEFT + 4, "start")
    return (
        f'<g class="level {name}" data-nbytes="{nbytes}"><path d="M{_LEFT:g} {y:.3f}H{WIDTH - _RIGHT:g}"/>'
        f'<text x="{x:g}" y="{y - 5:.1f}" text-anchor="{anchor}">{text} {nbytes:,}</text></g>'
    )


def _escape(text: str) -> str:
    """Escape text for the page; control characters, which XML does not allow, are replaced."""
    return escape("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text))


def _spell(nbytes: int) -> str:
    """Format bytes in the unit that keeps them short."""
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:,.1f} {unit}"
    return f"{nbytes} B"


_STYLE = """
:root { color-scheme: light dark; font: 14px system-ui, sans-serif; }
body { max-width: 1160px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin: 1.6em 0 0; } p { margin: .4em 0; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
.axis path, .level path { fill: none; stroke: currentColor; }
.bound path { stroke-dasharray: 6 4; stroke: #c22; } .arena path { stroke: #26c; }
.buffer { stroke: #0006; } .buffer:hover { stroke: currentColor; stroke-width: 2; }
.peak { fill: #c222; } svg .label { fill: #000; pointer-events: none; }
.roof { fill: none; stroke: currentColor; stroke-width: 2; }
.command { fill: #888a; stroke: #0006; } .command:hover { stroke: currentColor; stroke-width: 2; }
.issue { fill: #26ca; } .tensor { fill: #62ca; }
.shared { fill: #a2ca; } .l2 { fill: #2a8a; } .dram { fill: #c22a; } .latency { fill: #c82a; }
.about { font-family: ui-monospace, monospace; min-height: 1.3em; }
"""
# Free of XML markup.
_SCRIPT = """
for (const section of document.querySelectorAll("section")) {
  const about = section.querySelector(".about");
  const idle = about.textContent;
  section.addEventListener("pointerover", function (event) {
    const rect = event.target.closest(".buffer, .command");
    about.textContent = rect ? rect.querySelector("title").textContent : idle;
  });
}
"""
