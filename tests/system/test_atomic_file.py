"""Atomic file replacement: the file after a successful write, and after a failed one."""

from __future__ import annotations

import ast
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.cli.leaves import write_outputs
from gpuexec.program.container import write_contents
from gpuexec.system.atomic_file import atomic_file, write_file
from tests.model.small_models import CPU, ramp
from tests.model.state_models import WIDTH, running_sum
from tests.program.program_seeds import build_program

PACKAGE = Path(__file__).resolve().parents[2] / "gpuexec"


def save_state(path: Path) -> None:
    with gx.Worker(running_sum((2, WIDTH)), backend=CPU) as worker:
        worker.schedule(ramp(2, WIDTH))
        worker.state.save(path)


def save_model(path: Path) -> None:
    running_sum((2, WIDTH)).save(path)


def save_program(path: Path) -> None:
    write_contents(build_program(), path)


def save_trace(path: Path) -> None:
    profiler = gx.Profiler()
    with gx.Worker(running_sum((2, WIDTH)), backend=CPU, profiler=profiler) as worker:
        worker.schedule(ramp(2, WIDTH)).wait()
    profiler.save_chrome_trace(path)
    profiler.save_tsv(path)


def save_outputs(path: Path) -> None:
    write_outputs(path, {"y": np.ones(3)})


WRITERS = {
    "a.safetensors": save_state,
    "a.onnx": save_model,
    "a.gxp": save_program,
    "a.trace": save_trace,
    "a.npz": save_outputs,
    "a.json": save_outputs,
}


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[Path], None], Path]:
    (tmp_path / "folder").mkdir()
    return WRITERS[request.param], tmp_path / "folder" / request.param


Writer = tuple[Callable[[Path], None], Path]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_mode_of_a_file_that_is_replaced_stays(writer: Writer, mode: int) -> None:
    write, path = writer
    path.write_text("old")
    path.chmod(mode)
    write(path)
    assert mode_of(path) == mode and path.read_bytes() != b"old"
    assert list(path.parent.iterdir()) == [path]


def test_new_file_has_the_usual_mode(writer: Writer) -> None:
    write, path = writer
    usual = path.parent / "usual"
    usual.touch()
    write(path)
    assert mode_of(path) == mode_of(usual)


def test_link_planted_under_a_name_that_could_be_guessed_is_not_followed(writer: Writer) -> None:
    write, path = writer
    other = path.parent.parent / "other"
    other.write_text("mine")
    for name in (f"{path.name}.part", f"{path.name}.tmp", f".{path.name}"):
        (path.parent / name).symlink_to(other)
    write(path)
    assert other.read_text() == "mine"


@pytest.mark.parametrize("is_there", [True, False])
def test_full_disk_leaves_what_was_there_and_names_the_path(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    def refuse(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write, path = writer
    if is_there:
        path.write_text("old")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(gx.AccessError, match=f"{path.name} can't be written: No space left on device"):
        write(path)
    assert [each.read_text() for each in path.parent.iterdir()] == ["old"] * is_there


def test_folder_that_is_missing_is_an_error_of_ours(writer: Writer) -> None:
    write, path = writer
    with pytest.raises(gx.AccessError, match=r"can't be written: No such file"):
        write(path.parent / "absent" / path.name)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit, gx.InputError, RuntimeError])
def test_nothing_is_left_of_a_write_that_is_interrupted(tmp_path: Path, failure: type[BaseException]) -> None:
    (tmp_path / "file").write_text("old")

    def write() -> None:
        with atomic_file(tmp_path / "file") as file:
            file.write(b"half")
            raise failure("in the middle")

    with pytest.raises(failure, match="in the middle"):
        write()
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_content_is_synced_before_it_takes_its_place_and_the_place_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, os.replace

    def note_sync(file: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        sync(file)

    def note_replace(source: Path, target: Path) -> None:
        calls.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_file(tmp_path / "file", "content")
    assert calls == ["file", "replace", "folder"] and (tmp_path / "file").read_text() == "content"


def test_file_is_open_to_nobody_else_before_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o600)
    with atomic_file(tmp_path / "file"):
        assert {mode_of(each) for each in tmp_path.iterdir()} == {0o600}


def test_longest_name_is_written(tmp_path: Path) -> None:
    for name in ("n" * 255, "\N{EARTH GLOBE EUROPE-AFRICA}" * 63):
        write_file(tmp_path / name, "content")
        assert (tmp_path / name).read_text() == "content"


def test_modules_write_files_in_no_other_way() -> None:
    trees = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert [problem for path, tree in sorted(trees.items()) for problem in find_writes(path, tree)] == []


@pytest.mark.parametrize(
    "source",
    [
        "open(p, 'w')",
        "open(p, mode='r+b')",
        "p.open('xb')",
        "io.open(p, 'a')",
        "os.open(p, os.O_WRONLY | os.O_CREAT)",
        "p.write_bytes(b)",
        "p.write_text(t)",
        "os.replace(p, q)",
        "os.rename(p, q)",
        "np.save(p, a)",
        "numpy.savez(p, a=a)",
        "a.tofile(p)",
        "tempfile.mkstemp()",
        "tempfile.NamedTemporaryFile()",
        "shutil.copyfile(p, q)",
        "onnx.save(m, p)",
        "save_file(t, p)",
        "gzip.open(p, 'wb')",
    ],
)
def test_other_way_is_found(source: str) -> None:
    assert len(list(find_writes("worker.py", ast.parse(source)))) == 1


# Each with why it is no file that somebody could be left with half of: it has no content, or it is a stream of bytes.
ALLOWED = {
    ("cli/__init__.py", "os.open"),  # /dev/null, in the place of a pipe that nobody reads
    ("system/atomic_file.py", "os.fdopen"),
    ("system/atomic_file.py", "os.replace"),
    ("devices/kernels/kernel_cache.py", "open"),  # a lock, always empty
    ("devices/simulator/object_cache.py", "open"),  # a lock, always empty
    ("cli/leaves.py", "np.savez"),  # to a file that `atomic_file` gives
}
WRITING = frozenset(
    {"write_bytes", "write_text", "tofile", "mkstemp", "NamedTemporaryFile", "TemporaryFile", "save_file", "savez"}
    | {"savez_compressed", "savetxt", "copyfile", "copy2", "copytree", "memmap", "to_csv", "to_json", "dump_to_file"}
)
QUALIFIED = frozenset(
    {"os.replace", "os.rename", "os.link", "os.symlink", "np.save", "numpy.save", "onnx.save", "onnx.save_model"}
    | {"shutil.copy", "shutil.move"}
)


def find_writes(path: str, tree: ast.AST) -> Iterator[str]:
    """Yield a sentence for each call that writes a file by itself."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        short = name.rpartition(".")[2]
        is_writing = short in WRITING or name in QUALIFIED
        if name == "os.open":
            is_writing = any(flag in ast.unparse(node) for flag in ("O_WRONLY", "O_RDWR", "O_CREAT"))
        elif short in ("open", "fdopen"):
            texts = [each.value for each in (*node.args, *(k.value for k in node.keywords)) if _is_mode(each)]
            is_writing = any(set(text) & set("wax+") for text in texts)
        if is_writing and (path, name) not in ALLOWED:
            yield f"{path}:{node.lineno} writes a file by {name}; use gpuexec.system.atomic_file."


def _is_mode(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and 0 < len(node.value) <= 3
