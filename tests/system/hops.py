"""Calls, files and changes of file in a steady schedule of the digits model, and in a load of it.

python -m tests.system.hops [--list]

Counts Python calls within gpuexec by `sys.setprofile`, comprehensions and generators among them: what a reader who
follows a run walks through. ``--list`` prints the files in the order of their calls.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np

import gpuexec as gx

_PACKAGE = str(Path(gx.__file__).parent)
_DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"


@dataclass(frozen=True, slots=True)
class Hops:
    """Files by the calls within them, in order; consecutive calls in one file are one row."""

    walk: tuple[tuple[str, int], ...]

    @property
    def calls(self) -> int:
        """Number of calls."""
        return sum(count for _, count in self.walk)

    @property
    def files(self) -> int:
        """Number of files."""
        return len({file for file, _ in self.walk})

    @property
    def changes(self) -> int:
        """Number of calls into another file than the call before."""
        return max(len(self.walk) - 1, 0)


def count_hops(call: Callable[[], object]) -> Hops:
    """Count the calls within gpuexec that a call makes, on its own thread."""
    walk: list[list[str | int]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(_PACKAGE):
            if walk and walk[-1][0] == file:
                walk[-1][1] = int(walk[-1][1]) + 1
            else:
                walk.append([file, 1])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return Hops(tuple((str(file).removeprefix(f"{_PACKAGE}/"), int(count)) for file, count in walk))


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.hops", description="Count calls, files, changes of file."
    )
    parser.add_argument("--list", action="store_true", help="print the files, in the order of their calls")
    options = parser.parse_args()
    gx.load(_DIGITS)
    rows = {"load": count_hops(lambda: gx.load(_DIGITS))}
    x = np.zeros((4, 1, 8, 8), np.float32)
    with gx.Worker(_DIGITS, backend="cpu") as worker:
        # The stream's thread starts with the first schedule; what was read must not be written before.
        worker.schedule(x).wait()
        for _ in range(5):
            worker.run(x)
        rows["schedule"] = count_hops(lambda: worker.schedule(x))
    for name, hops in rows.items():
        print(f"{name:10}{hops.calls:6} calls {hops.files:4} files {hops.changes:5} changes of file")
        if options.list:
            for file, count in hops.walk:
                print(f"    {count:5} {file}")


if __name__ == "__main__":
    main()
