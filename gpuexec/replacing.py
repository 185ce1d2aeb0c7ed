"""Files that take their place whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(target: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Give a file that takes the place of ``target`` once it is whole, but of nothing that is no regular file."""
    path = Path(os.path.realpath(os.fsdecode(target)))
    if path.exists() and not path.is_file():
        raise OSError("it is no regular file")
    scratch = path.with_name(f".{path.name[:64]}.{secrets.token_hex(8)}")
    try:
        with open(scratch, "xb") as file:
            yield file
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise
