"""Model suite: every case of the models in the folder of GPUEXEC_MODELS, with results kept.

python -m tests.system.models --device simulator -k 'bert|llama'
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.system.conformance.pool import judge_all
from tests.system.models.folder import read_manifest
from tests.system.models.judge import BACKENDS, Result, judge_model

_RESULTS = Path(__file__).parent / "results"
_DEVICES = ("cpu", "simulator")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments choose and print a line for each model; 1 if one is not as it should be."""
    options = _parse(arguments)
    models = [name for name in sorted(read_manifest()) if re.search(options.pattern, name)]
    if not models:
        print("There are no such models: GPUEXEC_MODELS names the folder.", file=sys.stderr)
        return 2
    failed = 0
    for device in options.device or _DEVICES:
        started, results = time.perf_counter(), dict[str, Result]()
        judged = judge_all(models, partial(judge_model, device=device), options.jobs, options.limit, fail=Result)
        for model, result in judged:
            results[model] = result
            print(format_result(model, result), flush=True)
        failed += sum(bool(result.problem) for result in results.values())
        title = f"{device}: {format_counts(results)} in {time.perf_counter() - started:.0f} s"
        print(title)
        if options.keep:
            _RESULTS.mkdir(exist_ok=True)
            (_RESULTS / f"{device}.txt").write_text(format_results(title, results))
    return 1 if failed else 0


def format_counts(results: Mapping[str, Result]) -> str:
    """Return how many models are as they should be, in a line."""
    good = [result for result in results.values() if not result.problem]
    called = sum(bool(result.calls) for result in good)
    cases = sum(result.cases for result in good)
    return f"{len(good)} of {len(results)} models, {cases} cases, {called} models with host calls"


def format_result(model: str, result: Result) -> str:
    """Return a model's line."""
    sha = str(read_manifest()[model]["sha256"])[:12]
    if result.problem:
        return f"{model:32} {sha}  {' '.join(result.problem.split())}"
    calls = ", ".join(f"{name} {count}" for name, count in result.calls)
    return (
        f"{model:32} {sha} {result.cases:2} cases {result.distance:8.4f} {result.seconds:8.2f} s"
        f" {sum(result.plans):3} plans {result.arena:6.3f} arena{'  on the host: ' + calls if calls else ''}"
    )


def format_results(title: str, results: Mapping[str, Result]) -> str:
    """Return all lines with what they were measured on, sorted by model."""
    head = (
        f"# {title}",
        f"# commit {_read_commit()}, Python {platform.python_version()}, {platform.machine()}",
        "# model, SHA-256 of its file, cases, largest error over what is allowed, time of all, plans, arena over bound",
    )
    return "\n".join([*head, *(format_result(*row) for row in sorted(results.items()))]) + "\n"


def _read_commit() -> str:
    folder = Path(__file__).parent
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make models", description=__doc__)
    add = parser.add_argument
    add("--device", action="append", choices=tuple(BACKENDS), help="default: cpu, then simulator; may be repeated")
    add("-k", dest="pattern", default="", help="a regular expression of names")
    add("--jobs", type=int, default=2, help="processes (default: 2)")
    add("--limit", type=float, default=900, metavar="S", help="seconds a model may take, compilers too")
    add("--keep", action="store_true", help="write the lines to tests/system/models/results/")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
