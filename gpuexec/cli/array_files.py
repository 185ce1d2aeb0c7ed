"""Files of arrays, ``.npy`` and ``.npz``: whatever is wrong with one is an error that names it."""

from __future__ import annotations

import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.errors import InputError

Array = np.ndarray[Any, Any]


def load_arrays(path: str | Path, wanted: Collection[str] | None = None) -> Array | dict[str, Array]:
    """Return the array of an ``.npy`` file, or those of an ``.npz`` file by name; of these the wanted ones, or all.

    Raises:
        InputError: It is no such file, it is broken, or it holds Python objects, which would have to be unpickled.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: np.asarray(loaded[name]) for name in loaded.files if wanted is None or name in wanted}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        objects = " (text is saved as such by astype(str))" if "bject" in str(error) else ""
        raise InputError(f"{path} is no .npy or .npz file of arrays: {error}{objects}.") from error


def split_key(text: str) -> tuple[Path, str | None]:
    """Return the file and the key that ``FILE.npz:KEY`` or ``FILE`` names."""
    path, colon, key = text.rpartition(":")
    return (Path(path), key) if colon and path.endswith(".npz") else (Path(text), None)


def load_array(text: str) -> Array:
    """Return the one array that ``FILE.npy`` or ``FILE.npz:KEY`` names.

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
