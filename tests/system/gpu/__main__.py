"""Runner of tests marked ``gpu``: file by file in processes of their own, continuing after any failure.

    python -m tests.system.gpu [--out FOLDER] [arguments of pytest]

A kernel that faults takes its process's GPU with it, so the file's remaining tests run in another process; so they do
after a crash, and after a test that hangs. The folder gets a journal, the output and JUnit XML of each file, and
``summary.txt``, which is also printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.system.gpu.journal import read

ROOT = Path(__file__).resolve().parents[3]
HANG_S = 90
MAX_ATTEMPTS = 25
DESCRIBE = "import json; from tests.conftest import describe_machine; print(json.dumps(describe_machine()))"
PYTEST = (sys.executable, "-m", "pytest", "-m", "gpu")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests that need a GPU.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "build" / "gpu"))
    parser.add_argument("--processes", type=int, default=min(8, os.cpu_count() or 1), help="files at once")
    options, rest = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["GPUEXEC_REQUIRE_GPU"] = "1"
    summary = Summary(options.out / "summary.txt")
    started = time.monotonic()
    machine = describe()
    for key, value in machine.items():
        summary.say(f"{key}: {value}")
    if "sm_" not in machine.get("GPU", ""):
        return 1
    summary.say(compile_kernels(machine["GPU"].partition("(")[2].rstrip(")")))
    files = collect(rest, summary)
    with ThreadPoolExecutor(options.processes) as pool:
        rows = list(pool.map(lambda file: run_file(file, rest, options.out), files))
    summary.tell(dict(zip(files, rows, strict=True)))
    summary.say(f"{time.monotonic() - started:.0f} s in all")
    return 0 if files and all(row["state"] in ("passed", "skipped") for part in rows for row in part) else 1


def describe() -> dict[str, str]:
    """Return what the machine is, found in a process of its own."""
    done = subprocess.run([sys.executable, "-c", DESCRIBE], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"GPU": f"can't be asked: {done.stderr.strip().splitlines()[-1:]}"}
    found: dict[str, str] = json.loads(done.stdout)
    return found


def compile_kernels(architecture: str) -> str:
    """Compile all kernels into the cache, so that no test waits for it; return what it took."""
    import gpuexec.ops  # noqa: F401 (fills the table)
    from gpuexec.ir.instances import kernel_table

    rows = [(source, expression) for source, table in kernel_table().items() for expression in table]
    started, processes = time.monotonic(), os.cpu_count() or 1
    with ProcessPoolExecutor(processes) as pool:
        parts = list(pool.map(compile_part, [architecture] * processes, [rows[i::processes] for i in range(processes)]))
    failures = [line for part in parts for line in part]
    text = f"{len(rows)} kernels compiled or found in {time.monotonic() - started:.1f} s by {processes} processes"
    return "\n".join([text, *(f"KERNEL {line}" for line in failures)])


def compile_part(architecture: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    """Compile kernels one by one; return what went wrong."""
    from gpuexec.devices.kernels.kernel_library import KernelLibrary
    from gpuexec.errors import GpuexecError
    from gpuexec.ir.command import Kernel

    library, failures = KernelLibrary(architecture), []
    for source, expression in rows:
        try:
            library.compile([Kernel(source, expression)])
        except GpuexecError as error:
            failures.append(str(error)[:400])
    return failures


def collect(arguments: Sequence[str], summary: Summary) -> list[str]:
    """Return the files with tests to run, those with most first; one that can't be imported leaves out no other."""
    command = [*PYTEST, "--collect-only", "-q", "--continue-on-collection-errors", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    counts = {}
    for line in done.stdout.splitlines():
        file, _, count = line.rpartition(": ")
        if file.endswith(".py") and count.isdigit():
            counts[file] = int(count)
        elif line.startswith("ERROR"):
            summary.say(line)
            counts[line.split()[1].partition("::")[0]] = 0
    summary.say(f"{sum(counts.values())} tests in {len(counts)} files")
    return sorted(counts, key=lambda file: -counts[file])


def run_file(file: str, arguments: Sequence[str], out: Path) -> list[dict[str, Any]]:
    """Run the tests of a file to the end; return the last row of each."""
    stem = file.removesuffix(".py").replace("/", ".")
    journal = out / f"{stem}.jsonl"
    journal.unlink(missing_ok=True)
    for attempt in range(MAX_ATTEMPTS):
        options = [f"--journal={journal}", f"--junitxml={out / f'{stem}.{attempt}.xml'}", "--tb=short"]
        with open(out / f"{stem}.{attempt}.log", "w") as log:
            command = [*PYTEST, "-p", "tests.system.gpu.journal", *options, file, *arguments]
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            ended = wait(process, journal)
        rows = {row["test"]: row for row in read(journal)}
        cut = [row for row in rows.values() if row["state"] == "started"]
        with open(journal, "a") as again:
            for row in cut:
                row.update(state="failed", message=f"the process {ended}")
                again.write(json.dumps(row) + "\n")
        if process.returncode in (0, 1, 5):  # passed, failed, nothing left
            return list(rows.values())
        if not cut and process.returncode in (2, 3, 4):  # pytest itself could not go on
            return [*rows.values(), {"test": file, "state": "failed", "message": f"pytest {ended}; see the log"}]
    return [*rows.values(), {"test": file, "state": "failed", "message": f"given up after {MAX_ATTEMPTS} processes"}]


def wait(process: subprocess.Popen[bytes], journal: Path) -> str:
    """Wait for a process and kill it where its journal stands still; return how it ended."""
    moved, size = time.monotonic(), -1
    while True:
        try:
            return f"ended with {process.wait(1)}"
        except subprocess.TimeoutExpired:
            now = journal.stat().st_size if journal.exists() else 0
            if now != size:
                moved, size = time.monotonic(), now
            elif time.monotonic() - moved > HANG_S:
                process.kill()
                process.wait()
                return f"hung for {HANG_S} s and was killed"


class Summary:
    """Lines printed and written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")

    def say(self, line: str) -> None:
        """Print and write a line."""
        print(line, flush=True)
        with open(self._path, "a") as file:
            file.write(line + "\n")

    def tell(self, results: dict[str, list[dict[str, Any]]]) -> None:
        """Print counts by file, then every failure with the end of its message."""
        total: Counter[str] = Counter()
        for file, rows in sorted(results.items()):
            counts = Counter(row["state"] for row in rows)
            seconds = sum(row.get("seconds", 0) for row in rows)
            total += counts
            self.say(f"{file}: {show(counts)} ({seconds:.1f} s)")
        for row in (row for rows in results.values() for row in rows if row["state"] == "failed"):
            said = row.get("message", "").splitlines()
            reasons = [line for line in said if line.startswith("E ")]
            self.say("\n    ".join([f"FAILED {row['test']}", *(reasons[:4] or said[-3:])]))
        skips = Counter(row["message"] for rows in results.values() for row in rows if row["state"] == "skipped")
        for reason, count in skips.items():
            self.say(f"SKIPPED {count}: {reason}")
        self.say(show(total) or "no tests")


def show(counts: Counter[str]) -> str:
    """Return counts as words."""
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
