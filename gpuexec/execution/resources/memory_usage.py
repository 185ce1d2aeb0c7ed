"""Memory usage by kind: bytes held, the peak, and the run and layer of the last change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpuexec.devices.revision import Revision


@dataclass(frozen=True, slots=True)
class MemoryUsageRow:
    """Memory usage of one kind.

    ``nbytes`` are held since run ``since_run`` (None: since before any run), put on its stream as far as layer
    ``since_layer`` (empty where the run is not scheduled layer by layer); ``most_nbytes`` is the most there was.
    """

    name: str
    nbytes: int = 0
    most_nbytes: int = 0
    since_run: int | None = None
    since_layer: str = ""

    def __str__(self) -> str:
        layer = f", layer {self.since_layer}" if self.since_layer else ""
        since = "before any run" if self.since_run is None else f"run {self.since_run}{layer}"
        return f"{self.name} {self.nbytes:,} B since {since}, {self.most_nbytes:,} B at most"


class MemoryUsage:
    """Tracks the memory held, by kind.

    Args:
        readers: Functions that return the bytes held, by kind.
        revision: Changes whenever the bytes may have.
    """

    def __init__(self, readers: Mapping[str, Callable[[], int]], revision: Revision) -> None:
        self._readers, self._revision = dict(readers), revision
        self._observed: int | None = None
        self._rows = {name: MemoryUsageRow(name) for name in readers}
        self._lock = threading.Lock()

    def observe(self, run: int | None = None, layer: str = "") -> None:
        """Note what is held now that a run, or a layer of it, is on its stream; nothing is read if nothing changed."""
        if self._observed != self._revision.number:
            self._read(run, layer)

    def list_rows(self, run: int | None = None) -> tuple[MemoryUsageRow, ...]:
        """Return what is held now; what has changed unnoticed, as cached memory does, counts to a run."""
        self._read(run, "")
        with self._lock:
            return tuple(self._rows.values())

    def _read(self, run: int | None, layer: str) -> None:
        self._observed = self._revision.number
        with self._lock:
            for name, read in self._readers.items():
                row, nbytes = self._rows[name], read()
                if row.nbytes != nbytes:
                    peak = max(row.most_nbytes, nbytes)
                    self._rows[name] = replace(row, nbytes=nbytes, most_nbytes=peak, since_run=run, since_layer=layer)

    def count(self) -> dict[str, int]:
        """Return the bytes held now, by kind, without noting them."""
        return {name: read() for name, read in self._readers.items()}
