"""External data of tensors: content in files beside a model, or stripped from its message."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.errors import AccessError
from gpuexec.system.mapped import map_file
from gpuexec.system.progress import Progress, ProgressCallback

# Reads bytes of the model's own file into a buffer.
ReadInto = Callable[[int, memoryview], None]


@dataclass(frozen=True, slots=True)
class ExternalData:
    """Content that a caller gives in place of files beside a model.

    Args:
        files: Whole files by the location that the model names; no others are read then. None: those of its folder.
            They are used where they lie, and so must stay as they are.
        tensors: Initializers by name, whose files need not be there.

    Example:
        >>> model.save("beside.onnx", external_data=True)
        >>> with open("beside.onnx", "rb") as file, open("beside.onnx.data", "rb") as weights:
        ...     graph, files = file.read(), {"beside.onnx.data": weights.read()}
        >>> [port.name for port in gx.load(graph, external=gx.ExternalData(files)).outputs]
        ['logits', 'probabilities']
    """

    files: Mapping[str, bytes | memoryview] | None = None
    tensors: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)


class Origin:
    """Source of a model beside its message.

    Args:
        folder: Where external data lies; nothing outside it is read. None: the source has no place of its own.
        pieces: Content stripped from the message: (offset, bytes) by location.
        read_into: Reads such content.
        report: Called with the progress after every piece that was read.
        external: Arrays or bytes given in place of files.
    """

    def __init__(
        self,
        folder: Path | None = None,
        pieces: Mapping[str, tuple[int, int]] | None = None,
        read_into: ReadInto | None = None,
        report: ProgressCallback | None = None,
        external: ExternalData | None = None,
    ) -> None:
        self.folder = folder
        self.external = ExternalData() if external is None else external
        self._pieces, self._read_into, self._report = dict(pieces or {}), read_into, report
        self._total = sum(nbytes for _, nbytes in self._pieces.values())
        self._done = 0
        self._maps: dict[str, memoryview] = {}

    def measure_piece(self, location: str) -> int | None:
        """Return the byte count of stripped content at a location; None where that is not stripped content."""
        piece = self._pieces.get(location)
        return None if piece is None else piece[1]

    def read_piece(self, location: str, name: str) -> memoryview:
        """Return a copy of stripped content, aligned for every element type; ``name`` is its tensor's."""
        offset, nbytes = self._pieces[location]
        assert self._read_into is not None, "a message was stripped that nothing can be read from"
        array = np.empty(nbytes, np.uint8)
        self._read_into(offset, array.data)
        self._done += nbytes
        if self._report is not None:
            # A tensor that is read for two nodes is reported twice and counted once.
            self._report(Progress("read", name, min(self._done, self._total), self._total))
        return array.data

    @property
    def has_files(self) -> bool:
        """Return whether there are files beside the model, on disk or given."""
        return self.folder is not None or self.external.files is not None

    def map_external(self, location: str) -> memoryview:
        """Return the bytes of an external data file, mapped or as given.

        Raises:
            AccessError: It is not among those given, or no regular file in the folder, by its own name.
            OSError: It can't be opened or mapped.
        """
        files = self.external.files
        if files is not None and location not in files:
            raise AccessError(f"it is not among the files given: {', '.join(map(repr, files)) or 'none'}.")
        if files is not None:
            return memoryview(files[location]).cast("B")
        if location not in self._maps:
            assert self.folder is not None, "a source without a place has no files beside it"
            file = self._open_external(location)
            self._maps[location] = map_file(file, repr(location), self.folder / location)
        return self._maps[location]

    def _open_external(self, location: str) -> int:
        assert self.folder is not None, "a source without a place has no files beside it"
        root = os.path.realpath(self.folder)
        path = os.path.join(root, location)
        # A symbolic link, in a parent folder too, could lead anywhere; so could a hard link from an archive.
        if not location or os.path.isabs(location) or os.path.realpath(path) != os.path.normpath(path):
            raise AccessError("it is reached by links, or is no path within the folder of the model.")
        if os.path.commonpath([root, os.path.normpath(path)]) != root:
            raise AccessError("it lies outside the folder of the model.")
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
        file = os.open(path, flags)
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            os.close(file)
            raise AccessError("it is no regular file of one name.")
        return file
