"""Map from kernel instances to tests: every operator case planned for several architectures and never run.

A process of its own runs pytest over tests/ops with this file as a plugin, which keeps the tests that run cases and
lets them plan only, and those marked as ``plans``. Their plans are what the table of instantiations must equal
(tests/system/test_kernel_table.py) and what `make kernels` compiles; and they say which cases show what a kernel does
(tests/system/mutants). A whole model launches nothing else: its plan comes from the same lowerings, and the simulator
refuses what is not in the table. Tests that expect a case to fail are run too, so how a test ends says nothing here.

    python -m tests.devices.launches --out build/launches.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuexec.devices.kernels.compile_all import ARCHITECTURES
from gpuexec.errors import KernelError
from gpuexec.ir.command import Kernel, Launch
from gpuexec.ir.target import Target

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "tests.devices.launches"
TEXTURES = "pixel_75"
_FINISHED = (0, 1)  # exit statuses of pytest: all passed, some failed


class Launches:
    """Launches of plans: by kernel the threads of its largest block, dynamic shared memory, and the tests."""

    def __init__(self) -> None:
        # By architecture the target with textures whose launches serve it too.
        self.targets: dict[str, str] = {}
        self._threads: dict[Kernel, int] = {}
        self._shared_bytes: dict[Kernel, dict[str, int]] = {}
        self._tests: dict[Kernel, dict[str, None]] = {}

    def add(self, target: str, launches: Sequence[Launch], test: str) -> None:
        """Enter the launches of a plan."""
        targets = [name for name, textures in self.targets.items() if target in (name, textures)]
        for command in launches:
            kernel, (x, y, z) = command.kernel, command.block
            self._tests.setdefault(kernel, {})[test] = None
            self._threads[kernel] = max(self._threads.get(kernel, 0), x * y * z)
            by_target = self._shared_bytes.setdefault(kernel, {})
            for name in targets:
                by_target[name] = max(by_target.get(name, 0), command.shared_bytes)

    def write(self, path: Path) -> None:
        """Write the rows that `gpuexec.devices.kernels.compile_all.read_launches` reads, each with its tests at the
        end."""
        rows = [
            (
                *(kernel.source, kernel.expression, threads, self._shared_bytes[kernel], kernel.text),
                list(self._tests[kernel]),
            )
            for kernel, threads in self._threads.items()
        ]
        path.write_text(json.dumps(rows))


def collect_launches(path: Path, architectures: Sequence[str], cases: str = "tests/ops") -> None:
    """Write what the plans of operator cases launch.

    Args:
        path: Of the file.
        architectures: What to plan for.
        cases: A folder of tests, or a file of them.

    Raises:
        KernelError: The cases could not be planned at all.
    """
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q", "--tb=no"]
    command += [f"--launches={path}", f"--architectures={','.join(architectures)}", cases]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in _FINISHED or not path.exists():
        raise KernelError(f"The operator cases could not be planned:\n{done.stdout}\n{done.stderr}")


def read_tests(path: Path) -> dict[Kernel, tuple[str, ...]]:
    """Return the tests that launch each kernel, from what `collect_launches` wrote."""
    rows = json.loads(path.read_text())
    return {Kernel(source, expression, text): tuple(tests) for source, expression, _, _, text, tests in rows}


def main() -> None:
    """Collect, for all architectures."""
    parser = argparse.ArgumentParser(prog="python -m tests.devices.launches", description="Collect what plans launch.")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    collect_launches(options.out.resolve(), ARCHITECTURES)


_launches = Launches()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--launches", type=Path, help="plan operator cases only, and write what they launch to this file")
    parser.addoption("--architectures", default="sm_90", help="what to plan for, separated by commas")


def pytest_configure(config: pytest.Config) -> None:
    from tests.ops import harness

    names = config.getoption("architectures").split(",")
    # A blit depends on no architecture: one plan of it stands for all.
    _launches.targets.update(dict.fromkeys(names, TEXTURES))
    harness.TARGETS[:] = [Target.named(name) for name in (*names, TEXTURES)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    planning = {"checks": "plan"}.items()
    items[:] = [
        item
        for item in items
        if planning <= getattr(getattr(item, "callspec", None), "params", {}).items()
        or item.get_closest_marker("plans")
    ]


def pytest_runtest_teardown(item: pytest.Item) -> None:
    from tests.ops import harness

    for target, launches in harness.LAUNCHES:
        _launches.add(target, launches, item.nodeid)
    harness.LAUNCHES.clear()


def pytest_sessionfinish(session: pytest.Session) -> None:
    _launches.write(session.config.getoption("launches"))


if __name__ == "__main__":
    main()
