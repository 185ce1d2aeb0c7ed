"""Array files, ``.npy`` and ``.npz``: reading with errors that name the file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.errors import InputError, abridge

Array = np.ndarray[Any, Any]


def load_arrays(path: str | Path, wanted: Collection[str] | None = None) -> Array | dict[str, Array]:
    """Return the array of an ``.npy`` file, or a dict of all or the wanted arrays of an ``.npz`` file by name.

    Raises:
        InputError: It is no such file, it is broken, or it holds Python objects, which would have to be unpickled.
        OSError: It can't be opened.
    """
    with open(path, "rb") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            with loaded:
                return {name: np.asarray(loaded[name]) for name in loaded.files if wanted is None or name in wanted}
        except Exception as error:  # of NumPy, zipfile, zlib or tokenize, whichever detects the damage
            objects = " (text is saved as such by astype(str))" if "bject" in str(error) else ""
            text = abridge(str(error).rstrip("."), 300)
            raise InputError(f"{path} is no .npy or .npz file of arrays: {text}{objects}.") from error
