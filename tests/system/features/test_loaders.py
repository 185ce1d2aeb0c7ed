"""Rows on program sources: loaders, checks of a file, and messages about bad ones."""

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
from safetensors import safe_open

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.execution.weights.models import make_chain, save_program
from tests.model.small_models import CPU, expect_affine, ramp
from tests.system.features.programs import build, expect_layers, load, read, save

STORED = Path(__file__).resolve().parents[2] / "program" / "format_1_0.gxp"
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


@pytest.mark.parametrize("kind", OPENERS)
def test_e1_e3_a_loader_answers_three_questions(kind: str, path: Path) -> None:
    content = path.read_bytes()
    with OPENERS[kind](path) as loader:
        assert loader.size() == len(content)
        for offset, size in ((0, 8), (100, 1000), (len(content) - 5, 5), (len(content), 0)):
            assert bytes(loader.load(offset, size)) == content[offset : offset + size]
            into = bytearray(b"." * (size + 4))
            loader.load_into(offset, size, memoryview(into))
            assert bytes(into) == content[offset : offset + size] + b"...."
        for offset, size in ((len(content) - 4, 5), (-1, 2), (0, -1)):
            with pytest.raises(gx.AccessError, match=f"has {len(content)} bytes"):
                loader.load(offset, size)


@pytest.mark.parametrize("kind", OPENERS)
def test_e1_threads_load_at_once(kind: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("kind", [*OPENERS, "path", "text", "bytes", "open file", "own"])
def test_e3_e4_e6_a_program_is_loaded_from_all_of_them(kind: str, path: Path, backend: Backend) -> None:
    sources: dict[str, Callable[[Path], Any]] = OPENERS | {
        "path": Path,
        "text": str,
        "bytes": Path.read_bytes,
        "open file": lambda path: path.open("rb"),
        "own": lambda path: Own(path.read_bytes()),
    }
    program = gx.Program.load(sources[kind](path), backend=backend)
    np.testing.assert_array_equal(run(program), expect_layers(X))


def test_e1_a_loader_of_the_users_own_is_asked_for_what_is_needed(path: Path) -> None:
    own = Own(path.read_bytes())
    np.testing.assert_array_equal(run(gx.Program.load(own, backend=CPU)), expect_layers(X))
    assert own.asked[0] == (0, 8) and sum(size for _, size in own.asked) <= own.size()

    class Subclass(gx.DataLoader):
        """One that has the base's ways."""

        load, load_into, size = own.load, own.load_into, own.size

    with Subclass() as loader:
        np.testing.assert_array_equal(run(gx.Program.load(loader, backend=CPU)), expect_layers(X))


def test_e6_a_program_keeps_its_loader_and_its_bytes(path: Path) -> None:
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


def test_e4_e14_weights_are_views_of_a_mapped_file(tmp_path: Path) -> None:
    loader = gx.MmapDataLoader(save_program(make_chain(2), tmp_path))
    whole = np.frombuffer(loader.load(0, loader.size()), np.uint8)
    program = gx.Program.load(loader, backend=CPU)
    arrays = [a for a in program.contents.methods["forward"].model.graph.constants.values() if a.nbytes]
    assert len(arrays) == 2
    for array in arrays:
        assert np.shares_memory(array, whole) and not array.flags.writeable


def test_e6_a_program_is_verified_fully_unless_asked_not_to(path: Path) -> None:
    content = bytearray(path.read_bytes())
    weight = ramp(3, 5).tobytes()
    content[content.index(weight)] ^= 1  # the lowest bit of a weight
    with pytest.raises(gx.ModelError, match="altered or damaged: SHA-256 of its weights"):
        gx.Program.load(bytes(content), backend=CPU)
    program = gx.Program.load(bytes(content), gx.Verification.MINIMAL, backend=CPU)
    assert program.method_names == ("forward", "affine", "pair")


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


@pytest.mark.parametrize("fault", FAULTS)
def test_e7_s3_what_is_wrong_with_a_file_is_an_error_with_a_code(fault: str, path: Path) -> None:
    source, kind, code, message = FAULTS[fault]
    with pytest.raises(kind, match=message) as caught:
        gx.Program.load(source(path), backend=CPU)
    assert caught.value.code == code


def test_e7_a_loader_that_fails_is_told_with_its_own_reason(path: Path) -> None:
    class Failing(Own):
        """Fails behind the header."""

        def load(self, offset: int, size: int) -> bytes:
            if offset > 8:
                raise OSError("the line was cut")
            return super().load(offset, size)

    class Short(Own):
        """Gives less than asked for."""

        def load(self, offset: int, size: int) -> bytes:
            return super().load(offset, size)[:-1]

    for loader, message in ((Failing, "OSError: the line was cut"), (Short, "gave 7 bytes")):
        with pytest.raises(gx.AccessError, match=message) as caught:
            gx.Program.load(loader(path.read_bytes()), backend=CPU)
        assert caught.value.code == 0x22


def test_b9_s2_a_model_is_saved_and_loaded(tmp_path: Path, backend: Backend) -> None:
    program = build(backend)
    program.save(tmp_path / "one.gxp")
    again = gx.Program.load(tmp_path / "one.gxp", backend=backend)
    assert save(again) == save(program) == (tmp_path / "one.gxp").read_bytes()
    for rows in (1, 5, 8):
        np.testing.assert_array_equal(run(again, ramp(rows, 3)), expect_layers(ramp(rows, 3)))
    with safe_open(tmp_path / "one.gxp", "numpy") as file:
        assert set(file.keys()) == {"program", "weights", "code"}


def test_e13_a_stored_file_of_the_first_format_is_read(backend: Backend) -> None:
    program = gx.Program.load(STORED, backend=backend)
    assert program.contents.version == (1, 0)
    for name in program.method_names:
        for case in program.contents.methods[name].cases:
            with program.load_method(name) as method:
                method.execute(dict(case.inputs))
                for key, expected in case.outputs.items():
                    allowed = case.allowances[key]
                    np.testing.assert_allclose(read(method, key), expected, allowed.rtol, allowed.atol)


def test_e7_an_error_while_loading_leaves_nothing_behind(path: Path, backend: Backend) -> None:
    with pytest.raises(gx.ModelError):
        gx.Program.load(path.read_bytes()[:-1], backend=backend)
    with load(backend) as method:
        method.execute([X])
        np.testing.assert_array_equal(read(method), expect_affine(X))
