"""gpuexec ops: the registered operators, their versions, devices and element types."""

from __future__ import annotations

import argparse
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gpuexec.ops  # noqa: F401  fills the registry
from gpuexec.cli.operator_examples import find_examples
from gpuexec.cli.operator_types import AcceptedTypes, list_accepted_types
from gpuexec.errors import InputError
from gpuexec.execution.profiling.terminal import open_console, print_table
from gpuexec.importer.node_reader import upgrade_node
from gpuexec.importer.versions import OperatorVersions, list_forms
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.operator import Operator, decomposition_for, find_operator, operator_names, qualified, upgraded_names
from gpuexec.ir.spec import DTYPES, dtype_row, is_host_object

if TYPE_CHECKING:
    from rich.table import Table

_KERNELS, _PARTS, _BODY, _RENAMED = "kernels", "parts", "inlined", "another form"
_BLITS, _HOST = "blits", "host"
# Titles of columns, and how wide they get before they wrap, so that the types have room in 120 characters.
_COLUMNS = (("operator", None), ("versions", 11), ("on a device", 20), ("on GPU_PIXEL", 22), ("types of inputs", None))
# Domains of operators that passes put into graphs: no file has them.
_INNER = ("gpuexec", "test")
# Abbreviations of `shorten`: a letter and a width, or a word for types that come together.
_POWERS = "float8e8m0"  # a scale, and apart from the other floats of 8 bits
_FAMILIES = (("i", "int", (2, 4, 8, 16, 32, 64)), ("u", "uint", (2, 4, 8, 16, 32, 64)), ("f", "float", (16, 32, 64)))
_GROUPS = {
    f"f{bits}": frozenset(row.name for row in DTYPES if row.name.startswith(f"float{bits}e") and row.name != _POWERS)
    for bits in (4, 6, 8)
}
# Opsets, numbers of inputs and attributes with which removed forms are upgraded: the first that works counts.
_OPSETS, _COUNTS = (9, 1), (2, 1, 3, 4)
_ATTRIBUTES: tuple[Mapping[str, Any], ...] = ({}, {"bias": (0.0,)})
_NOTHING = AcceptedTypes((), (), ())


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An operator: where it runs, and the reason if that is the host.

    Attributes:
        name: With its domain.
        versions: Opsets of its domain at which its form changed; empty where only its makers' documentation has it.
        device: ``"kernels"``; ``"parts"``: other operators take its place, or those of its bodies are run;
            ``"inlined"``: those of the body that ONNX gives it; ``"another form"``: it is another operator with other
            attributes or inputs; ``"host"``; ``""``: it is not there.
        reason: Why the host, or, of what has kernels, when the host all the same; of another form, which operator.
        pixel: ``"blits"``, with the types of an input that have them where not all do; ``"host"``, with the names of
            the parts that run there; ``""``: its graphs decide, or it is not known.
        types: Element types of each input, as `infer` takes them; of what has no inputs, those that it gives; of what
            is inlined or has graphs, those of ONNX's schema, all in one.
    """

    name: str
    versions: tuple[int, ...]
    device: str
    reason: str
    pixel: str
    types: tuple[tuple[str, ...], ...]

    @property
    def place(self) -> str:
        """Device kind that runs it, and the reason."""
        if self.device == _RENAMED and self.reason:
            return f"as {self.reason}"
        return f"{self.device}: {self.reason}" if self.reason else self.device


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "ops",
        help="say which operators there are, where each runs, and for which element types",
        description="Every operator that models may have: its versions, what runs it on a device (GPU_COMPUTE and "
        "SIMULATOR) and on GPU_PIXEL, the element types of its inputs in their order, equal ones once. All run on the "
        "CPU; strings, sequences, optionals and maps lie on the host everywhere.",
    )
    parser.add_argument("pattern", nargs="?", default="", help="a regular expression of names, like '^Reduce'")
    parser.add_argument("--host", action="store_true", help="only what runs on the host, with the reason")
    parser.add_argument("--count", action="store_true", help="only the numbers of each domain")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    rows = list_rows(options.pattern)
    if options.host:
        rows = [row for row in rows if row.device == _HOST]
    console = open_console()
    if not options.count:
        print_table(console, _make_table(rows))
    for line in count_rows(rows):
        console.print(line, markup=False)
    return 0


def _make_table(rows: Sequence[OperatorRow]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for title, width in _COLUMNS:
        table.add_column(title, max_width=width, no_wrap=title == _COLUMNS[0][0], overflow="fold")
    domain = None
    for row in rows:
        own, bare = split_name(row.name)
        if own != domain:
            table.add_row(f"[bold]{own or 'ai.onnx'}[/bold]")
        domain = own
        versions = " ".join(map(str, row.versions)) or "-"
        types = " | ".join(dict.fromkeys(map(shorten, row.types))) or "-"
        table.add_row(f" {bare}", versions, row.place or "-", row.pixel or "-", types)
    return table


def list_rows(pattern: str = "") -> list[OperatorRow]:
    """Return the rows of operators that match a pattern: ONNX's, and those registered beside them.

    Raises:
        InputError: The pattern is no regular expression, or an operator does not take its own example.
    """
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise InputError(f"{pattern!r} is no regular expression: {error}.") from error
    forms = list_forms()
    names = {*forms, *operator_names(), *upgraded_names()}
    chosen = [name for name in names if name.partition(".")[0] not in _INNER and wanted.search(name)]
    return [make_row(name, forms.get(name)) for name in sorted(chosen, key=lambda name: (split_name(name)[0], name))]


def make_row(name: str, form: OperatorVersions | None) -> OperatorRow:
    """Return the row of an operator from its registration."""
    found = find_operator(name)
    device, reason = _place(name, found, form)
    accepted = _NOTHING if found is None else list_accepted_types(find_examples(found))
    if device == _RENAMED:
        reason, accepted = _find_newest(name)
    types = accepted.types or (() if form is None or not form.types else (form.types,))
    return OperatorRow(
        name, () if form is None else form.versions, device, reason, _place_pixel(name, device, reason, accepted), types
    )


def _place(name: str, found: type[Operator] | None, form: OperatorVersions | None) -> tuple[str, str]:
    if found is None:
        if name in upgraded_names():
            return _RENAMED, ""
        return (_BODY if form is not None and form.has_body else ""), ""
    if decomposition_for(name) is None and found.lower is not None:
        return _KERNELS, found.host_reason
    return (_HOST, found.host_reason) if found.host_reason else (_PARTS, "")


def _place_pixel(name: str, device: str, reason: str, accepted: AcceptedTypes) -> str:
    """Return where an operator runs on a device with textures, by its accepted types."""
    if device == _HOST or not accepted.drawn:
        return _HOST if device == _HOST else ""
    if not any(accepted.drawn):
        parts = [split_name(part)[1] for part in accepted.undrawn if part not in (name, reason)]
        return f"{_HOST}: {' '.join(parts)}" if parts else _HOST
    for types, drawn in zip(accepted.types, accepted.drawn, strict=True):
        if set(drawn) != {each for each in types if not is_host_object(dtype_row(each).numpy)}:
            return f"{_BLITS}: {shorten(drawn)}"
    return _BLITS


def _find_newest(name: str) -> tuple[str, AcceptedTypes]:
    """Return the operators that an old form becomes, and the types accepted by the one that reads its first input."""
    domain, bare = split_name(name)
    for opset, count, attributes in itertools.product(_OPSETS, _COUNTS, _ATTRIBUTES):
        inputs = tuple([f"x{i}" for i in range(count)])
        try:
            made = upgrade_node(RawNode(bare, domain, "node", inputs, ("y",), attributes, opset))
        except (InputError, LookupError):
            continue
        nodes = [(qualified(node.op_type, node.domain), node) for node in (*made.before, made)]
        first = next((find_operator(each) for each, node in nodes if inputs[0] in node.inputs), None)
        if first is not None:
            accepted = list_accepted_types(find_examples(first))
            names = dict.fromkeys(each for each, _ in nodes)
            return ", ".join(names), accepted if len(nodes) == 1 else replace(accepted, drawn=())
    return "", _NOTHING


def count_rows(rows: Sequence[OperatorRow]) -> list[str]:
    """Return a line for each domain: numbers of operators, of those on each device, and of those with blits."""
    lines = []
    for domain in dict.fromkeys(split_name(row.name)[0] for row in rows):
        own = [row for row in rows if split_name(row.name)[0] == domain]
        counts = ", ".join(
            f"{count} {device}" for device, count in Counter(row.device or "-" for row in own).most_common()
        )
        drawn = sum(row.pixel.startswith(_BLITS) for row in own)
        lines.append(f"{domain or 'ai.onnx'}: {len(own)} operators ({counts}), {drawn} with blits")
    return lines


def split_name(name: str) -> tuple[str, str]:
    """Split a qualified name into its domain (``""``: ai.onnx) and name."""
    domain, _, bare = name.rpartition(".")
    return domain, bare


def shorten(types: Sequence[str]) -> str:
    """Abbreviate element types: f32 for float32, i8-64 for all from int8 to int64, f8 for all of 8 bits."""
    left = dict.fromkeys(types)
    words = ["bool"] if "bool" in left else []
    for letter, family, widths in _FAMILIES:
        here = [width for width in widths if f"{family}{width}" in left]
        words += _join_widths(letter, here, widths)
        left = {name: None for name in left if name not in ("bool", *(f"{family}{width}" for width in here))}
    for short, members in _GROUPS.items():
        if members <= set(left):
            words.append(short)
            left = {name: None for name in left if name not in members}
    return " ".join((*words, *(re.sub("^(b?)float", r"\1f", name) for name in left)))


def _join_widths(letter: str, here: Sequence[int], widths: Sequence[int]) -> Iterator[str]:
    """Yield words for widths; three or more in sequence are one range."""
    rest = list(here)
    while rest:
        start = widths.index(rest[0])
        run = [each for each, width in zip(rest, widths[start:], strict=False) if each == width]
        run = run if len(run) > 2 else run[:1]
        yield f"{letter}{run[0]}" if len(run) == 1 else f"{letter}{run[0]}-{run[-1]}"
        rest = rest[len(run) :]
