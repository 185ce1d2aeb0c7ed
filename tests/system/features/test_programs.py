"""Rows on programs: methods, descriptions before loading, and cases in a file."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
import tests.ops.operators  # noqa: F401 (registers NoKernel)
from gpuexec.cli import main
from gpuexec.compat import executorch
from gpuexec.devices.backend import Backend
from tests.model.small_models import CPU, affine, expect_affine, make_model, ramp, trace, two_layers
from tests.model.staged_models import MODELS
from tests.model.state_models import running_sum
from tests.system.features.marks import on
from tests.system.features.programs import PAIR, SHAPES, build, expect_layers, own_memory, read

X = ramp(2, 3)


def test_e9_methods_have_names_and_no_others() -> None:
    program = build(CPU)
    assert program.method_names == ("forward", "affine", "pair")
    numbered = executorch.Program(program)
    assert [numbered.get_method_name(index) for index in range(numbered.num_methods())] == list(program.method_names)
    for index in (-1, 3, "forward"):
        with pytest.raises(IndexError, match=f"3 methods, got index {index!r}") as refused:
            numbered.get_method_name(index)  # type: ignore[arg-type]
        assert isinstance(refused.value, gx.InputError)
    for call in (program.method_meta, program.load_method):
        with pytest.raises(gx.InputError, match="no method 'back'; it has forward, affine, pair") as caught:
            call("back")
        assert caught.value.code == 0x12


@pytest.mark.parametrize("name", ["", 3])
def test_e9_a_name_is_a_text(name: str) -> None:
    with pytest.raises(gx.InputError, match=f"name is a text, got {name!r}"):
        gx.Program.build({name: affine()})


def test_e11_each_load_makes_an_independent_method(backend: Backend) -> None:
    program = build(backend)
    with program.load_method("affine") as first, program.load_method("affine") as second:
        assert first is not second
        first.set_input(0, X)
        with pytest.raises(gx.InputError, match="'x'"):
            second.execute()
        second.execute([ramp(8, 3)])
        first.execute()
        first.close()
        np.testing.assert_array_equal(read(second), expect_affine(ramp(8, 3)))
    with program.load_method("affine") as third:
        third.execute([X])
        np.testing.assert_array_equal(read(third), expect_affine(X))


def test_e8_e60_methods_of_one_program_run_in_many_threads(backend: Backend) -> None:
    program = build(backend)
    wrong: list[object] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        with program.load_method("forward") as method:
            for rows in range(1, 9):
                x = ramp(rows, 3) * (number + 1)
                method.execute([x])
                if not np.array_equal(read(method), expect_layers(x)):
                    wrong.append((number, rows))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@on("tracer")
def test_e11_e70_methods_share_the_weights_on_the_device(backend: Backend) -> None:
    program = build(backend, forward=two_layers(), again=two_layers())
    with program.load_method("forward"):
        before = trace(backend).count("copy_to_device")
        assert before > 0
        with program.load_method("forward"), program.load_method("again"):
            assert trace(backend).count("copy_to_device") == before


@on("tracer")
def test_e10_t12_asking_about_a_method_loads_none(backend: Backend) -> None:
    program = build(backend)
    before = len(trace(backend))
    meta = program.method_meta("forward")
    assert meta.name == "forward" and meta.num_memory_planned_buffers > 0 and meta.num_instructions > 0
    module = gx.Module(program, backend=backend)
    assert module.method_meta("forward").num_inputs == 1
    assert not any(module.is_method_loaded(name) for name in program.method_names)
    assert trace(backend)[before:] == []


def test_e16_meta_counts_inputs_outputs_attributes_and_instructions(backend: Backend) -> None:
    program = gx.Program.build(
        {"forward": two_layers(), "sum": running_sum()}, shapes={"forward": SHAPES, "sum": SHAPES}, backend=backend
    )
    found = [
        (meta.name, meta.num_inputs, meta.num_outputs, meta.num_attributes)
        for meta in map(program.method_meta, program.method_names)
    ]
    assert found == [("forward", 1, 1, 0), ("sum", 1, 1, 1)]
    with gx.Worker(two_layers(), backend=backend) as worker:
        plan = worker.prepare((8, 3))
        assert plan is not None
        assert program.method_meta("forward").num_instructions == len(plan.segment.commands) > 0


def test_e17_tags_are_told_and_a_bad_index_is_refused() -> None:
    meta = build(CPU).method_meta("pair")
    assert [meta.input_tag(index) for index in range(2)] == ["Tensor", "Tensor"]
    assert [meta.output_tag(index) for index in range(2)] == ["Tensor", "Tensor"]
    calls = (meta.input_tag, meta.output_tag, meta.input_tensor_meta, meta.output_tensor_meta, meta.output_nbytes)
    for call in calls:
        for index in (-1, 2):
            with pytest.raises(gx.InputError, match=f"'pair' has 2 (in|out)puts, got index {index}") as caught:
                call(index)
            assert caught.value.code == 0x12


def test_e18_tensors_are_told_with_their_upper_bounds(backend: Backend) -> None:
    models = {"whole": affine(), "open": affine()}
    program = gx.Program.build(models, shapes={"whole": {"x": ((1, 8), 3)}}, backend=backend)
    x = program.method_meta("whole").input_tensor_meta(0)
    assert (x.name, x.dtype, x.sizes, x.dims, x.nbytes) == ("x", np.float32, (8, 3), ("n", 3), 96)
    assert x.is_memory_planned
    y = program.method_meta("whole").output_tensor_meta(0)
    assert (y.name, y.dtype, y.sizes, y.nbytes, y.is_memory_planned) == ("y", np.float32, (8, 3), 96, True)
    loose = program.method_meta("open").input_tensor_meta(0)
    assert (loose.sizes, loose.nbytes, loose.is_memory_planned) == ((None, 3), None, False)


def test_e19_e28_planned_buffers_are_told_with_size_and_device(backend: Backend) -> None:
    program = build(backend)
    meta = program.method_meta("forward")
    count = meta.num_memory_planned_buffers
    sizes = [meta.memory_planned_buffer_size(index) for index in range(count)]
    devices = [meta.memory_planned_buffer_device(index) for index in range(count)]
    with gx.Worker(two_layers(), backend=backend) as worker:
        plan = worker.prepare((8, 3))
        assert plan is not None and sizes[:3] == [plan.layout.nbytes, 8 * 3 * 4, 8 * 2 * 4]
    has_kernels = backend.device.target.has_kernels
    assert devices == ["simulator"] * 4 + ["host"] if has_kernels else devices == ["cpu"] * 3
    for call in (meta.memory_planned_buffer_size, meta.memory_planned_buffer_device):
        with pytest.raises(gx.InputError, match=f"{count} planned buffers, got index {count}"):
            call(count)
    with program.load_method("forward", own_memory(meta)) as method:
        method.execute([X])
        np.testing.assert_array_equal(read(method), expect_layers(X))


@on("tracer")
def test_e28_buffers_of_a_gpu_name_it(backend: Backend) -> None:
    meta = build(backend).method_meta("forward")
    assert meta.memory_planned_buffer_device(0) == "cuda:0" and meta.uses_backend("cuda")


def test_e20_what_falls_back_to_the_host_is_told(backend: Backend) -> None:
    program = gx.Program.build({"forward": MODELS["host call"].load(), "plain": affine()}, backend=backend)
    fallbacks = program.method_meta("forward").host_fallbacks
    if backend.device.target.has_kernels:
        assert ["NoKernel" in each for each in fallbacks] == [True]
        assert program.method_meta("forward").uses_backend("host")
    else:
        assert fallbacks == ()
    assert program.method_meta("plain").host_fallbacks == () and not program.method_meta("plain").uses_backend("host")


def test_e41_e63_bounds_that_contradict_each_other_are_refused_when_building() -> None:
    model = make_model([helper.make_node("Add", ["a", "b"], ["y"])], {"a": ("n", 3), "b": ("m", 3)}, {"y": (None, 3)})
    with pytest.raises(gx.InputError, match=r"Method 'forward'.*Add"):
        gx.Program.build({"forward": model}, shapes={"forward": {"a": (4, 3), "b": (5, 3)}}, backend=CPU)
    with pytest.raises(gx.InputError, match="no input 'z'; it has left, right"):
        gx.Program.build({"pair": build(CPU).contents.methods["pair"].model}, shapes={"pair": {**PAIR, "z": (1,)}})


def save_case(path: Path, y: np.ndarray | None) -> str:  # type: ignore[type-arg]
    case = gx.Case({"x": X}, None if y is None else {"y": y})
    gx.Program.build({"forward": affine()}, shapes={"forward": SHAPES}, cases={"forward": [case]}).save(path)
    return str(path)


def test_e86_a_file_is_verified_by_the_cases_it_carries(
    tmp_path: Path, backend: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    on_backend = ["--backend", backend.type.value]
    for y, origin in ((expect_affine(X), "given"), (None, "cpu")):
        assert main(["verify", save_case(tmp_path / "a.gxp", y), *on_backend]) == 0
        assert f"ok  forward case 0 ({origin}) y: maximum error 0" in capsys.readouterr().out
    wrong = expect_affine(X)
    wrong[1, 2] += 0.5
    path = save_case(tmp_path / "b.gxp", wrong)
    assert main(["verify", path, *on_backend]) == 1
    assert "OFF forward case 0 (given) y: maximum error 0.5, mean 0.0833" in capsys.readouterr().out
    assert main(["verify", path, *on_backend, "--atol", "0.6"]) == 0


def test_e86_cases_come_back_from_the_file(tmp_path: Path) -> None:
    (case,) = gx.Program.load(save_case(tmp_path / "a.gxp", None)).contents.methods["forward"].cases
    np.testing.assert_array_equal(case.inputs["x"], X)
    np.testing.assert_array_equal(case.outputs["y"], expect_affine(X))
    for bad, message in ((gx.Case({}), "lacks the inputs x"), ({"x": X}, r"Case\(inputs, outputs\), got a dict")):
        with pytest.raises(gx.InputError, match=message):
            gx.Program.build({"forward": affine()}, cases={"forward": [bad]})  # type: ignore[list-item]


def test_e86_a_file_without_cases_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(CPU).save(tmp_path / "none.gxp")
    assert main(["verify", str(tmp_path / "none.gxp"), "--backend", "cpu"]) == 1
    assert "no case was run" in capsys.readouterr().out
