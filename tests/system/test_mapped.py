"""Memory-mapped files, and the byte ranges of arrays within them."""

from __future__ import annotations

import hashlib
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuexec.errors import AccessError
from gpuexec.system import mapped
from gpuexec.system.mapped import (
    count_copied,
    find_range,
    find_source,
    hash_content,
    hold,
    map_file,
    read_content,
    read_pieces,
    read_view,
    view_bytes,
)

CONTENT = np.arange(1000, dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "w.bin").write_bytes(CONTENT.tobytes())
    return tmp_path / "w.bin"


def open_map(path: Path) -> memoryview:
    return map_file(os.open(path, os.O_RDONLY), path.name)


def test_array_reports_its_file_and_place_through_views(path: Path) -> None:
    array = np.frombuffer(open_map(path)[400:], np.float32)[20:320].reshape(10, 30)
    found = find_range(array)
    assert found is not None and (found.offset, found.nbytes) == (480, 1200)
    content = bytearray(1200)
    found.source.read_into(found.offset, memoryview(content))
    assert bytes(content) == array.tobytes()
    assert find_range(array[2:4]) is not None and find_range(array.T) is None and find_range(array[:, ::2]) is None
    assert find_source(array.T) is found.source
    assert find_source(array + 1) is None and find_source(np.arange(3)) is None and find_range(array.copy()) is None


VIEWS = {
    "dense": lambda array: array,
    "part": lambda array: array[7:500],
    "turned": lambda array: array.reshape(10, 100).T,
    "stepped": lambda array: array[3::7],
    "backwards": lambda array: array[::-3],
    "stretched": lambda array: np.broadcast_to(array[5:8], (4, 3)),
    "scalar": lambda array: array[9:10].reshape(()),
    "odd bytes": lambda array: array.view(np.uint8)[1:402].view("u1"),
    "nothing": lambda array: array[:0],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_content_of_a_view_is_read_and_not_touched(path: Path, monkeypatch: pytest.MonkeyPatch, view: Any) -> None:
    class Unreadable(mapped._Map):
        def __new__(cls, file: int, nbytes: int, **_: Any) -> Unreadable:
            return super().__new__(cls, file, nbytes, flags=mmap.MAP_SHARED, prot=0)

    monkeypatch.setattr(mapped, "_Map", Unreadable)
    array, expected = view(np.frombuffer(open_map(path), np.float32)), view(CONTENT)
    found = read_content(array)
    np.testing.assert_array_equal(found, expected)
    assert found.strides == array.strides and not found.flags.writeable
    assert not array.size or find_source(found) is None
    assert bytes(view_bytes(found)) == np.ascontiguousarray(expected).tobytes()
    content = view_bytes(array)
    assert hash_content(content) == hashlib.sha256(np.ascontiguousarray(expected).tobytes()).digest()
    pieces = list(read_pieces(content, 64))
    assert b"".join(pieces) == np.ascontiguousarray(expected).tobytes()
    assert all(0 < piece.nbytes <= 64 for piece in pieces)


def test_content_in_memory_is_not_copied() -> None:
    array = np.arange(5)
    assert read_content(array) is array and hold(array) is array
    assert read_view(memoryview(b"abc")) == b"abc"


def test_content_that_is_held_is_read_once_and_goes_with_its_array(path: Path) -> None:
    array = np.frombuffer(open_map(path), np.float32)
    held = weakref.ref(hold(array))
    assert hold(array) is held()
    del array
    assert held() is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: os.truncate(path, 100),
            "expected 4000 bytes, got 100",
        ),
        (lambda path: os.utime(path, ns=(0, 5)), "it was written to"),
    ],
)
@pytest.mark.parametrize("when", ["before", "while"])
def test_file_that_changes_is_reported_whenever_it_does(
    path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, message: str, when: str
) -> None:
    array, read = np.frombuffer(open_map(path), np.float32), os.preadv

    def read_and_change(file: int, buffers: Any, offset: int) -> int:
        count = read(file, buffers, offset)
        change(path)
        return count

    if when == "before":
        change(path)
    else:
        monkeypatch.setattr(os, "preadv", read_and_change)
    with pytest.raises(AccessError, match=rf"w\.bin changed since the model was loaded: {message}"):
        read_content(array)


def test_only_copies_of_what_lies_in_files_count(path: Path) -> None:
    array, other = np.frombuffer(open_map(path), np.float32), np.ones(5, np.float32)
    assert count_copied([array + 1], [array, other]) == 4000
    assert count_copied([array[1:]], [array]) == 0
    assert count_copied([other + 1], [other]) == 0


def test_change_of_the_file_is_reported(path: Path) -> None:
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


def test_file_that_ends_early_is_reported_and_not_waited_for(path: Path) -> None:
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
