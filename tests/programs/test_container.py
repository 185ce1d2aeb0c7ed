"""Programs as files: the same comes back, and what was cut, altered or is newer is refused."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import gpuexec as gx
from gpuexec.containers import make_sequence
from gpuexec.graphs import walk
from gpuexec.planner.verify import verify
from gpuexec.programs.building import build_contents
from gpuexec.programs.cases import Case, make_case
from gpuexec.programs.container import parse_json, read_contents, write_contents
from gpuexec.programs.contents import Contents, StoredMethod
from gpuexec.programs.contents_bytes import decode_array
from gpuexec.programs.data_loader import BufferDataLoader, FileDataLoader, MmapDataLoader
from tests.bad_programs.parts import Parts
from tests.program_seeds import KERNEL, WEIGHT, build_program, load_linear, load_twin, program_bytes
from tests.state_models import cache, running_sum

STORED = Path(__file__).parent / "format_1_0.gxp"
Json = dict[str, Any]


def read(content: bytes, verification: gx.Verification = gx.Verification.FULL) -> Contents:
    return read_contents(BufferDataLoader(content), verification)


def alter(change: Callable[[Parts], None]) -> bytes:
    """Return the program changed, with hashes and offsets that fit."""
    parts = Parts.take_apart(program_bytes())
    change(parts)
    return parts.put_together()


def test_two_writes_give_equal_bytes() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    write_contents(build_program(), first)
    write_contents(build_program(), second)
    assert first.getvalue() == second.getvalue()


def test_what_was_read_is_written_alike(tmp_path: Path) -> None:
    path = tmp_path / "a.gxp"
    path.write_bytes(program_bytes())
    for loader in (FileDataLoader(path), MmapDataLoader(path), BufferDataLoader(program_bytes())):
        with loader:
            again = tmp_path / "b.gxp"
            assert write_contents(read_contents(loader), again) == len(program_bytes())
            assert again.read_bytes() == program_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.gxp", "b.gxp"]


def test_file_is_one_of_safetensors_with_offsets_of_256() -> None:
    loaded = safetensors.numpy.load(program_bytes())
    assert sorted(loaded) == ["code", "program", "weights"]
    start = 8 + int.from_bytes(program_bytes()[:8], "little")
    assert start % 256 == 0 and all(array.nbytes % 256 == 0 for array in loaded.values())
    rows = json.loads(loaded["program"].tobytes())
    assert all(offset % 256 == 0 for _, _, offset in rows["arrays"])
    assert all(row["offset"] % 256 == 0 for row in rows["code"])
    assert "pickle" not in str(rows)


def test_methods_run_to_what_their_cases_expect() -> None:
    for name, method in read(program_bytes()).methods.items():
        with gx.Worker(method.model, backend=gx.BackendType.CPU) as worker:
            for case in method.cases:
                outputs = worker.schedule(dict(case.inputs)).outputs
                for key, expected in case.outputs.items():
                    got, allowed = outputs[key].readback_and_clone(), case.allowances[key]
                    np.testing.assert_allclose(got, expected, allowed.rtol, allowed.atol, err_msg=f"{name} {key}")


def test_origin_and_allowances_come_back() -> None:
    contents = read(program_bytes())
    made, given = contents.methods["forward"].cases
    assert (made.origin, given.origin) == ("cpu", "given")
    assert dataclasses.astuple(given.allowances["y"]) == (2.0, 0.5, "given")
    assert made.allowances["y"].reason == "reduction" and 0 < made.allowances["y"].rtol < 1e-3
    (halves,) = contents.methods["halves"].cases
    assert (halves.allowances["is_small"].rtol, halves.allowances["is_small"].atol) == (0.0, 0.0)


def test_equal_weights_of_methods_are_one_array() -> None:
    contents = read(program_bytes())
    w, v = (
        next(array for value, array in contents.methods[method].model.graph.constants.items() if value.name == name)
        for method, name in (("forward", "w"), ("twin", "v"))
    )
    assert w is v and np.array_equal(w, WEIGHT)
    models = [method.model for method in contents.methods.values()]
    assert all(model.slabs is models[0].slabs and model.lock is models[0].lock for model in models)
    assert contents.weights_nbytes < sum(
        array.nbytes for m in models for graph in walk(m.graph) for array in graph.constants.values()
    )


def test_equal_arrays_are_stored_once() -> None:
    file = io.BytesIO()
    write_contents(Contents({"a": StoredMethod(load_linear()), "b": StoredMethod(load_twin())}), file)
    a, b = (method.model.graph.constants.values() for method in read(file.getvalue()).methods.values())
    assert len({id(array) for array in (*a, *b)}) == 2


def test_weights_are_windows_on_the_map(tmp_path: Path) -> None:
    path = tmp_path / "a.gxp"
    path.write_bytes(program_bytes())
    arrays = read_contents(MmapDataLoader(path)).methods["forward"].model.graph.constants.values()
    large = [array for array in arrays if array.nbytes]
    assert large and all(not array.flags.owndata and not array.flags.writeable for array in large)


def test_weights_of_bytes_that_are_not_aligned_are_copied() -> None:
    odd = memoryview(b"." + program_bytes())[1:]
    contents = read_contents(BufferDataLoader(odd))
    assert all(a.ctypes.data % 16 == 0 for a in contents.methods["forward"].model.graph.constants.values())


def test_plans_come_back_and_hold() -> None:
    for method in read(program_bytes()).methods.values():
        for plan in method.plans["cpu"]:
            verify(plan)
            assert plan.target == "cpu"


def test_code_is_found_by_the_hash_of_its_source() -> None:
    code = read(program_bytes()).code
    assert code.architectures == ("compute_80", "sm_80")
    assert {bytes(each.image) for each in code.kernels} == {b"compute_80 image", b"sm_80 image"}
    assert all(each.kernel == KERNEL and each.registers == 8 for each in code.kernels)


def test_bounds_of_dimensions_come_back() -> None:
    model = read(program_bytes()).methods["forward"].model
    assert model.dims == {"n": (1, 8)}
    assert [str(port) for port in model.inputs] == ["x: float32[n,4]"]


def test_stored_program_is_read() -> None:
    """Format 1.0 is read by every later release; the file was written once and stays as it is."""
    contents = read_contents(FileDataLoader(STORED))
    assert contents.version == (1, 0)
    assert list(contents.methods) == ["forward", "twin", "halves", "nested"]
    for method in contents.methods.values():
        with gx.Worker(method.model, backend=gx.BackendType.CPU) as worker:
            for case in method.cases:
                outputs = worker.schedule(dict(case.inputs)).outputs
                for key, expected in case.outputs.items():
                    allowed = case.allowances[key]
                    np.testing.assert_allclose(
                        outputs[key].readback_and_clone(), expected, allowed.rtol, allowed.atol, err_msg=key
                    )


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("kept", [0, 7, 100, 600, -1, -256, -3000])
def test_cut_file_is_refused(kept: int) -> None:
    with pytest.raises(gx.ModelError, match=r"bytes|cut|read"):
        read(program_bytes()[:kept])


def test_file_with_something_behind_it_is_refused() -> None:
    with pytest.raises(gx.ModelError, match=r"its header speaks of \d+: it was cut, or something was added"):
        read(program_bytes() + b"\0" * 256)


@pytest.mark.parametrize("part", ["program", "weights", "code"])
def test_altered_byte_is_refused_and_told_where(part: str) -> None:
    content = bytearray(program_bytes())
    low, high = Parts.take_apart(program_bytes()).places()[part]
    content[(low + high) // 2] ^= 1
    with pytest.raises(gx.ModelError, match=f"altered or damaged: SHA-256 of its {part} is "):
        read(bytes(content))


def test_minimal_verification_leaves_hashes_alone() -> None:
    content = bytearray(program_bytes())
    _, high = Parts.take_apart(program_bytes()).places()["code"]
    content[high - 1] ^= 1
    assert read(bytes(content), gx.Verification.MINIMAL).methods
    with pytest.raises(gx.ModelError, match="altered"):
        read(bytes(content))


def test_verification_is_none_but_what_there_is(tmp_path: Path) -> None:
    write_contents(build_program(), tmp_path / "small.gxp")
    with pytest.raises(gx.InputError, match="FULL, MINIMAL"):
        gx.Program.load(tmp_path / "small.gxp", "full")  # type: ignore[arg-type]


def test_newer_major_format_is_refused_before_anything_else() -> None:
    def change(parts: Parts) -> None:
        parts.metadata["format"] = [2, 0]
        parts.program = {"of": "a form nobody knows"}

    with pytest.raises(gx.ModelError, match=r"format 2\.0, this release reads 1\.x\. Update"):
        read(alter(change))


def test_newer_minor_format_with_additions_is_read() -> None:
    def change(parts: Parts) -> None:
        parts.metadata["format"] = parts.program["format"] = [1, 7]
        parts.metadata["also"] = parts.program["also"] = {"new": 1}
        parts.program["methods"]["forward"]["also"] = [1, 2]
        parts.program["plans"] = "form of tomorrow"
        parts.extra["more"] = b"x" * 256

    contents = read(alter(change))
    assert contents.version == (1, 7) and contents.methods["forward"].plans == {}
    assert contents.notes == ("The plans are of another release's form; they are made anew.",)


def test_gaps_of_a_method_come_back_and_are_none_in_older_files() -> None:
    contents = read(alter(set_at(*FORWARD, "gaps", to=["Kernels of a branch are not in the file."])))
    assert contents.methods["forward"].gaps == ("Kernels of a branch are not in the file.",)
    assert read_contents(FileDataLoader(STORED)).methods["forward"].gaps == ()


def set_at(*path: Any, to: Any) -> Callable[[Parts], None]:
    """Return a change that puts something at a path of the program's JSON."""

    def change(parts: Parts) -> None:
        item: Any = parts.program
        for key in path[:-1]:
            item = item[key]
        item[path[-1]] = to

    return change


def add_input(parts: Parts) -> None:
    """Give the Scan an input that its body does not take."""
    (scan,) = [node for node in parts.program["methods"]["nested"]["graph"]["nodes"] if node[1] == "Scan"]
    scan[3].append(scan[3][0])


def drop_capture(parts: Parts) -> None:
    """Leave out an input that the Scan's body takes."""
    (scan,) = [node for node in parts.program["methods"]["nested"]["graph"]["nodes"] if node[1] == "Scan"]
    scan[3][-1] = None


FORWARD = ("methods", "forward")
GRAPH = (*FORWARD, "graph")
PLAN = (*FORWARD, "plans", "cpu", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            set_at("arrays", 0, 2, to=1 << 40),
            r"An array of \d+ bytes at 1099511627776 is outside the \d+ of the weights",
        ),
        (set_at("arrays", 0, 2, to=8), "is outside"),
        (set_at("arrays", 0, 1, to=[1 << 62, 1 << 62]), "can't exist"),
        (set_at("arrays", 0, 1, to=[-1]), "can't exist"),
        (set_at("arrays", 0, 0, to="float128"), "Element type 'float128' is not supported"),
        (set_at("code", 0, "offset", to=1 << 30), r"A kernel of \d+ bytes at 1073741824 is outside"),
        (set_at("code", 0, "key", to="../../x"), "key or symbol of a kernel is none"),
        (set_at("code", 0, "nbytes", to=True), "no 'nbytes'"),
        (set_at("methods", to=[]), "no 'methods'"),
        (set_at("format", to=[1, 0]), r"of format \[1, 0\], its header \[1, 1\]"),
        (set_at(*GRAPH, "nodes", 0, 1, to="Nonsense"), r"not registered here: Nonsense \("),
        (set_at(*GRAPH, "nodes", 1, 2, "axis", to="1"), "Softmax .*: attribute axis is '1', expected int"),
        (set_at(*GRAPH, "nodes", 1, 2, "axes", to=1), "Softmax .* has no attribute axes"),
        (set_at(*GRAPH, "nodes", 0, 3, to=[99, 1]), "99 is no number of 4"),
        (set_at(*GRAPH, "nodes", 0, 3, to=[2, 1]), "is not made before it is used|made by no node"),
        (set_at(*GRAPH, "outputs", to=[-1]), "-1 is no number of 4"),
        (set_at(*GRAPH, "values", 0, 1, to=["float32", [-4, 4]]), "declares dims that are none"),
        (set_at(*FORWARD, "dims", to={"m": 3}), "no dimension 'm'"),
        (set_at(*FORWARD, "dims", to={"n": [8, 1]}), "no extent, nor a range"),
        (set_at(*FORWARD, "info", "opsets", to={"": "18"}), "opsets is no int"),
        (set_at(*FORWARD, "cases", 0, "inputs", to={"q": 0}), "names 'q', which is none of the model's"),
        (set_at(*FORWARD, "cases", 0, "outputs", to={}), "What a case allows of 'y'"),
        (set_at(*FORWARD, "cases", 0, "inputs", to={}), "A case lacks an input"),
        (set_at(*FORWARD, "gaps", to=[7]), r"Its gaps are \[7\], expected sentences"),
        (set_at(*FORWARD, "memories", to=[{"input": "x", "output": "y"}]), "A memory is"),
        (add_input, r"Scan '.*': expected \d inputs, .*; got \d and 2"),
        (drop_capture, r"Scan '.*': expected \d inputs, all but the first 0 of them given"),
        (set_at(*PLAN, "target", to="sm_90"), "A plan for cpu does not hold: it is for 'sm_90'"),
        (set_at(*PLAN, "buffers", 0, "nbytes", to=1), "A plan for cpu does not hold"),
        (set_at(*PLAN, "layout", to=3), "layout is of another type"),
        (set_at(*PLAN, "segment", "edges", to=[[0, 0]]), r"Edge \(0, 0\) does not lead forward"),
    ],
)
def test_altered_program_is_refused_by_name(change: Callable[[Parts], None], message: str) -> None:
    with pytest.raises(gx.ModelError, match=message):
        read(alter(change))


def test_text_nested_too_deep_is_refused() -> None:
    parts = Parts.take_apart(program_bytes())
    with pytest.raises(gx.ModelError, match=r"can't be read|nested too deep"):
        read(parts.put_together(program=b"[" * 200_000))


def test_message_about_a_name_without_end_has_one() -> None:
    parts = Parts.take_apart(program_bytes())
    set_at(*GRAPH, "name", to="a" * 100_000)(parts)
    set_at(*GRAPH, "nodes", to=3)(parts)
    with pytest.raises(gx.ModelError, match=r"Method 'forward': Graph 'aaa.* has no nodes") as caught:
        read(parts.put_together())
    assert len(str(caught.value)) < 2000


def test_bool_that_is_neither_is_refused() -> None:
    parts = Parts.take_apart(program_bytes())
    offset = next(offset for name, _, offset in parts.program["arrays"] if name == "bool")
    parts.weights[offset] = 2
    with pytest.raises(gx.ModelError, match="bytes other than 0 and 1"):
        read(parts.put_together())


def test_onnx_file_is_refused_with_the_command_that_helps() -> None:
    with pytest.raises(gx.ModelError, match="no program"):
        read((Path(__file__).resolve().parents[2] / "examples/models/digits.onnx").read_bytes())
    with pytest.raises(gx.ModelError, match="Make one: gpuexec compile"):
        read(safetensors.numpy.save({"x": np.zeros(4, np.uint8)}))


def test_constant_of_strings_is_stored_as_text(tmp_path: Path) -> None:
    model = load_linear()
    value = next(iter(model.graph.constants))
    texts = np.array([["a", "ü"], ["", "\n"]], object)
    model.graph = dataclasses.replace(model.graph, constants={value: texts})
    write_contents(Contents({"m": StoredMethod(model)}), tmp_path / "a.gxp")
    (found,) = read((tmp_path / "a.gxp").read_bytes()).methods["m"].model.graph.constants.values()
    assert (found.dtype, found.tolist(), found.flags.writeable) == (np.dtype(object), texts.tolist(), False)


def test_constant_that_is_a_container_is_refused_by_name(tmp_path: Path) -> None:
    model = load_linear()
    value = next(iter(model.graph.constants))
    model.graph = dataclasses.replace(model.graph, constants={value: make_sequence([np.zeros(2, np.float32)])})
    with pytest.raises(gx.InputError, match=rf"%{value.name} can't be stored: it is sequence\(1 of float32\[2\]\)"):
        write_contents(Contents({"m": StoredMethod(model)}), tmp_path / "a.gxp")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "row", "message"),
    [
        (b'["a"]', ["string", [2], 0, 5], "expected 2 texts"),
        (b'["a", 1]', ["string", [2], 0, 8], "expected 2 texts"),
        (b"[", ["string", [2], 0, 1], "can't be read"),
        (b'["a"]', ["string", [1], 0, 600], "outside"),
        (b'["a"]', ["string", [1], 0], "no tensor that a file holds"),
        (b'["a"]', ["sequence", [], 0], "no tensor that a file holds"),
        (b'["a"]', ["string", [1], 0, "5"], "expected \\[dtype, shape, offset\\]"),
    ],
    ids=["few", "number", "cut off", "outside", "no size", "container", "size"],
)
def test_strings_of_another_form_are_refused(content: bytes, row: list[object], message: str) -> None:
    with pytest.raises(gx.ModelError, match=message):
        decode_array(row, memoryview(content), True)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN"])
def test_number_that_is_not_finite_is_refused(number: str) -> None:
    with pytest.raises(gx.ModelError, match=r"It can't be read: .* is no"):
        parse_json(f'{{"rtol": [{number}]}}'.encode(), "It")


def test_half_a_character_is_refused_in_what_is_read_and_written() -> None:
    with pytest.raises(gx.ModelError, match="surrogates not allowed"):
        read(alter(set_at("writer", to="\ud800")))
    with pytest.raises(gx.InputError, match=r"can't be stored: .*surrogates not allowed"):
        write_contents(build_contents({"\ud800": load_linear()}), io.BytesIO())
    file = io.BytesIO()
    write_contents(build_contents({"\U0001f600 \\ud": load_linear()}), file)
    assert list(read(file.getvalue()).methods) == ["\U0001f600 \\ud"]


@pytest.mark.parametrize(("place", "number"), [(0, -1.0), (1, -0.5), (0, 1e400)])
def test_allowance_that_judges_nothing_is_refused(place: int, number: float) -> None:
    with pytest.raises(gx.ModelError, match=r"is a finite number from 0 on|can't be read"):
        read(alter(set_at(*FORWARD, "cases", 0, "allowances", "y", place, to=number)))


class Jammed(io.RawIOBase):
    """A file object that takes what it is told, or fails."""

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
def test_file_object_that_takes_nothing_is_told(result: Any, message: str) -> None:
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


# ---------------------------------------------------------------- memories

MEMORIES: dict[str, tuple[Callable[[], gx.Model], tuple[int, ...]]] = {
    "swap": (running_sum, (2, 3)),
    "append": (lambda: cache().bind_state({"present": "past"}, capacity=8), (2, 1, 3)),
}


@pytest.mark.parametrize("name", sorted(MEMORIES))
def test_memories_come_back_and_go_on_from_run_to_run(name: str) -> None:
    build, shape = MEMORIES[name]
    model = build()
    file = io.BytesIO()
    write_contents(build_contents({"m": model}), file)
    again = read(file.getvalue()).methods["m"].model
    assert again.memories == model.memories and again.memories
    rng = np.random.default_rng(0)
    with gx.Worker(model, backend=gx.BackendType.CPU) as one, gx.Worker(again, backend=gx.BackendType.CPU) as other:
        for _ in range(4):
            x = rng.standard_normal(shape).astype(np.float32)
            for expected, got in zip(answers(one, x), answers(other, x), strict=True):
                np.testing.assert_array_equal(expected, got)


def answers(worker: gx.Worker, x: Any) -> list[Any]:
    return [tensor.readback_and_clone() for tensor in worker.schedule({"x": x}).outputs.values()]


def test_case_of_a_model_with_memories_starts_from_nothing() -> None:
    x = np.ones((2, 3), np.float32)
    case = make_case(running_sum(), Case({"x": x}))
    assert set(case.outputs) == {"y"}
    np.testing.assert_array_equal(case.outputs["y"], 2 * x)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("axis", 9, "grows along axis 9"),
        ("capacity", -1, "up to -1"),
        ("capacity", "8", "A memory is"),
        ("input", "q", "which are no output and input"),
        ("shape", [2], "has the shape"),
        ("shape", [2, -1, 3], "has the shape"),
    ],
)
def test_altered_memory_is_refused(key: str, value: Any, message: str) -> None:
    file = io.BytesIO()
    write_contents(build_contents({"m": MEMORIES["append"][0]()}), file)
    parts = Parts.take_apart(file.getvalue())
    parts.program["methods"]["m"]["memories"][0][key] = value
    with pytest.raises(gx.ModelError, match=message):
        read(parts.put_together())
