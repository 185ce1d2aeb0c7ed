"""Loaders give the bytes asked for, from any thread, or a clear error; a user's own is checked."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuexec as gx
from gpuexec.errors import ErrorCode
from gpuexec.programs.data_loader import fetch, measure, open_loader

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "content"
    path.write_bytes(CONTENT)
    return path


def open_like(path: Path) -> gx.FileLikeDataLoader:
    return gx.FileLikeDataLoader(io.BytesIO(path.read_bytes()))


def open_buffer(path: Path) -> gx.BufferDataLoader:
    return gx.BufferDataLoader(path.read_bytes())


LOADERS = [gx.FileDataLoader, gx.MmapDataLoader, open_buffer, open_like]
Opener = Callable[[Path], gx.DataLoader]


@pytest.mark.parametrize("opener", LOADERS)
def test_load_gives_the_bytes_asked_for(opener: Opener, path: Path) -> None:
    with opener(path) as loader:
        assert loader.size() == len(CONTENT)
        for offset, size in ((0, 5), (77, 300), (len(CONTENT) - 1, 1), (len(CONTENT), 0), (0, len(CONTENT))):
            assert bytes(loader.load(offset, size)) == CONTENT[offset : offset + size]
            room = bytearray(size + 3)
            loader.load_into(offset, size, memoryview(room))
            assert bytes(room) == CONTENT[offset : offset + size] + b"\0\0\0"


@pytest.mark.parametrize("opener", LOADERS)
@pytest.mark.parametrize(("offset", "size"), [(len(CONTENT) - 1, 2), (-1, 1), (1 << 62, 1), (0, 1 << 62), (0, -1)])
def test_bytes_that_are_not_there_are_refused(opener: Opener, path: Path, offset: int, size: int) -> None:
    with opener(path) as loader, pytest.raises(gx.AccessError, match=f"has {len(CONTENT)} bytes; {size} at offset"):
        loader.load(offset, size)


@pytest.mark.parametrize("opener", LOADERS)
def test_closed_loader_refuses_and_what_was_loaded_stays(opener: Opener, path: Path) -> None:
    loader = opener(path)
    kept = loader.load(10, 20)
    loader.close()
    loader.close()
    with pytest.raises(gx.ClosedError, match="closed"):
        loader.load(0, 1)
    assert bytes(kept) == CONTENT[10:30]


@pytest.mark.parametrize("opener", LOADERS)
def test_threads_load_at_once(opener: Opener, path: Path) -> None:
    wrong: list[int] = []
    with opener(path) as loader:

        def load(first: int) -> None:
            for offset in range(first, len(CONTENT) - 64, 97):
                if bytes(loader.load(offset, 64)) != CONTENT[offset : offset + 64]:
                    wrong.append(offset)

        threads = [threading.Thread(target=load, args=(first,)) for first in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize("kind", [gx.FileDataLoader, gx.MmapDataLoader])
def test_missing_file_is_named(kind: Opener, tmp_path: Path) -> None:
    with pytest.raises(gx.NotFoundError, match=r"There is no file .*absent") as caught:
        kind(tmp_path / "absent")
    assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize("kind", [gx.FileDataLoader, gx.MmapDataLoader])
def test_folder_and_pipe_can_not_be_loaded(kind: Opener, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(gx.AccessError, match="can't be read: it is no regular file") as caught:
            kind(path)
        assert caught.value.code is ErrorCode.ACCESS_FAILED


def test_empty_file_has_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for kind in (gx.FileDataLoader, gx.MmapDataLoader):
        with kind(tmp_path / "empty") as loader:
            assert loader.size() == 0 and bytes(loader.load(0, 0)) == b""


def test_file_that_shrank_is_told(path: Path) -> None:
    with gx.FileDataLoader(path) as loader:
        path.write_bytes(CONTENT[:100])
        with pytest.raises(gx.AccessError, match="ended early: 50 bytes at offset 80 asked for, got 20"):
            loader.load(80, 50)


def test_file_object_is_read_from_where_it_stands_and_left_open() -> None:
    file = io.BytesIO(b"before" + CONTENT)
    file.seek(6)
    loader = gx.FileLikeDataLoader(file)
    assert loader.size() == len(CONTENT) and bytes(loader.load(3, 4)) == CONTENT[3:7]
    loader.close()
    assert not file.closed


def test_file_object_that_was_closed_is_told() -> None:
    file = io.BytesIO(CONTENT)
    loader = gx.FileLikeDataLoader(file)
    file.close()
    with pytest.raises(gx.AccessError, match=r"can't be read: .*closed file"):
        loader.load(0, 1)


class Own:
    """A loader of a user's, by its methods alone."""

    def __init__(self, loaded: Any = CONTENT[:8], size: Any = 256) -> None:
        self.loaded, self.length = loaded, size

    def load(self, offset: int, size: int) -> Any:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded

    def load_into(self, offset: int, size: int, buffer: memoryview) -> None:
        buffer[:size] = self.loaded

    def size(self) -> Any:
        return self.length


def test_loader_of_a_user_is_taken_as_it_is() -> None:
    own = Own()
    assert open_loader(own) == (own, False)
    assert bytes(fetch(own, 0, 8)) == CONTENT[:8] and measure(own) == 256


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (Own(KeyError("gone")), r"Own.load\(0, 8\) failed: KeyError: 'gone'"),
        (Own(b"short"), r"Own.load\(0, 8\) gave 5 bytes"),
        (Own("text"), r"Own.load\(0, 8\) gave str, expected bytes"),
        (Own(None), r"gave NoneType"),
    ],
)
def test_loader_of_a_user_that_errs_is_told(own: Own, message: str) -> None:
    with pytest.raises(gx.AccessError, match=message):
        fetch(own, 0, 8)


@pytest.mark.parametrize("size", [-1, None, "8", True, 2.0])
def test_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(gx.AccessError, match=r"Own.size\(\) gave"):
        measure(Own(size=size))


def test_source_is_opened_by_what_it_is(path: Path) -> None:
    for source in (path, str(path), CONTENT, bytearray(CONTENT), memoryview(CONTENT), io.BytesIO(CONTENT)):
        loader, is_ours = open_loader(source)
        assert is_ours and bytes(loader.load(1, 3)) == CONTENT[1:4]
        loader.close()
    with pytest.raises(gx.InputError, match=r"Expected a path, bytes, a binary file, or a loader .* got int"):
        open_loader(3)
