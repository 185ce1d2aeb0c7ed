"""Custom data loaders: checked results, reported errors, and selection by kind of source."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import gpuexec as gx
from gpuexec.errors import ErrorCode
from gpuexec.program.fetching import fetch, measure, open_loader

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "content"
    path.write_bytes(CONTENT)
    return path


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


@pytest.mark.feature("E7")
@pytest.mark.parametrize(
    ("own", "message"),
    [
        (Own(KeyError("gone")), r"Own.load\(0, 8\) failed: KeyError: 'gone'"),
        (Own(b"short"), r"Own.load\(0, 8\) gave 5 bytes"),
        (Own("text"), r"Own.load\(0, 8\) gave str, expected bytes"),
        (Own(None), r"gave NoneType"),
    ],
)
def test_loader_of_a_user_that_errs_is_reported(own: Own, message: str) -> None:
    with pytest.raises(gx.AccessError, match=message) as caught:
        fetch(own, 0, 8)
    assert caught.value.code is ErrorCode.ACCESS_FAILED


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
