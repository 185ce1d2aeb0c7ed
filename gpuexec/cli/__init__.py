"""gpuexec run | info | explain | profile | compile | verify | ops | doctor | sanitize: all of it in a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gpuexec.errors import GpuexecError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status (0, or 1 after an error in one line; a command may have others)."""
    parser = argparse.ArgumentParser(
        prog="gpuexec", description="Run array programs (ONNX models) and see how they run."
    )
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="run | info | explain | profile | compile | verify | ops | doctor | sanitize",
    )
    from gpuexec.cli import compile, doctor, explain, info, ops, profile, run, sanitize, verify

    for module in (run, info, explain, profile, compile, verify, ops, doctor, sanitize):
        module.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.main(options))
    except GpuexecError as error:
        print(f"gpuexec: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"gpuexec: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 1
