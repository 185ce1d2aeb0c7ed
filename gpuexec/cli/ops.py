"""gpuexec ops: which operators there are, in which versions, where each runs, and for which element types."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gpuexec.ops  # noqa: F401  fills the registry
from gpuexec.importer.versions import Form, list_forms
from gpuexec.operator import Operator, decomposition_for, find_operator, operator_names, upgraded_names

_KERNELS, _PARTS, _BODY, _RENAMED = "kernels", "parts", "inlined", "another form"
# Domains of operators that passes put into graphs: no file has them.
_INNER = ("gpuexec", "test")
_SHORT = {"float": "f", "bfloat": "bf", "uint": "u", "int": "i"}


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An operator: where it runs, and why it is the host where it is.

    Attributes:
        name: With its domain.
        versions: Opsets of its domain at which its form changed; empty where only its makers' documentation has it.
        device: ``"kernels"``; ``"parts"``: other operators take its place, or those of its bodies are run;
            ``"inlined"``: those of the body that ONNX gives it; ``"another form"``: it is another operator with other
            attributes or inputs; ``"host"``; ``""``: it is not there.
        reason: Why the host, or, of what has kernels, when the host all the same.
        types: Element types; empty where no schema says.
    """

    name: str
    versions: tuple[int, ...]
    device: str
    reason: str
    types: tuple[str, ...]


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "ops",
        help="say which operators there are, where each runs, and for which element types",
        description="Every operator that models may have: its versions, what runs it on a device, its element types. "
        "All run on the CPU; strings, sequences, optionals and maps lie on the host everywhere. What has no blit on "
        "GPU_PIXEL is named by gpuexec explain.",
    )
    parser.add_argument("pattern", nargs="?", default="", help="a regular expression of names, like '^Reduce'")
    parser.add_argument("--host", action="store_true", help="only what runs on the host, with the reason")
    parser.add_argument("--count", action="store_true", help="only the numbers of each domain")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    from rich.console import Console
    from rich.table import Table

    rows = [row for row in list_rows() if re.search(options.pattern, row.name)]
    if options.host:
        rows = [row for row in rows if row.device == "host"]
    console = Console(highlight=False)
    if not options.count:
        table = Table("operator", "versions", "on a device", "element types", box=None)
        for row in rows:
            where = f"{row.device}: {row.reason}" if row.reason else row.device or "-"
            table.add_row(row.name, " ".join(map(str, row.versions)) or "-", where, shorten(row.types) or "-")
        console.print(table)
    for line in count_rows(rows):
        console.print(line, markup=False)
    return 0


def list_rows() -> list[OperatorRow]:
    """Return every operator that a file may have: those of ONNX, and those registered beside them."""
    forms = list_forms()
    names = {*forms, *operator_names(), *upgraded_names()}
    rows = [make_row(name, forms.get(name)) for name in sorted(names) if name.partition(".")[0] not in _INNER]
    return sorted(rows, key=lambda row: (split_name(row.name)[0], row.name))


def make_row(name: str, form: Form | None) -> OperatorRow:
    """Return the row of an operator by what is registered for it."""
    device, reason = _place(name, find_operator(name), form)
    versions, types = (form.versions, form.types) if form is not None else ((), ())
    return OperatorRow(name, versions, device, reason, types)


def _place(name: str, found: type[Operator] | None, form: Form | None) -> tuple[str, str]:
    if found is None:
        if name in upgraded_names():
            return _RENAMED, ""
        return (_BODY if form is not None and form.has_body else ""), ""
    if decomposition_for(name) is None and found.lower is not None:
        return _KERNELS, found.host_reason
    return ("host", found.host_reason) if found.host_reason else (_PARTS, "")


def count_rows(rows: Sequence[OperatorRow]) -> list[str]:
    """Return a line for each domain: how many operators, and where they run."""
    lines = []
    for domain in dict.fromkeys(split_name(row.name)[0] for row in rows):
        counts = Counter(row.device or "not there" for row in rows if split_name(row.name)[0] == domain)
        told = ", ".join(f"{count} {device}" for device, count in counts.most_common())
        lines.append(f"{domain or 'ai.onnx'}: {sum(counts.values())} operators ({told})")
    return lines


def split_name(name: str) -> tuple[str, str]:
    """Return the domain of a qualified name (``""``: ai.onnx), and the name in it."""
    domain, _, bare = name.rpartition(".")
    return domain, bare


def shorten(types: Sequence[str]) -> str:
    """Return element types in few letters: f32 for float32, i4 for int4; float8e5m2 is f8e5m2."""
    return " ".join([re.sub("^(bfloat|float|uint|int)", lambda found: _SHORT[found[0]], name) for name in types])
