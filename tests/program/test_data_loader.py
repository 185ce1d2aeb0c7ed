"""Data loaders: the bytes asked for, from any thread, or a clear error."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.errors import ErrorCode

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


@pytest.mark.feature("E1", "E3")
@pytest.mark.parametrize("opener", LOADERS)
def test_load_gives_the_bytes_asked_for(opener: Opener, path: Path) -> None:
    with opener(path) as loader:
        assert loader.size() == len(CONTENT)
        for offset, size in ((0, 5), (77, 300), (len(CONTENT) - 1, 1), (len(CONTENT), 0), (0, len(CONTENT))):
            assert bytes(loader.load(offset, size)) == CONTENT[offset : offset + size]
            room = bytearray(size + 3)
            loader.load_into(offset, size, memoryview(room))
            assert bytes(room) == CONTENT[offset : offset + size] + b"\0\0\0"


@pytest.mark.feature("E1", "E3")
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


def test_file_that_shrank_is_reported(path: Path) -> None:
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


def test_file_object_that_was_closed_is_reported() -> None:
    file = io.BytesIO(CONTENT)
    loader = gx.FileLikeDataLoader(file)
    file.close()
    with pytest.raises(gx.AccessError, match=r"can't be read: .*closed file"):
        loader.load(0, 1)


@pytest.mark.parametrize("opener", LOADERS)
def test_room_of_other_elements_gets_no_more_than_was_asked_for(opener: Opener, path: Path) -> None:
    room = np.full(8, 7, np.uint64)
    with opener(path) as loader:
        loader.load_into(3, 8, memoryview(room))
    assert room[0].tobytes() == CONTENT[3:11] and (room[1:] == 7).all()


@pytest.mark.parametrize("opener", LOADERS)
@pytest.mark.parametrize(
    ("room", "message"),
    [
        (memoryview(bytearray(7)), "buffer of at least 8 bytes to load into, got one of 7"),
        (memoryview(bytes(8)), "a writable buffer .* got a read-only one"),
        (memoryview(bytearray(32))[::2], "a dense buffer to load into, got memoryview"),
        (None, "a dense buffer to load into, got NoneType"),
    ],
)
def test_room_that_takes_nothing_is_refused(opener: Opener, path: Path, room: Any, message: str) -> None:
    with opener(path) as loader:
        with pytest.raises(gx.InputError, match=message):
            loader.load_into(0, 8, room)
        assert bytes(loader.load(0, 8)) == CONTENT[:8]


@pytest.mark.parametrize("opener", LOADERS)
def test_place_is_of_whole_numbers_of_any_kind(opener: Opener, path: Path) -> None:
    with opener(path) as loader:
        assert bytes(loader.load(np.uint8(200), np.uint8(100))) == CONTENT[200:300]  # type: ignore[arg-type]
        for offset, size in ((0.5, 3), (0, "3"), (None, 3)):
            with pytest.raises(gx.InputError, match="whole numbers of bytes"):
                loader.load(offset, size)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [gx.FileDataLoader, gx.MmapDataLoader])
def test_path_that_is_none_is_refused(kind: Any, path: Path) -> None:
    for given in (None, 5, ["a"]):
        with pytest.raises(gx.InputError, match=f"Expected the path of a file, got {type(given).__name__}"):
            kind(given)
    with kind(bytes(path)) as loader:
        assert loader.size() == len(CONTENT)


def test_file_is_closed_with_a_loader_that_nobody_closed(path: Path) -> None:
    names = Path("/proc/self/fd")
    loader = gx.FileDataLoader(path)
    assert path in [name.readlink() for name in names.iterdir() if name.is_symlink()]
    del loader
    assert path not in [name.readlink() for name in names.iterdir() if name.is_symlink()]


class Odd(io.BytesIO):
    """File object with given reads; ``seek`` gives nothing, as that of some does."""

    def __init__(self, result: Any) -> None:
        super().__init__(CONTENT)
        self.result = result

    def seek(self, *place: int) -> Any:
        super().seek(*place)

    def read(self, size: int | None = -1) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (b"12345", r"Odd.read\(4\) gave 5 bytes, expected up to 4"),
        ("1234", r"Odd.read\(4\) gave a str"),
        (None, "ended early: 4 bytes at offset 0 asked for, got 0"),
        (RuntimeError("jammed"), "Odd can't be read: jammed"),
        (EOFError(), "Odd can't be read: EOFError"),
    ],
)
def test_file_object_that_errs_is_reported(result: Any, message: str) -> None:
    with pytest.raises(gx.AccessError, match=message):
        gx.FileLikeDataLoader(Odd(result)).load(0, 4)


def test_file_object_is_one_of_bytes_that_stands_anywhere(path: Path) -> None:
    with path.open(encoding="latin-1") as file, pytest.raises(gx.InputError, match=r"file .* got TextIOWrapper"):
        gx.FileLikeDataLoader(file)  # type: ignore[arg-type]
    beyond = io.BytesIO(CONTENT)
    beyond.seek(len(CONTENT) + 5)
    assert gx.FileLikeDataLoader(beyond).size() == 0


def test_a_loader_of_ones_own_need_not_know_how_to_load_into() -> None:
    class Numbers(gx.DataLoader):
        def load(self, offset: int, size: int) -> np.ndarray[Any, Any]:
            return np.arange(offset, offset + size, dtype=np.uint8).view(np.uint16)

        def size(self) -> int:
            return 8

    room = bytearray(6)
    with Numbers() as loader:
        loader.load_into(2, 4, memoryview(room))
    assert room == bytes([2, 3, 4, 5, 0, 0])
