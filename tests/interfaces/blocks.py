"""Fenced blocks of documents, and how they are run: Python in the names that those before left, commands here."""

from __future__ import annotations

import ast
import asyncio
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gpuexec as gx
from gpuexec.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its section, language and text, and the line it begins at."""

    section: str
    language: str
    text: str
    line: int


def read_blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a document."""
    section, blocks, begun = "", [], None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## ") and begun is None:
            section = line.removeprefix("## ")
        elif line.startswith("```"):
            if begun is None:
                begun = (line.removeprefix("```"), number, [])
            else:
                blocks.append(Block(section, begun[0], "\n".join(begun[2]), begun[1]))
                begun = None
        elif begun is not None:
            begun[2].append(line)
    assert begun is None
    return blocks


def run_python(block: str, names: dict[str, Any], where: str) -> None:
    """Run a block, which may await, in the names that those before it left."""
    code = compile(block, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & 0x80:  # CO_COROUTINE: it awaits

        async def run() -> None:
            await eval(code, names)

        asyncio.run(run())
    else:
        exec(code, names)


def run_console(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run each line: gpuexec here; of pip, uv and make, that there is what they name."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    for line in block.splitlines():
        command, *arguments = shlex.split(line.removeprefix("$ "), comments=True)
        if command == "gpuexec":
            status = main(arguments)
            said = capsys.readouterr()
            assert status == 0 and not said.err, f"{line}\n{said.out}{said.err}"
            assert said.out
        elif command == "make":
            assert set(arguments) <= set(targets), line
        elif command == "uvx":
            assert arguments[:3] == ["--from", ".", "gpuexec"] and arguments[3] in COMMANDS, line
        else:
            arguments = arguments[1:] if (command, arguments[0]) == ("uv", "pip") else arguments
            assert command in ("pip", "uv") and arguments[0] == "install", line
            for wanted in arguments[1:]:
                named = re.fullmatch(r"\.(?:\[([\w,]+)\])?", wanted)
                assert named and set(filter(None, (named[1] or "").split(","))) <= set(extras), line


def close_all(names: dict[str, Any]) -> None:
    """Close what blocks left open."""
    for item in names.values():
        if isinstance(item, gx.Worker | gx.Replay | gx.Module):
            item.close()
