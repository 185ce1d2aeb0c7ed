"""JSON in place of text: one option of every command that prints what it found."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console

from gpuexec.execution.profiling.terminal import open_console
from gpuexec.system.records import encode


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument(
        "--json", action="store_true", help="print what was found as JSON, with the names of `to_dict`, and no text"
    )


def open_output(options: argparse.Namespace) -> Console:
    """Return the console of a command's sentences, whose lines are not broken; quiet where JSON is asked for."""
    return Console(highlight=False, soft_wrap=True, quiet=options.json)


def open_tables(options: argparse.Namespace) -> Console:
    """Return the console of a command's tables; quiet where JSON is asked for."""
    console = open_console()
    console.quiet = options.json
    return console


def print_json(options: argparse.Namespace, **found: Any) -> None:
    """Print what a command found, by name, where JSON is asked for; see `gpuexec.system.records.Record.to_dict`."""
    if options.json:
        print(json.dumps(encode(found), indent=1, allow_nan=False))
