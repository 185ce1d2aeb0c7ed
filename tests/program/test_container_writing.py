"""Writing of program files: reproducible bytes, links followed, and never a partial file."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

import gpuexec as gx
from gpuexec.program.container import read_contents, write_contents
from gpuexec.program.data_loader import BufferDataLoader, FileDataLoader, MmapDataLoader
from tests.program.program_seeds import build_program, program_bytes


def test_two_writes_give_equal_bytes() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    write_contents(build_program(), first)
    write_contents(build_program(), second)
    assert first.getvalue() == second.getvalue()


@pytest.mark.feature("B9", "S2")
def test_what_was_read_is_written_alike(tmp_path: Path) -> None:
    path = tmp_path / "a.gxp"
    path.write_bytes(program_bytes())
    for loader in (FileDataLoader(path), MmapDataLoader(path), BufferDataLoader(program_bytes())):
        with loader:
            again = tmp_path / "b.gxp"
            assert write_contents(read_contents(loader), again) == len(program_bytes())
            assert again.read_bytes() == program_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.gxp", "b.gxp"]


class Jammed(io.RawIOBase):
    """File object whose `write` returns or raises a given result."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def write(self, content: Any) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (0, "Jammed can't be written: it took nothing of"),
        (OSError(28, "No space left"), "Jammed can't be written: No space left"),
        (ValueError("closed file"), "Jammed can't be written: closed file"),
    ],
)
def test_file_object_that_takes_nothing_is_reported(result: Any, message: str) -> None:
    with pytest.raises(gx.AccessError, match=message):
        write_contents(build_program(), Jammed(result))


@pytest.mark.parametrize("target", [None, 5, io.StringIO()])
def test_target_that_is_none_is_refused(target: Any) -> None:
    with pytest.raises(gx.InputError, match="Expected a path or a binary file to write to"):
        write_contents(build_program(), target)


def test_file_behind_a_link_is_replaced_and_a_pipe_is_not(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for _ in range(2):
        write_contents(build_program(), tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == program_bytes()
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "pipe", tmp_path, ""):
        with pytest.raises(gx.AccessError, match="it is no regular file"):
            write_contents(build_program(), target)
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 3
    with pytest.raises(gx.AccessError, match="null byte"):
        write_contents(build_program(), "\0")


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(gx.AccessError, match="can't be written: No such file"):
        write_contents(build_program(), tmp_path / "absent" / "a.gxp")
