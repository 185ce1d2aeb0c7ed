"""HTML and SVG without dependencies: escaping, tables, drawings, fragments for notebooks, and whole pages.

All markup is well-formed as XML too, refers to nothing elsewhere, and reads on light and on dark ground. Nothing is
wider than the page: tables and drawings that are, scroll by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuexec.system.version import VERSION

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
# Degrees between the colours of successive things: far apart, and without early repetition.
_TURN = 137.5
_LETTER_WIDTH = 6.2  # of the text of drawings, in units of them
_MAX_ROWS = 200


class Markup(str):
    """Text that is markup already, with what it holds escaped."""

    __slots__ = ()


def escape_text(text: object) -> Markup:
    """Escape text for markup; control characters, which XML does not allow, are replaced. Markup stays as it is."""
    if isinstance(text, Markup):
        return text
    shown = str(text)
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in shown)
    return Markup(shown.translate(_ENTITIES))


def make_table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: int = 0) -> Markup:
    """Return a table; empty where there are no rows. Of more than 200 rows the first are shown, and how many follow.

    Args:
        titles: Of the columns; none: the first cell of each row is its title.
        rows: Cells, escaped unless they are Markup.
        numbers: How many columns, the last ones, hold numbers.
    """
    listed = list(rows)
    if not listed:
        return Markup("")
    lines = ["<div class='wide'><table>"]
    count = len(titles or listed[0])
    kinds = [" class='number'" if column >= count - numbers else " class='text'" for column in range(count)]
    kinds = [kind if titles and title else "" for kind, title in zip(kinds, titles or kinds, strict=True)]
    if titles:
        cells = "".join(f"<th{kind}>{escape_text(each)}</th>" for kind, each in zip(kinds, titles, strict=True))
        lines.append(f"<thead><tr>{cells}</tr></thead>")
    lines.append("<tbody>")
    for row in listed[:_MAX_ROWS]:
        shown = [f"<td{kind}>{escape_text(each)}</td>" for kind, each in zip(kinds, row, strict=True)]
        if not titles:
            shown[0] = f"<th>{escape_text(row[0])}</th>"
        lines.append(f"<tr>{''.join(shown)}</tr>")
    lines.append("</tbody></table></div>")
    if len(listed) > _MAX_ROWS:
        lines.append(f"<p>and {len(listed) - _MAX_ROWS:,} more</p>")
    return Markup("\n".join(lines))


def make_section(title: object, *parts: str) -> Markup:
    """Return parts under a title; empty where all of them are."""
    shown = [part for part in parts if part]
    return Markup("\n".join([f"<section><h2>{escape_text(title)}</h2>", *shown, "</section>"]) if shown else "")


def make_paragraph(text: object) -> Markup:
    """Return a paragraph of text."""
    return Markup(f"<p>{escape_text(text)}</p>")


def make_fragment(title: object, *parts: str) -> str:
    """Return parts under a title as one element that notebooks show; its style touches nothing around it."""
    shown = "\n".join(part for part in parts if part)
    return f"<div class='gpuexec'><style>{_STYLE}</style>\n<h1>{escape_text(title)}</h1>\n{shown}\n</div>"


def make_page(title: object, *parts: str) -> str:
    """Return parts under a title as a whole page, on which a line below a drawing says what the pointer is at."""
    name = escape_text(title)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width"/>',
            f'<meta name="generator" content="gpuexec {VERSION}"/>',
            f"<title>{name}</title>",
            f"<style>{_PAGE_STYLE}{_STYLE}</style></head><body class='gpuexec'>",
            f"<h1>{name}</h1>",
            *(part for part in parts if part),
            f"<script>{_SCRIPT}</script></body></html>",
            "",
        ]
    )


def make_drawing(label: str, width: float, height: float, parts: Iterable[str], *, kind: str = "drawing") -> Markup:
    """Return a drawing with a line below it for what the pointer is at; ``label`` says what is drawn.

    It is as wide as the page, but never so narrow that its text can't be read.
    """
    return Markup(
        "\n".join(
            [
                f'<div class="wide"><svg class="{kind}" viewBox="0 0 {width:g} {height:g}"'
                f' style="min-width:{0.6 * width:.0f}px" xmlns="http://www.w3.org/2000/svg" role="img"'
                f' aria-label="{escape_text(label)}">',
                *parts,
                "</svg></div>",
                '<p class="about"></p>',
            ]
        )
    )


def draw_box(
    x: float,
    y: float,
    width: float,
    height: float,
    about: object,
    *,
    kind: str,
    hue: float | None = None,
    data: str = "",
) -> Markup:
    """Return a rectangle that says what it stands for.

    Args:
        x: Of its left edge.
        y: Of its upper edge.
        width: To the right.
        height: Downwards.
        about: What it stands for.
        kind: Its class.
        hue: Of its colour, in degrees; None: that of its class.
        data: More attributes.
    """
    fill = "" if hue is None else f' fill="hsl({hue:.0f} 55% 62%)"'
    return Markup(
        f'<rect class="{kind}" x="{x:.3f}" y="{y:.3f}" width="{width:.3f}" height="{height:.3f}"{fill}{data}>'
        f"<title>{escape_text(about)}</title></rect>"
    )


def draw_label(x: float, y: float, text: str, width: float, *, kind: str = "label") -> Markup:
    """Return a label that fits a width, shortened if need be; empty where there is no room for two letters."""
    room = int(width / _LETTER_WIDTH) - 1
    if room < 3 or not text:
        return Markup("")
    shown = text if len(text) <= room else text[: room - 1] + "…"
    return Markup(f'<text class="{kind}" x="{x + 4:.1f}" y="{y:.1f}">{escape_text(shown)}</text>')


def draw_text(x: float, y: float, text: object, *, anchor: str = "start") -> Markup:
    """Return text that begins, ends or has its middle at a place."""
    return Markup(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_text(text)}</text>')


def draw_bar(share: float, about: object) -> Markup:
    """Return a bar for a cell of a table, filled by a share of 0 to 1; the rest of what is more is left out."""
    filled = 100 * min(max(share, 0.0), 1.0)
    kind = "bar" if share <= 1 else "bar over"
    return Markup(f"<span class='{kind}' title='{escape_text(about)}'><span style='width:{filled:.1f}%'></span></span>")


def choose_hue(number: int) -> float:
    """Return the hue of the n-th thing, in degrees."""
    return number * _TURN % 360


def spell_bytes(nbytes: int) -> str:
    """Format bytes in the unit that keeps them short."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:,.1f} {unit}"
    return f"{nbytes} B"


_PAGE_STYLE = """
:root { color-scheme: light dark; font: 14px system-ui, sans-serif; }
body { max-width: 1160px; margin: 2em auto; padding: 0 1em; }
"""
_STYLE = """
.gpuexec { --ground: #8882; --line: #0006; --warn: #c22; --good: #26c; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { .gpuexec { --line: #fff6; --warn: #f66; --good: #6af; } }
.gpuexec h1 { font-size: 1.3em; margin: .3em 0; } .gpuexec h2 { font-size: 1.1em; margin: 1.2em 0 .2em; }
.gpuexec p { margin: .4em 0; } .gpuexec .wide { overflow-x: auto; max-width: 100%; }
.gpuexec table { border-collapse: collapse; margin: .3em 0; font-variant-numeric: tabular-nums; }
.gpuexec th, .gpuexec td { text-align: left; vertical-align: top; padding: .15em .8em .15em 0; }
.gpuexec th { font-weight: 600; overflow-wrap: normal; } .gpuexec .text { min-width: 6em; }
.gpuexec tbody tr:nth-child(even) { background: var(--ground); }
.gpuexec .number { text-align: right; white-space: nowrap; }
.gpuexec .bar { display: inline-block; width: 5em; height: .8em; background: var(--ground); }
.gpuexec .bar span { display: block; height: 100%; background: var(--good); }
.gpuexec .over span { background: var(--warn); }
.gpuexec svg { width: 100%; height: auto; display: block; } .gpuexec svg text { font-size: 11px; fill: currentColor; }
.gpuexec .axis path, .gpuexec .level path { fill: none; stroke: currentColor; }
.gpuexec .bound path { stroke-dasharray: 6 4; stroke: var(--warn); } .gpuexec .arena path { stroke: var(--good); }
.gpuexec .box { stroke: var(--line); } .gpuexec .box:hover { stroke: currentColor; stroke-width: 2; }
.gpuexec .peak { fill: #c222; } .gpuexec svg .label { fill: #000; pointer-events: none; }
.gpuexec .arrow { fill: none; stroke: currentColor; stroke-opacity: .45; }
.gpuexec .head { fill: currentColor; fill-opacity: .6; } .gpuexec .event { fill: #8886; }
.gpuexec .cut { fill: var(--warn); }
.gpuexec .roof { fill: none; stroke: currentColor; stroke-width: 2; }
.gpuexec .command { fill: #888a; } .gpuexec .issue { fill: #48fa; } .gpuexec .tensor { fill: #62ca; }
.gpuexec .shared { fill: #a2ca; } .gpuexec .l2 { fill: #2a8a; } .gpuexec .dram { fill: #c22a; }
.gpuexec .latency { fill: #c82a; } .gpuexec .name { pointer-events: none; }
.gpuexec .about { font-family: ui-monospace, monospace; min-height: 1.3em; } .gpuexec .about:empty { display: none; }
"""
# Free of XML markup.
_SCRIPT = """
for (const drawing of document.querySelectorAll("svg")) {
  const about = drawing.parentElement.nextElementSibling;
  about.textContent = "Point at something.";
  drawing.addEventListener("pointerover", function (event) {
    const box = event.target.closest(".box");
    about.textContent = box ? box.querySelector("title").textContent : "Point at something.";
  });
}
"""
