"""Drawing of an arena over time: buffers as rectangles of commands by bytes, its bound and its peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuexec.ir.geometry import round_up
from gpuexec.system.html import (
    Markup,
    choose_hue,
    draw_box,
    draw_label,
    draw_text,
    make_drawing,
    make_paragraph,
    spell_bytes,
)

# Offsets in an arena are multiples of it, in bytes, so any dtype may follow any other.
ARENA_ALIGNMENT = 256
WIDTH, HEIGHT = 1100.0, 420.0
_LEFT, _TOP, _RIGHT, _BOTTOM = 80.0, 24.0, 20.0, 30.0
_TICKS = 8


@dataclass(frozen=True, slots=True)
class BufferLifetime:
    """Lifetime of a buffer in the arena: bytes from ``offset`` on, during commands ``[first, last)``."""

    buffer: int
    offset: int
    nbytes: int
    first: int
    last: int
    nodes: tuple[str, ...]
    values: tuple[str, ...]

    def __str__(self) -> str:
        values = ", ".join(f"%{value}" for value in self.values) or "scratch"
        return (
            f"buffer %{self.buffer}: {values}, written by {', '.join(self.nodes) or 'nothing'}; {self.nbytes:,} bytes"
            f" at arena+{self.offset:,}; commands {self.first} to {self.last - 1}"
        )


def find_peak(lifetimes: Sequence[BufferLifetime], commands: int) -> tuple[int, int]:
    """Return the command during which the most bytes are in use, and how many, in whole units of alignment."""
    loads = [0] * (commands + 1)
    for lifetime in lifetimes:
        for command in range(lifetime.first, lifetime.last):
            loads[command] += round_up(lifetime.nbytes, ARENA_ALIGNMENT)
    peak = max(loads)
    return loads.index(peak), peak


def draw_arena(lifetimes: Sequence[BufferLifetime], commands: int, nbytes: int, lower_bound: int) -> Markup:
    """Return a drawing of an arena, below a line with its bytes.

    Time goes to the right, a command at a time; bytes of the arena go up. A rectangle is a buffer, from the first
    command that uses it to the last.

    Args:
        lifetimes: Of its buffers.
        commands: How many the plan has.
        nbytes: Of the arena.
        lower_bound: Of any arena, in bytes.
    """
    scale = _ArenaScale(commands, max(nbytes, lower_bound))
    ratio = nbytes / lower_bound if lower_bound else 1.0
    moment, peak = find_peak(lifetimes, commands)
    x = scale.x(moment)
    parts = [
        *_draw_axes(scale),
        draw_box(
            x,
            _TOP,
            scale.x(moment + 1) - x,
            HEIGHT - _TOP - _BOTTOM,
            f"peak: {peak:,} bytes at command {moment}",
            kind="peak",
        ),
        *(part for lifetime in lifetimes for part in _draw_lifetime(lifetime, scale)),
        _draw_level("bound", lower_bound, "lower bound", scale),
        _draw_level("arena", nbytes, "arena", scale),
    ]
    about = (
        f"arena {nbytes:,} bytes, lower bound {lower_bound:,} bytes ({ratio:.3f}), peak {peak:,} bytes"
        f" at command {moment}, {len(lifetimes)} buffers"
    )
    return Markup(make_paragraph(about) + "\n" + make_drawing("arena over time", WIDTH, HEIGHT, parts))


@dataclass(frozen=True, slots=True)
class _ArenaScale:
    """Scale of the drawing: commands and bytes to coordinates."""

    commands: int
    nbytes: int

    def x(self, command: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * command / max(self.commands, 1)

    def y(self, nbytes: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * nbytes / max(self.nbytes, 1)


def _draw_axes(scale: _ArenaScale) -> Iterator[str]:
    yield f'<g class="axis"><path d="M{_LEFT:g} {_TOP:g}V{HEIGHT - _BOTTOM:g}H{WIDTH - _RIGHT:g}"/>'
    step = max(1, -(-scale.commands // _TICKS))
    for command in range(0, scale.commands + 1, step):
        yield draw_text(scale.x(command), HEIGHT - 10, command, anchor="middle")
    for tick in range(_TICKS // 2 + 1):
        nbytes = scale.nbytes * tick // (_TICKS // 2)
        yield draw_text(_LEFT - 6, scale.y(nbytes) + 4, spell_bytes(nbytes), anchor="end")
    yield "</g>"


def _draw_lifetime(lifetime: BufferLifetime, scale: _ArenaScale) -> Iterator[str]:
    x, y = scale.x(lifetime.first), scale.y(lifetime.offset + lifetime.nbytes)
    width, height = scale.x(lifetime.last) - x, scale.y(lifetime.offset) - y
    attributes = {
        "buffer": lifetime.buffer,
        "offset": lifetime.offset,
        "nbytes": lifetime.nbytes,
        "first": lifetime.first,
        "last": lifetime.last,
    }
    data = "".join(f' data-{name}="{value}"' for name, value in attributes.items())
    yield draw_box(x, y, width, height, lifetime, kind="box buffer", hue=choose_hue(lifetime.buffer), data=data)
    if height > 13:
        yield draw_label(x, y + 12, (lifetime.nodes or ("",))[0], width)


def _draw_level(name: str, nbytes: int, text: str, scale: _ArenaScale) -> str:
    y = scale.y(nbytes)
    # The arena's name stands at the right end, the bound's at the left: the two are often one line.
    x, anchor = (WIDTH - _RIGHT, "end") if name == "arena" else (_LEFT + 4, "start")
    return (
        f'<g class="level {name}" data-nbytes="{nbytes}"><path d="M{_LEFT:g} {y:.3f}H{WIDTH - _RIGHT:g}"/>'
        f"{draw_text(x, y - 5, f'{text} {nbytes:,}', anchor=anchor)}</g>"
    )
