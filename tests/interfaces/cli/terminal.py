"""Pseudo-terminal for tests of the command line."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def run_on_terminal(columns: int, *arguments: str) -> str:
    """Return what ``gpuexec`` prints on a terminal so wide, without styles; it must succeed."""
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, columns, 0, 0))
    environment = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command, text = [sys.executable, "-m", "gpuexec", *arguments], b""
    with subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, env={**environment, "TERM": "xterm"}) as done:
        os.close(theirs)
        with contextlib.suppress(OSError):  # how a terminal ends
            while piece := os.read(ours, 65536):
                text += piece
    os.close(ours)
    assert done.returncode == 0
    return _STYLES.sub("", text.decode()).replace("\r\n", "\n")
