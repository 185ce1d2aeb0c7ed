"""Every example runs, and reads the digits right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = {
    "basic_execution.py": ["one input", "by name", "blocking"],
    "execute_in_parts.py": ["in parts"],
    "manual_schedule.py": ["frame by frame"],
    "asyncio_server.py": ["served"],
    "frame_budget.py": ["within the budget"],
    "readback.py": ["polled", "awaited", "blocked for"],
}
# Tried by tests of their own, or shared by the others.
ELSEWHERE = {"train_digits.py", "digits.py"}


def run_sample(name: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / name)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("name", "ways"), SAMPLES.items(), ids=SAMPLES)
def test_sample_reads_the_digits(name: str, ways: list[str]) -> None:
    said = run_sample(name)
    rights = {way: int(right) for way, right in re.findall(r"^([\w ]+): (\d+) of 360 digits read right$", said, re.M)}
    assert list(rights) == ways
    assert all(right >= 0.97 * 360 for right in rights.values())


def test_parts_are_synchronised_every_fifth_layer() -> None:
    progress = re.findall(r"(\d+)% scheduled, up to", run_sample("execute_in_parts.py"))
    assert progress and [int(share) for share in progress] == sorted({int(share) for share in progress})


def test_manual_schedule_is_flushed_every_fourth_frame() -> None:
    frames = [int(frame) for frame in re.findall(r"frame (\d+): ", run_sample("manual_schedule.py"))]
    assert frames and frames == list(range(4, frames[-1] + 1, 4))


def test_every_example_is_run() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {*SAMPLES, *ELSEWHERE}
