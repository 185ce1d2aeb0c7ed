"""Array arguments of the command line: ``FILE.npy`` or ``FILE.npz:KEY``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.system.array_files import load_arrays

Array = np.ndarray[Any, Any]


def split_key(text: str) -> tuple[Path, str | None]:
    """Split ``FILE.npz:KEY`` or ``FILE`` into file and key."""
    path, colon, key = text.rpartition(":")
    return (Path(path), key) if colon and path.endswith(".npz") else (Path(text), None)


def load_array(text: str) -> Array:
    """Load the array named by ``FILE.npy`` or ``FILE.npz:KEY``.

    Raises:
        InputError: The file can't be read, or holds several and not one of that key.
    """
    path, key = split_key(text)
    loaded = load_arrays(path)
    if isinstance(loaded, np.ndarray):
        return loaded
    if key is None or key not in loaded:
        one = f"; name one: {path}:{next(iter(loaded))}" if loaded else ""
        raise InputError(f"{path} holds {', '.join(loaded) or 'no arrays'}{one}.")
    return loaded[key]
