"""Altered program files with correct hashes and offsets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpuexec as gx
from gpuexec.program.container import read_contents
from gpuexec.program.contents import Contents
from gpuexec.program.data_loader import BufferDataLoader
from tests.program.program_seeds import program_bytes
from tests.system.bad_programs.parts import Parts

# Places in the JSON of a program.
FORWARD = ("methods", "forward")
GRAPH = (*FORWARD, "graph")
PLAN = (*FORWARD, "plans", "cpu", 0)
STORED = Path(__file__).parent / "format_1_0.gxp"


def read(content: bytes, verification: gx.Verification = gx.Verification.FULL) -> Contents:
    return read_contents(BufferDataLoader(content), verification)


def alter(change: Callable[[Parts], None]) -> bytes:
    """Return the program changed, with hashes and offsets that fit."""
    parts = Parts.take_apart(program_bytes())
    change(parts)
    return parts.put_together()


def set_at(*path: Any, to: Any) -> Callable[[Parts], None]:
    """Return a change that puts something at a path of the program's JSON."""

    def change(parts: Parts) -> None:
        item: Any = parts.program
        for key in path[:-1]:
            item = item[key]
        item[path[-1]] = to

    return change
