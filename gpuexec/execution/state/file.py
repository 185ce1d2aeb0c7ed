"""State files: safetensors, one tensor for each memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.errors import InputError, abridge
from gpuexec.model.editing.named_data import safetensors_dtype
from gpuexec.system.atomic_file import write_file
from gpuexec.system.mapped import read_file

Array = np.ndarray[Any, Any]


def write_state(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write dense arrays by name; the file is there wholly, or as it was.

    Raises:
        AccessError: It can't be written.
    """
    from safetensors import numpy as safetensors

    write_file(path, safetensors.save(dict(arrays)))


def read_state(path: str | Path) -> dict[str, Array]:
    """Return the arrays of a file.

    Raises:
        InputError: It is no such file.
        NotFoundError: There is no file.
        AccessError: It can't be read, or is no regular file.
    """
    from safetensors import SafetensorError, deserialize

    content = read_file(path)
    try:
        return {
            name: np.frombuffer(bytes(row["data"]), safetensors_dtype(row["dtype"])).reshape(row["shape"])
            for name, row in deserialize(content)  # type: ignore[no-untyped-call]
        }
    except (SafetensorError, InputError, ValueError) as error:
        raise InputError(f"{path} holds no state: {abridge(str(error), 300)}.") from error
