"""Sources of programs: custom loaders, and files that are no program."""

from __future__ import annotations

import gc
import io
import os
import re
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import CPU, ramp
from tests.program.small_programs import build, expect_layers, read

X = ramp(2, 3)
OPENERS: dict[str, Callable[[Path], Any]] = {
    "file": gx.FileDataLoader,
    "mapped": gx.MmapDataLoader,
    "buffer": lambda path: gx.BufferDataLoader(path.read_bytes()),
    "file object": lambda path: gx.FileLikeDataLoader(io.BytesIO(path.read_bytes())),
}


class Scattered:
    """A file object that asks the system at every seek, whereupon another thread may go on."""

    def __init__(self, path: Path) -> None:
        self._path, self._content, self._position = path, path.read_bytes(), 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (len(self._content) if whence == 2 else 0)
        os.stat(self._path)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        start = self._position
        self._position += size
        return self._content[start : start + size]


class Own:
    """A loader of a user's, who knows nothing of ours; ``asked`` is what it was asked for."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.asked: list[tuple[int, int]] = []

    def load(self, offset: int, size: int) -> bytes:
        self.asked.append((offset, size))
        return self._content[offset : offset + size]

    def load_into(self, offset: int, size: int, buffer: memoryview) -> None:
        buffer[:size] = self.load(offset, size)

    def size(self) -> int:
        return len(self._content)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build(CPU).save(tmp_path / "small.gxp")
    return tmp_path / "small.gxp"


def run(program: gx.Program, x: Any = X) -> Any:
    with program.load_method("forward") as method:
        method.execute([x])
        return read(method)


@pytest.mark.feature("E1")
@pytest.mark.parametrize("kind", OPENERS)
def test_threads_load_at_once(kind: str, tmp_path: Path) -> None:
    open_loader = OPENERS[kind] if kind != "file object" else lambda path: gx.FileLikeDataLoader(Scattered(path))
    rows = np.arange(1 << 18, dtype=np.uint32)
    (tmp_path / "numbers").write_bytes(rows.tobytes())
    wrong: list[int] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        for row in range(number, 256, 4):
            got = np.frombuffer(loader.load(row * 4096, 4096), np.uint32)
            if not np.array_equal(got, rows[row * 1024 : (row + 1) * 1024]):
                wrong.append(row)

    with open_loader(tmp_path / "numbers") as loader:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.feature("E1")
def test_a_loader_of_the_users_own_is_asked_for_what_is_needed(path: Path, backend: Backend) -> None:
    own = Own(path.read_bytes())
    np.testing.assert_array_equal(run(gx.Program.load(own, backend=backend)), expect_layers(X))
    assert own.asked[0] == (0, 8) and sum(size for _, size in own.asked) <= own.size()

    class Subclass(gx.DataLoader):
        """One that has the base's ways."""

        load, load_into, size = own.load, own.load_into, own.size

    with Subclass() as loader:
        np.testing.assert_array_equal(run(gx.Program.load(loader, backend=CPU)), expect_layers(X))


@pytest.mark.feature("E6")
def test_a_program_keeps_its_loader_and_its_bytes(path: Path) -> None:
    own = Own(path.read_bytes())
    gone = weakref.ref(own)
    program = gx.Program.load(own, backend=CPU)
    del own
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(run(program), expect_layers(X))
    mapped = gx.Program.load(gx.MmapDataLoader(path), backend=CPU)
    path.unlink()
    gc.collect()
    np.testing.assert_array_equal(run(mapped), expect_layers(X))


FAULTS: dict[str, tuple[Callable[[Path], Any], type[gx.GpuexecError], int, str]] = {
    "missing": (lambda path: path.with_name("none.gxp"), gx.NotFoundError, 0x20, r"There is no file .*none\.gxp"),
    "missing loader": (lambda path: gx.FileDataLoader(path.with_name("none")), gx.NotFoundError, 0x20, "no file"),
    "folder": (lambda path: path.parent, gx.AccessError, 0x22, "can't be read"),
    "cut": (lambda path: path.read_bytes()[:-100], gx.ModelError, 0x23, "cut"),
    "cut header": (lambda path: path.read_bytes()[:100], gx.ModelError, 0x23, "cut"),
    "empty": (lambda path: b"", gx.ModelError, 0x23, "0 bytes"),
    "longer": (lambda path: path.read_bytes() + bytes(256), gx.ModelError, 0x23, "something was added"),
    "no program": (lambda path: bytes(4096), gx.ModelError, 0x23, "no program"),
    "newer": (
        lambda path: re.sub(rb'(format\\":\[)1', rb"\g<1>2", path.read_bytes()),
        gx.ModelError,
        0x23,
        r"format 2\.\d, this release reads 1\.x.*Update",
    ),
    "no source": (lambda path: 7, gx.InputError, 0x12, "got int"),
}


@pytest.mark.feature("E7", "S3")
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_file_is_an_error_with_a_code(fault: str, path: Path) -> None:
    source, kind, code, message = FAULTS[fault]
    with pytest.raises(kind, match=message) as caught:
        gx.Program.load(source(path), backend=CPU)
    assert caught.value.code == code


class Failing(Own):
    """A loader that fails behind the header."""

    def load(self, offset: int, size: int) -> bytes:
        if offset > 8:
            raise OSError("the line was cut")
        return super().load(offset, size)


class Short(Own):
    """A loader that gives less than asked for."""

    def load(self, offset: int, size: int) -> bytes:
        return super().load(offset, size)[:-1]


@pytest.mark.feature("E7")
@pytest.mark.parametrize(("kind", "message"), [(Failing, "OSError: the line was cut"), (Short, "gave 7 bytes")])
def test_a_loader_that_fails_is_reported_with_its_own_reason(kind: type[Own], message: str, path: Path) -> None:
    with pytest.raises(gx.AccessError, match=message) as caught:
        gx.Program.load(kind(path.read_bytes()), backend=CPU)
    assert caught.value.code == 0x22
