"""ONNX's backend tests run on the package's devices and counted.

Ends with 1 if a case does not pass that is listed as passing.

python -m tests.system.conformance --device simulator -k softmax --failures
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import onnx

from tests.system.conformance.judge import Outcome, Verdict, judge_on
from tests.system.conformance.passing import (
    add_passing,
    choose_part,
    list_path,
    read_passing,
    read_reasons,
    write_reasons,
)
from tests.system.conformance.pool import judge_all
from tests.system.conformance.suite import KINDS, Case, load_suite, operators_of

DEVICES = ("cpu", "simulator")
_SUITE = f"onnx {onnx.__version__}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments choose and print the counts; see the module docstring."""
    options = _parse(arguments)
    cases = load_suite([kind for kind in KINDS if kind != "light"] if options.part else KINDS)
    cases = tuple(case for case in cases if re.search(options.pattern, case.id))
    return max(_run(device, cases, options) for device in options.device or DEVICES)


def _run(device: str, cases: Sequence[Case], options: argparse.Namespace) -> int:
    path = list_path(device)
    listed = set(read_passing(path))
    if options.part:
        part = set(choose_part(sorted(listed), {case.id: operators_of(case.read_model()) for case in cases}))
        cases = [case for case in cases if case.id in part]
    start = time.perf_counter()
    verdicts = {}
    for case, verdict in judge_all(
        _order(cases), judge_on(device), options.jobs, options.limit, partial(Verdict, Outcome.ERROR)
    ):
        verdicts[case.id] = verdict
        if options.failures and verdict.outcome is not Outcome.PASS:
            print(f"{case.id}: {_tell(verdict)}", flush=True)
    print(f"\n{device}, {_SUITE}, {time.perf_counter() - start:.0f} s")
    print(format_counts(verdicts))
    lost = find_lost(listed, verdicts, is_whole=not (options.part or options.pattern))
    for id, reason in lost.items():
        print(f"LOST {id}, listed in {path.name}: {reason}")
    strays = find_strays(verdicts) if device != "cpu" else {}
    for id, reason in strays.items():
        print(f"FELL BACK {id}, not listed in fallbacks.txt: {reason}")
    unnamed = {} if options.part else find_unnamed(verdicts)
    for id, reason in unnamed.items():
        print(f"MISSED {id}, not listed in misses.txt: {reason}")
    if options.update:
        passed = [id for id, verdict in verdicts.items() if verdict.outcome is Outcome.PASS]
        print(f"{add_passing(path, passed, _SUITE)} new in {path.name}")
        if device != "cpu":
            kept = {id: reason for id, reason in read_reasons("fallbacks").items() if id not in verdicts}
            write_reasons("fallbacks", kept | find_fallbacks(verdicts))
    return 1 if lost or strays or unnamed else 0


def find_fallbacks(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """Return the cases that passed with help of the host: by id, which operators it computed and why."""
    rows = {id: verdict.host_calls for id, verdict in verdicts.items() if verdict.outcome is Outcome.PASS}
    return {id: ", ".join(calls) for id, calls in rows.items() if calls}


def find_strays(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """Return the fallbacks that are not in the list, or for another reason than is listed."""
    listed = read_reasons("fallbacks")
    return {id: reason for id, reason in find_fallbacks(verdicts).items() if listed.get(id) != reason}


def find_unnamed(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """Return the cases that did not pass and are not in the list of those that can't."""
    named = read_reasons("misses")
    missed = {id: _tell(verdict) for id, verdict in verdicts.items() if verdict.outcome is not Outcome.PASS}
    return {id: reason for id, reason in missed.items() if id not in named}


def find_lost(listed: Collection[str], verdicts: Mapping[str, Verdict], *, is_whole: bool) -> dict[str, str]:
    """Return the listed cases that did not pass, with the reason.

    Args:
        listed: Ids of a list.
        verdicts: By id, of the cases that were run.
        is_whole: Whether all of the suite was run: what has no verdict is then gone from it, and lost.
    """
    lost = {}
    for id in sorted(listed):
        if id in verdicts and verdicts[id].outcome is not Outcome.PASS:
            lost[id] = _tell(verdicts[id])
        elif is_whole and id not in verdicts:
            lost[id] = f"{_SUITE} has no such case"
    return lost


def format_counts(verdicts: Mapping[str, Verdict]) -> str:
    """Return the table of outcomes by kind and in all. Fallbacks are cases in which an operator ran on the host."""
    columns = ["cases", *(outcome.value for outcome in Outcome), "fallbacks"]
    rows: dict[str, Counter[str]] = {kind: Counter() for kind in (*KINDS, "all")}
    for id, verdict in verdicts.items():
        counted = ["cases", verdict.outcome.value, *(["fallbacks"] if verdict.host_calls else [])]
        rows[id.split("/")[0]].update(counted)
        rows["all"].update(counted)
    lines = [" " * 18 + "".join(f"{column:>13}" for column in columns)]
    for kind, counts in rows.items():
        if counts["cases"]:
            lines.append(f"{kind:18}" + "".join(f"{counts[column]:>13}" for column in columns))
    return "\n".join(lines)


def _tell(verdict: Verdict) -> str:
    return f"{verdict.outcome.value}: {' '.join(verdict.reason.split())}"


def _order(cases: Sequence[Case]) -> list[Case]:
    """Return the cases with the large models first, so that none is left over when the rest is done."""
    return sorted(cases, key=lambda case: case.kind != "light")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument(
        "--device", action="append", choices=(*DEVICES, "cuda"), help="default: cpu, then simulator; may be repeated"
    )
    parser.add_argument("-k", dest="pattern", default="", help="a regular expression of ids like node/test_abs")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--limit", type=float, default=300.0, metavar="S", help="seconds a case may take, compilers too"
    )
    parser.add_argument("--failures", action="store_true", help="print each case that does not pass, with its reason")
    parser.add_argument("--update", action="store_true", help="add what passes to the lists; nothing is ever taken out")
    parser.add_argument("--part", action="store_true", help="only the part of the lists that `make test` repeats")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
