"""A state in a file: safetensors, one tensor a memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.editing.named_data import safetensors_dtype
from gpuexec.errors import InputError

Array = np.ndarray[Any, Any]


def write_state(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write dense arrays by name; the file is there wholly, or as it was."""
    from safetensors import numpy as safetensors

    target = Path(path)
    part = target.with_name(f"{target.name}.part")
    part.write_bytes(safetensors.save(dict(arrays)))
    os.replace(part, target)


def read_state(path: str | Path) -> dict[str, Array]:
    """Return the arrays of a file.

    Raises:
        InputError: It is no such file.
        OSError: It can't be read.
    """
    from safetensors import SafetensorError, deserialize

    content = Path(path).read_bytes()
    try:
        return {
            name: np.frombuffer(bytes(row["data"]), safetensors_dtype(row["dtype"])).reshape(row["shape"])
            for name, row in deserialize(content)  # type: ignore[no-untyped-call]
        }
    except (SafetensorError, InputError, ValueError) as error:
        raise InputError(f"{path} holds no state: {error}.") from error
