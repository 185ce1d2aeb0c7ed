"""Trials of mutants: rows for the plugin, a pytest process, and the outcome of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuexec.errors import KernelError
from tests.devices.launches import ROOT
from tests.system.mutants.choose import Trial
from tests.system.mutants.mutate import Mutant
from tests.system.mutants.plugin import Report

CACHE = ROOT / "build" / "mutants"  # compiled mutants, by content: a second run finds them


@dataclass(frozen=True, slots=True)
class Attempt:
    """A mutant (or None: the file as it is), tried by the checks ``"simulator"`` of its tests, or by ``"pixel"``."""

    mutant: Mutant | None
    file: str
    trial: Trial
    mode: str = "simulator"


def try_mutants(attempts: Sequence[Attempt]) -> list[Report]:
    """Run the tests of each attempt on its mutant.

    Raises:
        KernelError: The tests could not be run at all.
    """
    rows = [
        {
            "file": attempt.file,
            "line": attempt.mutant.line if attempt.mutant else 0,
            "after": attempt.mutant.after if attempt.mutant else "",
            "tests": [test.replace("[plan", f"[{attempt.mode}", 1) for test in attempt.trial.tests],
            "instances": attempt.trial.instances,
        }
        for attempt in attempts
    ]
    paths = sorted({test.partition("::")[0] for attempt in attempts for test in attempt.trial.tests})
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "mutants.json", Path(folder) / "reports.json"
        given.write_text(json.dumps(rows))
        command = [sys.executable, "-m", "pytest", "-p", "tests.system.mutants.plugin", "-p", "no:cacheprovider", "-q"]
        command += [f"--mutants={given}", f"--reports={made}", *paths]
        environment = {**os.environ, "GPUEXEC_CACHE_DIR": str(CACHE), "GPUEXEC_BUILD_JOBS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if not made.exists():
            raise KernelError(f"The mutants could not be tried:\n{done.stdout}\n{done.stderr}")
        return [Report(*row) for row in json.loads(made.read_text())]
