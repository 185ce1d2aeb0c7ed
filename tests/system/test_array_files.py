"""Array files, ``.npy`` and ``.npz``: errors that name the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.system.array_files import load_arrays

ARRAYS = {"a": np.arange(40), "b": np.ones((2, 3), np.float32)}


@pytest.mark.parametrize("kind", ["npy", "npz", "compressed"])
def test_a_damaged_file_is_named_or_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "arrays"
    with path.open("wb") as file:
        if kind == "npy":
            np.save(file, ARRAYS["a"])
        else:
            (np.savez if kind == "npz" else np.savez_compressed)(file, allow_pickle=False, **ARRAYS)
    whole = path.read_bytes()
    refusals = []
    for place in range(0, len(whole), 3):
        for changed in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :]):
            path.write_bytes(changed)
            try:
                load_arrays(path)
            except gx.InputError as error:
                refusals.append(str(error))
    assert len(refusals) > len(whole) // 3
    assert all(each.startswith(f"{path} is no .npy or .npz file of arrays: ") for each in refusals)


def test_a_file_that_is_not_there_is_the_systems_to_report(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_arrays(tmp_path / "none.npz")


def test_a_long_name_in_a_broken_archive_makes_no_long_message(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    np.savez(path, **{"a" * 5000: np.zeros(3)})
    content = bytearray(path.read_bytes())
    content[content.index(b"a" * 5000)] = 0xEF
    path.write_bytes(content)
    with pytest.raises(gx.InputError, match="file of arrays: ") as caught:
        load_arrays(path)
    assert len(str(caught.value)) < 1000
