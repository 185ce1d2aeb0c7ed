"""Programs: built, saved, loaded, and described before a method is loaded."""

from __future__ import annotations

import gc
import io
import threading
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.errors import ErrorCode
from gpuexec.execution.resources.weights import weights_of
from tests.model.small_models import (
    CPU,
    affine,
    expect_affine,
    gated,
    make_model,
    make_tracer,
    ramp,
    trace,
    two_inputs,
    two_layers,
)

SIMULATOR = gx.BackendType.SIMULATOR
BACKENDS = [CPU, SIMULATOR]
SHAPES = {"x": ((1, 8), 3)}
PAIR = {"left": ((1, 4), 3), "right": ((1, 4), 3)}


def build(backend: gx.BackendType | Backend = CPU) -> gx.Program:
    models = {"forward": two_layers(), "pair": two_inputs(), "free": affine()}
    return gx.Program.build(models, shapes={"forward": SHAPES, "pair": PAIR}, backend=backend)


def run(
    program: gx.Program, name: str, *inputs: np.ndarray, memory: gx.MemoryManager | None = None
) -> list[np.ndarray]:
    with program.load_method(name, memory) as method:
        method.execute(list(inputs))
        return [output.readback_and_clone() for output in method.get_outputs()]


@pytest.mark.feature("E9")
def test_methods_are_named_in_order() -> None:
    program = build()
    assert program.method_names == ("forward", "pair", "free")
    for call in (lambda: program.method_meta("back"), lambda: program.load_method("back")):
        with pytest.raises(gx.InputError, match="no method 'back'; it has forward, pair, free") as caught:
            call()
        assert caught.value.code == ErrorCode.INVALID_ARGUMENT
    for name in ("", 3):
        with pytest.raises(gx.InputError, match=f"name is a text, got {name!r}"):
            gx.Program.build({name: affine()})  # type: ignore[dict-item]


@pytest.mark.feature("E16", "E17", "E18", "E20")
@pytest.mark.parametrize("backend", BACKENDS)
def test_meta_reports_inputs_and_outputs_with_their_upper_bounds(backend: gx.BackendType) -> None:
    program = build(backend)
    meta = program.method_meta("pair")
    assert (meta.name, meta.num_inputs, meta.num_outputs, meta.num_attributes) == ("pair", 2, 2, 0)
    assert (meta.input_tag(1), meta.output_tag(0)) == ("Tensor", "Tensor")
    right = meta.input_tensor_meta(1)
    assert (right.name, right.dtype, right.sizes, right.dims) == ("right", np.dtype(np.float32), (4, 3), ("n", 3))
    assert (right.nbytes, right.is_memory_planned) == (48, True)
    assert [meta.output_tensor_meta(index).name for index in range(2)] == ["sum", "difference"]
    total = meta.output_tensor_meta(0)
    assert (total.dtype, total.sizes, total.nbytes, total.is_memory_planned) == (np.float32, (4, 3), 48, True)
    loose = program.method_meta("free").input_tensor_meta(0)
    assert (loose.sizes, loose.nbytes, loose.is_memory_planned) == ((None, 3), None, False)
    with gx.Worker(two_inputs(), backend=backend) as worker:
        plan = worker.prepare({"left": (4, 3), "right": (4, 3)})
        assert plan is not None and meta.num_instructions == len(plan.segment.commands) > 0
    assert meta.host_fallbacks == () and meta.gaps == ()
    for call in (meta.input_tag, meta.output_tag, meta.input_tensor_meta, meta.output_tensor_meta, meta.output_nbytes):
        for index in (-1, 2):
            with pytest.raises(gx.InputError, match=f"'pair' has 2 (in|out)puts, got index {index}") as caught:
                call(index)
            assert caught.value.code == ErrorCode.INVALID_ARGUMENT


@pytest.mark.feature("E19", "E28")
def test_meta_reports_where_buffers_lie() -> None:
    meta = build(SIMULATOR).method_meta("forward")
    devices = [meta.memory_planned_buffer_device(index) for index in range(meta.num_memory_planned_buffers)]
    assert devices == ["simulator"] * 4 + ["host"]
    assert [buffer.purpose for buffer in meta.memory_planned_buffers] == [
        *("activations", "inputs", "outputs", "state", "staging")
    ]
    for call in (meta.memory_planned_buffer_size, meta.memory_planned_buffer_device):
        with pytest.raises(gx.InputError, match="5 planned buffers, got index 5"):
            call(5)
    assert [buffer.device for buffer in build().method_meta("forward").memory_planned_buffers] == ["cpu"] * 3
    assert meta.uses_backend("simulator") and not meta.uses_backend("cuda") and not meta.uses_backend("host")
    tracer = build(make_tracer()).method_meta("forward")
    assert tracer.memory_planned_buffer_device(0) == "cuda:0" and tracer.uses_backend("cuda")


@pytest.mark.feature("E20")
def test_meta_reports_what_the_host_computes() -> None:
    model, _ = gated()
    program = gx.Program.build({"forward": model}, shapes={"forward": SHAPES}, backend=SIMULATOR)
    meta = program.method_meta("forward")
    assert meta.host_fallbacks == ("gpuexec.test.Gate 'gate'",) or "gate" in meta.host_fallbacks[0]
    assert len(meta.host_fallbacks) == 1
    assert meta.uses_backend("host")
    assert any("runs on the host" in gap for gap in meta.gaps)
    assert program.method_meta("forward", backend=CPU).host_fallbacks == ()


@pytest.mark.feature("E10", "T12")
def test_meta_allocates_compiles_and_runs_nothing() -> None:
    backend = make_tracer()
    program = build(backend)
    before = len(trace(backend))
    meta = program.method_meta("forward")
    assert meta.name == "forward" and meta.num_memory_planned_buffers > 0 and meta.num_instructions > 0
    module = gx.Module(program, backend=backend)
    assert module.method_meta("forward").num_inputs == 1
    assert not any(module.is_method_loaded(name) for name in program.method_names)
    assert len(trace(backend)) == before


@pytest.mark.feature("E41", "E63")
def test_bounds_that_contradict_the_graph_are_refused() -> None:
    from onnx import helper

    nodes = [helper.make_node("Add", ["a", "b"], ["y"], name="add")]
    model = make_model(nodes, {"a": ("n", 3), "b": ("m", 3)}, {"y": (None, 3)})
    program = gx.Program.build({"good": model}, shapes={"good": {"a": ((2, 4), 3), "b": ((2, 4), 3)}}, backend=CPU)
    assert program.method_meta("good").num_inputs == 2
    with pytest.raises(gx.InputError, match=r"Method 'bad'.*Add 'add'"):
        gx.Program.build({"bad": model}, shapes={"bad": {"a": (4, 3), "b": (5, 3)}}, backend=CPU)


@pytest.mark.feature("E11")
@pytest.mark.parametrize("backend", BACKENDS)
def test_loading_gives_a_new_method_each_time(backend: gx.BackendType) -> None:
    program = build(backend)
    with program.load_method("forward") as first, program.load_method("forward") as second:
        assert first is not second
        first.set_input(0, ramp(2, 3))
        with pytest.raises(gx.InputError, match="'x'"):
            second.execute()
        first.execute()
        second.execute([ramp(8, 3)])
        assert first.get_output(0).shape == (2, 2) and second.get_output(0).shape == (8, 2)
        expected = first.get_output(0).readback_and_clone()
        first.close()
        np.testing.assert_array_equal(second.get_output(0).readback_and_clone()[:2], expected)
    np.testing.assert_array_equal(run(program, "forward", ramp(2, 3))[0], expected)


@pytest.mark.feature("E11", "E70")
def test_methods_share_equal_weights_once() -> None:
    backend = make_tracer()
    models = {"forward": two_layers(), "again": two_layers()}
    program = gx.Program.build(models, shapes=dict.fromkeys(models, SHAPES), backend=backend)
    with program.load_method("forward"):
        uploads = trace(backend).count("copy_to_device")
        assert uploads > 0
        with program.load_method("again"), program.load_method("forward"):
            assert trace(backend).count("copy_to_device") == uploads
    held = {id(weights_of(program.contents.methods[name].model, backend)) for name in models}
    assert len(held) == 1


def test_what_can_fail_fails_when_loading() -> None:
    program = build()
    meta = program.method_meta("forward")
    with pytest.raises(gx.InputError):
        program.load_method("forward", gx.MemoryManager(planned_memory=gx.HierarchicalAllocator([])))
    memory = gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(meta.allocate()))
    (output,) = run(program, "forward", ramp(2, 3), memory=memory)
    assert output.shape == (2, 2)


@pytest.mark.feature("E8")
def test_program_is_used_from_many_threads() -> None:
    program = build(SIMULATOR)
    expected = run(program, "pair", ramp(4, 3), ramp(4, 3))
    metas: list[object] = []
    wrong: list[int] = []

    def work(number: int) -> None:
        metas.append(program._plan("forward", open_backend(SIMULATOR)))
        found = run(program, "pair", ramp(4, 3), ramp(4, 3))
        if any(not np.array_equal(a, b) for a, b in zip(found, expected, strict=True)):
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and len({id(meta) for meta in metas}) == 1


@pytest.mark.feature("B9", "S2", "E3", "E4", "E6")
@pytest.mark.parametrize("backend", BACKENDS)
def test_saved_program_gives_the_same(backend: gx.BackendType, tmp_path: Path) -> None:
    program, path = build(backend), tmp_path / "small.gxp"
    program.save(path)
    file = io.BytesIO()
    program.save(file)
    assert file.getvalue() == path.read_bytes()
    file.seek(0)
    whole = path.read_bytes()
    loaders = [gx.FileDataLoader(path), gx.MmapDataLoader(path), gx.BufferDataLoader(whole)]
    sources = [path, str(path), whole, file, path.open("rb"), *loaders, gx.FileLikeDataLoader(io.BytesIO(whole))]
    for source in sources:
        loaded = gx.Program.load(source, backend=backend)
        assert loaded.method_names == program.method_names
        for name, inputs in (("forward", [ramp(5, 3)]), ("pair", [ramp(3, 3), ramp(3, 3)]), ("free", [ramp(20, 3)])):
            for found, wanted in zip(run(loaded, name, *inputs), run(program, name, *inputs), strict=True):
                np.testing.assert_array_equal(found, wanted)
        before, after = program.method_meta("forward"), loaded.method_meta("forward")
        assert before.memory_planned_buffers == after.memory_planned_buffers
        assert before.input_tensor_meta(0) == after.input_tensor_meta(0)


def test_program_keeps_its_bytes_alive(tmp_path: Path) -> None:
    path = tmp_path / "small.gxp"
    build().save(path)
    program = gx.Program.load(gx.MmapDataLoader(path), gx.Verification.MINIMAL, backend=CPU)
    path.unlink()
    np.testing.assert_array_equal(run(program, "free", ramp(2, 3))[0], expect_affine(ramp(2, 3)))


@pytest.mark.feature("E7")
def test_broken_program_is_refused(tmp_path: Path, backend: Backend) -> None:
    path = tmp_path / "small.gxp"
    build().save(path)
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[:100], b"", b"no program at all"):
        with pytest.raises(gx.ModelError):
            gx.Program.load(broken, backend=backend)
    (found,) = run(gx.Program.load(whole, backend=backend), "free", ramp(2, 3))
    np.testing.assert_array_equal(found, expect_affine(ramp(2, 3)))
    with pytest.raises(gx.NotFoundError):
        gx.Program.load(tmp_path / "missing.gxp")
    with pytest.raises(gx.InputError, match="loader"):
        gx.Program.load(3)


def test_models_may_be_paths_and_bytes() -> None:
    digits = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
    program = gx.Program.build({"path": digits, "bytes": digits.read_bytes()}, backend=CPU)
    images = np.zeros((2, 1, 8, 8), np.float32)
    first, second = (run(program, name, images) for name in program.method_names)
    np.testing.assert_array_equal(first[0], second[0])


@pytest.mark.long
def test_plans_of_a_device_that_is_gone_are_no_others() -> None:
    """Devices are distinguished by their ids, which Python reuses."""
    program = build(CPU)
    for number in range(40):
        backend = Backend(TracerDevice(("sm_80", "sm_90")[number % 2]), gx.BackendType.GPU_COMPUTE, "for a test")
        plan, wanted = program._plan("forward", backend).plan, backend.device.target.name
        assert plan is not None and plan.target == wanted
        del backend
        gc.collect()
