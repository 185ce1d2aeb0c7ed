"""Findings of check mode: kind, source locations and threads, as data.

The runtime library names instructions; lines come from the debug information of the module, read by the linker's own
tools once there is something to say.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from gpuexec.devices.simulator.library import Extent, RawFinding

Kind = Literal[
    "race",
    "out of bounds",
    "misaligned access",
    "uninitialised read",
    "divergent barrier",
    "missing wait",
    "use after free",
    "warp operation",
    "deadlock",
    "fault",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
Place = tuple[str, int]
_WRITE, _ATOMIC = 1, 2
_READERS = ("addr2line", "llvm-symbolizer", "llvm-addr2line")


@dataclass(frozen=True, slots=True)
class Party:
    """One party of a finding, with its source line; ``file`` is empty and ``line`` 0 where none is known.

    ``access`` is ``"read"``, ``"write"``, ``"atomic"`` or ``""``. ``within`` are the places that the code was inlined
    into, innermost first.
    """

    file: str
    line: int
    thread: Extent
    block: Extent
    access: str = ""
    within: tuple[Place, ...] = ()

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "an unknown line"
        within = "".join(f", in {file}:{line}" for file, line in self.within[:1])
        return f"{self.access or 'at'} {where} by thread {_spell(self.thread)} of block {_spell(self.block)}{within}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake of a kernel. ``other`` is the second party of a race, a divergent barrier, or a missing wait."""

    kind: Kind
    party: Party
    other: Party | None = None
    detail: str = ""

    @property
    def file(self) -> str:
        """The source file."""
        return self.party.file

    @property
    def line(self) -> int:
        """The line, from 1."""
        return self.party.line

    @property
    def thread(self) -> Extent:
        """Index within its block of the offending thread."""
        return self.party.thread

    @property
    def block(self) -> Extent:
        """Index of its block within the grid."""
        return self.party.block

    def __str__(self) -> str:
        other = f"; {self.other}" if self.other else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.kind}: {self.party}{other}{detail}"


def read_findings(raw: Sequence[RawFinding], module: Path, grid: Extent, block: Extent) -> tuple[Finding, ...]:
    """Return findings with source locations; of several at the same lines the first is kept.

    Args:
        raw: The records of the runtime library.
        module: The shared object the kernel is in.
        grid: Blocks of the launch.
        block: Threads of a block.
    """
    places = locate(module, {place for row in raw for place in (row.place, row.other_place) if place})
    found: dict[object, Finding] = {}
    for row in raw:
        party = _party(row.file, row.line, places.get(row.place), row.thread, row.block, row.flags, grid, block)
        other = None
        if row.has_other:
            other = _party(
                row.other_file, row.other_line, places.get(row.other_place), row.other_thread, row.other_block,
                row.other_flags, grid, block,
            )  # fmt: skip
        finding = Finding(KINDS[row.kind], party, other, row.detail.decode(errors="replace"))
        same = (finding.kind, party.file, party.line, other and (other.file, other.line))
        found.setdefault(same, finding)
    return tuple(found.values())


def locate(module: Path, offsets: Iterable[int]) -> dict[int, tuple[Place, ...]]:
    """Return the source lines of return addresses in a module, innermost first; empty without a symbolizer."""
    ordered = sorted(offsets)
    reader = next((path for path in map(shutil.which, _READERS) if path), None)
    if reader is None or not ordered:
        return {}
    command = [reader, "-a", "-i", "-e", str(module), *(hex(offset - 1) for offset in ordered)]
    if "symbolizer" in reader:
        command.insert(1, "--output-style=GNU")
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    places: dict[int, tuple[Place, ...]] = {}
    current = 0
    for line in answer.splitlines():
        if line.startswith("0x"):
            current = int(line, 16) + 1
            places[current] = ()
        else:
            file, _, number = line.partition(" (")[0].rpartition(":")
            if number.isdigit() and int(number) and not _is_own(file):
                places[current] += ((Path(file).name, int(number)),)
    return places


def why_no_lines() -> str:
    """Return the reason why there are no line numbers, or an empty string."""
    if any(map(shutil.which, _READERS)):
        return ""
    return "No line numbers: neither addr2line nor llvm-symbolizer is there (apt-get install binutils)."


def describe(findings: Sequence[Finding]) -> str:
    """Return a report: one line per finding."""
    count = f"{len(findings)} mistake{'s' if len(findings) > 1 else ''}"
    lines = [f"check mode found {count}", *(f"  {finding}" for finding in findings)]
    missing = why_no_lines()
    return "\n".join([*lines, *([missing] if missing else [])])


def _party(
    file: bytes, line: int, places: tuple[Place, ...] | None, thread: int, at: int, flags: int, grid: Extent,
    block: Extent,
) -> Party:  # fmt: skip
    access = "atomic" if flags & _ATOMIC else "write" if flags & _WRITE else "read"
    where = (((Path(file.decode()).name, line),) if file else places) or (("", 0),)
    return Party(*where[0], _unfold(thread, block), _unfold(at, grid), "" if file else access, where[1:])


def _unfold(index: int, extents: Extent) -> Extent:
    return index % extents[0], index // extents[0] % extents[1], index // extents[0] // extents[1]


def _is_own(file: str) -> bool:
    """Return whether a file is one of the simulator's headers or of the C++ library's, or unknown."""
    path = Path(file)
    return (
        path.parent.name == "simulator" or path.suffix in ("", ".h", ".hpp") or path.name.startswith("name expression")
    )


def _spell(extent: Extent) -> str:
    return f"({', '.join(map(str, extent))})"
