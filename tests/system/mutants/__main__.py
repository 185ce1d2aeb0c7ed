"""Mutation testing from the command line: mutants made, tried and listed."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuexec.devices.kernels.kernel_source import index_sources, kernels_dir
from tests.devices.launches import collect_launches, read_tests
from tests.system.mutants.choose import Trial, choose_trials, is_blit
from tests.system.mutants.equivalents import reason_of
from tests.system.mutants.mutate import Mutant, find_mutants
from tests.system.mutants.plugin import Report
from tests.system.mutants.results import RESULTS, Identity, Row, format_rows, identify, rate_of, read_rows, store
from tests.system.mutants.trials import Attempt, try_mutants

MODES = ("simulator", "pixel")
Trials = Mapping[str, Trial]
MIN_RATE = 0.9
PART = 48  # mutants whose results are stored at once, before the next ones are tried


def main() -> int:
    """Return 0 if at least nine in ten of the mutants that count were caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.mutants", description="Try mistakes in kernels.")
    parser.add_argument("files", nargs="*", help="kernel files, like softmax.cu or pixel/softmax.cu (default: all)")
    parser.add_argument("--left", action="store_true", help="only what results.txt does not say was caught")
    parser.add_argument(
        "--rounds", type=int, default=5, help="of ever more tests; the first ones find most (default: 5, all)"
    )
    options = parser.parse_args()
    started, folder = time.monotonic(), kernels_dir()
    files = list_files(folder)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "launches.json"
        collect_launches(path, ["sm_80", "sm_90"])
        tests_of = read_tests(path)
    rows = []
    for file in options.files or files:
        rounds = [{file: trial} for trial in choose_trials(file, folder, tests_of)[: options.rounds]]
        known = {identify(row.mutant): row for row in read_rows(RESULTS.read_text()) if row.mutant.file == file}
        mutants = find_mutants(folder, file)
        for start in range(0, len(mutants), PART):
            known |= try_left(mutants[start : start + PART], known if options.left else {}, rounds)
            store(RESULTS, {file: rows_of(mutants, known)}, folder, files)
        rows += rows_of(mutants, known)
    print(format_rows(rows), f"{time.monotonic() - started:.0f} s", sep="\n")
    return 0 if rate_of(rows) >= MIN_RATE else 1


def list_files(folder: Path) -> list[str]:
    """Return the kernel files of a folder, those of blits last."""
    return sorted(index_sources(folder), key=lambda name: (is_blit(name), name))


def rows_of(mutants: Sequence[Mutant], known: Mapping[Identity, Row]) -> list[Row]:
    """Return what is known of mutants."""
    found = [(mutant, known.get(identify(mutant))) for mutant in mutants]
    return [Row(mutant, row.outcome, row.why) for mutant, row in found if row is not None]


def try_left(mutants: Sequence[Mutant], known: Mapping[Identity, Row], rounds: Sequence[Trials]) -> dict[Identity, Row]:
    """Try the mutants that no row says were caught; the others keep what it says."""
    why = {key: row.why for key, row in known.items() if row.outcome == "caught"}
    tried = try_all([mutant for mutant in mutants if identify(mutant) not in why], rounds)
    kept = [Row(mutant, "caught", why[key]) for mutant in mutants if (key := identify(mutant)) in why]
    return {identify(row.mutant): row for row in (*tried, *kept)}


def try_all(mutants: Sequence[Mutant], rounds: Sequence[Trials]) -> list[Row]:
    """Try mutants in each mode until something notices, round for round; the files as they are must pass.

    Args:
        mutants: What to try.
        rounds: How, by file: each round is for the survivors of those before.
    """
    found: dict[Mutant, Report] = {}
    left = [mutant for mutant in mutants if not reason_of(mutant)]
    for trials in rounds:
        for mode in MODES:
            has_tests = {file for file, trial in trials.items() if trial.tests and (mode == "pixel") == is_blit(file)}
            tried = [mutant for mutant in left if mutant.file in has_tests]
            found |= _try_once(tried, trials, mode)
            left = [mutant for mutant in left if mutant not in found or found[mutant].outcome == "survived"]
    return [_row_of(mutant, found) for mutant in mutants]


def _try_once(mutants: Sequence[Mutant], trials: Trials, mode: str) -> dict[Mutant, Report]:
    files = dict.fromkeys(mutant.file for mutant in mutants)
    attempts = [Attempt(None, file, trials[file], mode) for file in files]
    attempts += [Attempt(mutant, mutant.file, trials[mutant.file], mode) for mutant in mutants]
    found = {}
    for attempt, report in zip(attempts, try_mutants(attempts) if attempts else [], strict=True):
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


if __name__ == "__main__":
    sys.exit(main())
