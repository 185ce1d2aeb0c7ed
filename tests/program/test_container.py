"""Program files: round trip, and files of other releases."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.ir.graphs import walk
from gpuexec.ir.plan_json import FORMS_READ
from gpuexec.planner.verify import verify
from gpuexec.program.building import build_contents
from gpuexec.program.cases import Case, make_case
from gpuexec.program.container import read_contents, write_contents
from gpuexec.program.contents import Contents, StoredMethod
from gpuexec.program.data_loader import BufferDataLoader, FileDataLoader, MmapDataLoader
from tests.execution.weights.models import make_chain, save_program
from tests.model.state_models import cache, running_sum
from tests.program.altering import FORWARD, STORED, alter, read, set_at
from tests.program.program_seeds import KERNEL, WEIGHT, load_linear, load_twin, program_bytes
from tests.system.bad_programs.parts import Parts


@pytest.mark.feature("B9", "S2")
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
    assert all(model._slabs is models[0]._slabs and model._lock is models[0]._lock for model in models)
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


@pytest.mark.feature("E13")
def test_stored_program_is_read(backend: Backend) -> None:
    """Format 1.0 is read by every later release; the file was written once and stays as it is."""
    contents = read_contents(FileDataLoader(STORED))
    assert contents.version == (1, 0)
    assert list(contents.methods) == ["forward", "twin", "halves", "nested"]
    for method in contents.methods.values():
        with gx.Worker(method.model, backend=backend) as worker:
            for case in method.cases:
                outputs = worker.schedule(dict(case.inputs)).outputs
                for key, expected in case.outputs.items():
                    allowed = case.allowances[key]
                    np.testing.assert_allclose(
                        outputs[key].readback_and_clone(), expected, allowed.rtol, allowed.atol, err_msg=key
                    )


@pytest.mark.feature("E13")
def test_methods_of_a_stored_program_are_loaded_and_run(backend: Backend) -> None:
    program = gx.Program.load(STORED, backend=backend)
    assert program.contents.version == (1, 0)
    for name in program.method_names:
        for case in program.contents.methods[name].cases:
            with program.load_method(name) as method:
                method.execute(dict(case.inputs))
                for key, expected in case.outputs.items():
                    allowed, got = case.allowances[key], method.get_output(key).readback_and_clone()
                    np.testing.assert_allclose(got, expected, allowed.rtol, allowed.atol, err_msg=f"{name} {key}")


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


@pytest.mark.parametrize("form", sorted(FORMS_READ))
def test_plans_of_the_form_before_packed_weights_are_read(form: str) -> None:
    contents = read(alter(set_at("plans", to=form)))
    assert contents.methods["forward"].plans and not contents.notes


def test_gaps_of_a_method_come_back_and_are_none_in_older_files() -> None:
    contents = read(alter(set_at(*FORWARD, "gaps", to=["Kernels of a branch are not in the file."])))
    assert contents.methods["forward"].gaps == ("Kernels of a branch are not in the file.",)
    assert read_contents(FileDataLoader(STORED)).methods["forward"].gaps == ()


def test_constant_of_strings_is_stored_as_text(tmp_path: Path) -> None:
    model = load_linear()
    value = next(iter(model.graph.constants))
    texts = np.array([["a", "ü"], ["", "\n"]], object)
    model.graph = dataclasses.replace(model.graph, constants={value: texts})
    write_contents(Contents({"m": StoredMethod(model)}), tmp_path / "a.gxp")
    (found,) = read((tmp_path / "a.gxp").read_bytes()).methods["m"].model.graph.constants.values()
    assert (found.dtype, found.tolist(), found.flags.writeable) == (np.dtype(object), texts.tolist(), False)


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


@pytest.mark.feature("E4", "E14")
def test_weights_are_views_of_a_mapped_file(tmp_path: Path) -> None:
    loader = gx.MmapDataLoader(save_program(make_chain(2), tmp_path))
    whole = np.frombuffer(loader.load(0, loader.size()), np.uint8)
    program = gx.Program.load(loader, backend=gx.BackendType.CPU)
    arrays = [a for a in program.contents.methods["forward"].model.graph.constants.values() if a.nbytes]
    assert len(arrays) == 2
    for array in arrays:
        assert np.shares_memory(array, whole) and not array.flags.writeable
