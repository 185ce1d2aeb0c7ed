"""Results of mutation testing in results.txt: the rows of a file are replaced when it is tried again."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.system.mutants.mutate import CHANGES, Mutant, find_mutants

RESULTS = Path(__file__).with_name("results.txt")
_COUNTED = ("caught", "survived")
_OUTCOMES = (*_COUNTED, "equivalent", "refused", "untried")
_ROW = re.compile(
    rf"^({'|'.join(_OUTCOMES)}) +(\S+):(\d+) ({'|'.join(map(re.escape, CHANGES))}): (.*)  ->  (.*)(?:\n {{11}}(.*))?$",
    re.MULTILINE,
)
_NOTHING = "(nothing)"
Identity = tuple[str, str, str, int]


@dataclass(frozen=True, slots=True)
class Row:
    """A mutant with what came of it, and why.

    ``"caught"``, ``"survived"``, ``"equivalent"``, ``"refused"`` by the compiler, or ``"untried"`` where no operator
    case launches a kernel of the file.
    """

    mutant: Mutant
    outcome: str
    why: str

    def __str__(self) -> str:
        return f"{self.outcome:10} {self.mutant}\n{'':11}{self.why}".rstrip()


def rate_of(rows: Sequence[Row]) -> float:
    """Return the part that was caught of the mutants that could be."""
    counted = [row for row in rows if row.outcome in _COUNTED]
    return sum(row.outcome == "caught" for row in counted) / max(1, len(counted))


def format_rows(rows: Sequence[Row], unlike: Sequence[str] = ()) -> str:
    """Return counts by kind, the rate, the files whose mutants are others than the rows', and every mutant."""
    kinds = sorted({row.mutant.kind for row in rows})
    lines = [f"{'':22}" + "".join(f"{outcome:>12}" for outcome in _OUTCOMES)]
    for kind in (*kinds, "all"):
        counts = Counter(row.outcome for row in rows if kind in ("all", row.mutant.kind))
        lines.append(f"{kind:22}" + "".join(f"{counts[outcome]:12}" for outcome in _OUTCOMES))
    lines.append(f"\n{rate_of(rows):.1%} caught of those that were caught or survived\n")
    if unlike:
        lines.append(textwrap.fill(f"New or changed, and not tried since: {', '.join(unlike)}", 120) + "\n")
    return "\n".join([*lines, *map(str, rows)]) + "\n"


def read_rows(text: str) -> list[Row]:
    """Return the rows of what `format_rows` wrote; their mutants have lines without what stands around them."""
    rows, seen = [], Counter[tuple[str, str, str]]()
    for outcome, file, line, kind, before, after, why in _ROW.findall(text):
        key = file, before, after.replace(_NOTHING, "")
        rows.append(Row(Mutant(file, int(line), kind, *key[1:], nth=seen[key]), outcome, why))
        seen[key] += 1
    return rows


def identify(mutant: Mutant) -> Identity:
    """Return what tells a mutant from all others wherever its line has moved to."""
    return mutant.file, mutant.before.strip(), mutant.after.strip(), mutant.nth


def replace_rows(rows: Sequence[Row], tried: Mapping[str, Sequence[Row]], files: Sequence[str]) -> list[Row]:
    """Return rows in the order of the files that there are, of those that were tried the new ones."""
    by_file: dict[str, list[Row]] = {file: [] for file in files}
    for row in rows:
        by_file.setdefault(row.mutant.file, []).append(row)
    return [row for file in files for row in tried.get(file, by_file[file])]


def find_unlike(rows: Sequence[Row], folder: Path, files: Sequence[str]) -> list[str]:
    """Return the files whose mutants are others than the rows say."""
    had = {identify(row.mutant) for row in rows}
    found = {file: {identify(mutant) for mutant in find_mutants(folder, file)} for file in files}
    return [file for file in files if found[file] != {key for key in had if key[0] == file}]


def store(path: Path, tried: Mapping[str, Sequence[Row]], folder: Path, files: Sequence[str]) -> None:
    """Write the rows of files that were tried into the list at a path.

    Args:
        path: The list, if there is one yet.
        tried: The new rows, by file.
        folder: Where kernels stand.
        files: All of them, in order; rows of others go.
    """
    rows = replace_rows(read_rows(path.read_text()) if path.exists() else [], tried, files)
    path.write_text(format_rows(rows, find_unlike(rows, folder, files)))
