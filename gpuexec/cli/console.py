"""Where tables are printed: in a terminal as wide as it is, in files and pipes so wide that a row is a line."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_FILE_COLUMNS = 150


def open_console() -> Console:
    """Return the console on standard output; COLUMNS says otherwise how wide it is, as everywhere."""
    from rich.console import Console

    is_told = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if is_told else _FILE_COLUMNS)
