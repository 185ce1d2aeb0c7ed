"""The command line: gpuexec demo, run, bench, info, explain, profile, compile, verify and others."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, TextIO, cast

from gpuexec.errors import GpuexecError
from gpuexec.system.version import VERSION

# Each a module of this package.
COMMANDS = (
    *("demo", "run", "bench", "info", "explain", "profile", "tune", "calibrate", "compile", "verify", "ops", "doctor"),
    "sanitize",
)
# The shell's exit status of a process ended by SIGINT: 128 and the number of the signal.
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 1 after an error, 130 after Ctrl-C, or a command's own."""
    parser = argparse.ArgumentParser(
        prog="gpuexec", description="Run array programs (ONNX models) and see how they run."
    )
    parser.add_argument("--version", action="version", version=f"gpuexec {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar=" | ".join(COMMANDS))
    for name in COMMANDS:
        import_module(f"gpuexec.cli.{name}").add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        with contextlib.redirect_stdout(cast(TextIO, _BreakablePipe(sys.stdout))):
            return int(options.main(options))
    except GpuexecError as error:
        print(f"gpuexec: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gpuexec: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except OSError as error:
        print(f"gpuexec: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 1


class _BreakablePipe:
    """Standard output that survives a closed pipe (``| head``): further output is dropped, the command goes on.

    So the files that were asked for are written, and the exit status is that of the work.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text, or drop it once the pipe is closed."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        """Flush, or do nothing once the pipe is closed."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._give_up()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self) -> None:
        """Redirect the descriptor to the null device: the interpreter flushes once more when it ends."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
