"""Make mutants, try them, print the list."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuexec.runtime.kernel_source import kernels_dir
from tests.launches import collect_launches, read_tests
from tests.mutants.choose import Trial, choose_trial, is_blit
from tests.mutants.equivalents import reason_of
from tests.mutants.mutate import Mutant, find_mutants
from tests.mutants.plugin import Report
from tests.mutants.trials import Attempt, try_mutants

RESULTS = Path(__file__).parent / "results.txt"
MODES = ("simulator", "check", "pixel")
Trials = Mapping[str, Trial]
LEAST_RATE = 0.9
_COUNTED = ("caught", "survived")


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


def main() -> int:
    """Return 0 if at least nine in ten of the mutants that count were caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Try mistakes in kernels.")
    parser.add_argument("files", nargs="*", help="kernel files, like softmax.cu or pixel/softmax.cu (default: all)")
    options = parser.parse_args()
    started, folder = time.monotonic(), kernels_dir()
    files = options.files or list_files(folder)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "launches.json"
        collect_launches(path, ["sm_80"])
        tests_of = read_tests(path)
    rounds = [
        {file: choose_trial(file, folder, tests_of, is_thorough) for file in files} for is_thorough in (False, True)
    ]
    rows = try_all([mutant for file in files for mutant in find_mutants(folder, file)], rounds)
    text = format_rows(rows)
    print(text, f"{time.monotonic() - started:.0f} s", sep="\n")
    if not options.files:
        RESULTS.write_text(text)
    return 0 if rate_of(rows) >= LEAST_RATE else 1


def list_files(folder: Path) -> list[str]:
    """Return the kernel files of a folder, those of blits last."""
    return [path.relative_to(folder).as_posix() for at in ("", "pixel") for path in sorted((folder / at).glob("*.cu*"))]


def try_all(mutants: Sequence[Mutant], rounds: Sequence[Trials], paths: Sequence[str] = ("tests/ops",)) -> list[Row]:
    """Try mutants in each mode until something notices, round for round; the files as they are must pass.

    Args:
        mutants: What to try.
        rounds: How, by file: each round is for the survivors of those before.
        paths: Where the tests are collected.
    """
    found: dict[Mutant, Report] = {}
    left = [mutant for mutant in mutants if not reason_of(mutant)]
    for trials in rounds:
        for mode in MODES:
            left = [mutant for mutant in left if mutant.file in trials and trials[mutant.file].tests]
            tried = [mutant for mutant in left if (mode == "pixel") == is_blit(mutant.file)]
            found |= _try_once(tried, trials, mode, paths)
            left = [mutant for mutant in left if mutant not in found or found[mutant].outcome == "survived"]
    return [_row_of(mutant, found) for mutant in mutants]


def _try_once(mutants: Sequence[Mutant], trials: Trials, mode: str, paths: Sequence[str]) -> dict[Mutant, Report]:
    files = dict.fromkeys(mutant.file for mutant in mutants)
    attempts = [Attempt(None, file, trials[file], mode) for file in files]
    attempts += [Attempt(mutant, mutant.file, trials[mutant.file], mode) for mutant in mutants]
    found = {}
    for attempt, report in zip(attempts, try_mutants(attempts, paths) if attempts else [], strict=True):
        if report.outcome == "broken":
            sys.exit(f"{attempt.mutant or attempt.file} could not be tried: {report.by}")
        if attempt.mutant is not None:
            found[attempt.mutant] = report
        elif report.outcome != "survived":
            sys.exit(f"{attempt.file} fails as it is ({mode}): {report.by}")
    return found


def _row_of(mutant: Mutant, found: Mapping[Mutant, Report]) -> Row:
    if reason := reason_of(mutant):
        return Row(mutant, "equivalent", reason)
    report = found.get(mutant, Report("untried"))
    return Row(mutant, report.outcome, report.by)


def rate_of(rows: Sequence[Row]) -> float:
    """Return the part that was caught of the mutants that could be."""
    counted = [row for row in rows if row.outcome in _COUNTED]
    return sum(row.outcome == "caught" for row in counted) / max(1, len(counted))


def format_rows(rows: Sequence[Row]) -> str:
    """Return counts by kind, the rate, and every mutant."""
    kinds = sorted({row.mutant.kind for row in rows})
    outcomes = (*_COUNTED, "equivalent", "refused", "untried")
    lines = [f"{'':22}" + "".join(f"{outcome:>12}" for outcome in outcomes)]
    for kind in (*kinds, "all"):
        counts = Counter(row.outcome for row in rows if kind in ("all", row.mutant.kind))
        lines.append(f"{kind:22}" + "".join(f"{counts[outcome]:12}" for outcome in outcomes))
    lines.append(f"\n{rate_of(rows):.1%} caught of those that were caught or survived\n")
    return "\n".join([*lines, *map(str, rows)]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
