"""Mapped files, and which bytes of them an array lies in."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gpuexec.errors import AccessError
from gpuexec.mapped import count_copied, drop_pages, drop_pages_of, find_range, find_source, map_file

CONTENT = np.arange(1000, dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "w.bin").write_bytes(CONTENT.tobytes())
    return tmp_path / "w.bin"


def open_map(path: Path) -> memoryview:
    return map_file(os.open(path, os.O_RDONLY), path.name)


def test_array_tells_its_file_and_place_through_views(path: Path) -> None:
    array = np.frombuffer(open_map(path)[400:], np.float32)[20:320].reshape(10, 30)
    found = find_range(array)
    assert found is not None and (found.offset, found.nbytes) == (480, 1200)
    content = bytearray(1200)
    found.source.read_into(found.offset, memoryview(content))
    assert bytes(content) == array.tobytes()
    assert find_range(array[2:4]) is not None and find_range(array.T) is None and find_range(array[:, ::2]) is None
    assert find_source(array.T) is found.source
    assert find_source(array + 1) is None and find_source(np.arange(3)) is None and find_range(array.copy()) is None


def test_pages_come_again_after_they_were_dropped(path: Path) -> None:
    view = open_map(path)
    array = np.frombuffer(view, np.float32)
    assert array.sum() == CONTENT.sum()
    drop_pages(view)
    drop_pages_of([array, np.arange(3)])
    drop_pages(memoryview(b"no map"))
    np.testing.assert_array_equal(array, CONTENT)


def test_only_copies_of_what_lies_in_files_count(path: Path) -> None:
    array, other = np.frombuffer(open_map(path), np.float32), np.ones(5, np.float32)
    assert count_copied([array + 1], [array, other]) == 4000
    assert count_copied([array[1:]], [array]) == 0
    assert count_copied([other + 1], [other]) == 0


def test_change_of_the_file_is_told(path: Path) -> None:
    source = find_source(np.frombuffer(open_map(path), np.float32))
    assert source is not None
    source.check_unchanged()
    times = os.stat(path)
    os.utime(path, ns=(times.st_atime_ns + 5, times.st_mtime_ns))  # who only reads changes nothing
    source.check_unchanged()
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(AccessError, match=r"w\.bin changed since the model was loaded: expected 4000 bytes, got 4004"):
        source.check_unchanged()


def test_file_that_ends_early_is_told_and_not_waited_for(path: Path) -> None:
    source = find_source(np.frombuffer(open_map(path), np.float32))
    assert source is not None
    os.truncate(path, 100)
    with pytest.raises(AccessError, match="ended early: 200 bytes at offset 0 asked for, got 100"):
        source.read_into(0, memoryview(bytearray(200)))


def test_what_is_no_file_is_refused_and_closed(tmp_path: Path) -> None:
    file = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(AccessError, match="no regular file"):
        map_file(file, "folder")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_empty_file_is_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert open_map(tmp_path / "empty").nbytes == 0


def test_descriptor_goes_with_the_last_view(path: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    array = np.frombuffer(open_map(path), np.float32)[3:7]
    assert count() > before
    del array
    assert count() == before
