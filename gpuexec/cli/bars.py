"""Progress bars in a terminal, for weights being read or uploaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuexec.system.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

_TITLES = {"read": "reading weights", "upload": "uploading weights"}


@contextlib.contextmanager
def show_progress(console: Console) -> Iterator[ProgressCallback | None]:
    """Yield a progress callback that draws a bar for each stage; None where output is no terminal."""
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=console, transient=True) as bars:

        def report(progress: Progress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bars.add_task(_TITLES.get(progress.stage, progress.stage))
            is_over = progress.done_nbytes >= progress.total_nbytes
            bars.update(
                tasks[progress.stage],
                completed=progress.done_nbytes,
                total=progress.total_nbytes,
                visible=not is_over,
            )

        yield report
