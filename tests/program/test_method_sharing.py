"""Methods over the same memory: alternating runs, which make each other's outputs stale."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from tests.execution.held import holding
from tests.model.small_models import CPU, affine, expect_affine, hold, make_tracer, ramp, trace, two_inputs, two_layers
from tests.program.arenas import SIMULATOR, build, expect_two_layers, manage, run
from tests.program.methods import BACKENDS


@pytest.mark.feature("E69")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_users", [False, True])
def test_shared_arenas_make_outputs_stale_and_keep_results_right(backend: gx.BackendType, is_users: bool) -> None:
    program = build(backend, forward=two_layers(), other=affine())
    if is_users:
        rows = [program.method_meta(name).allocate() for name in program.method_names]
        sizes = [
            [each.nbytes for each in program.method_meta(name).memory_planned_buffers] for name in program.method_names
        ]
        buffers = [a if m >= n else b for a, b, m, n in zip(*rows, *sizes, strict=True)]
        memory = manage(*buffers)
        first, second = (program.load_method(name, memory) for name in program.method_names)
    else:
        first, second = (program.load_method(name, share_arenas=True) for name in program.method_names)
    first.execute([ramp(8, 3)])
    output = first.get_output(0)
    np.testing.assert_array_equal(run(second), expect_affine(ramp(8, 3)))
    for use in (output.readback_and_clone, output.readback_request, lambda: first.get_output(0)):
        with pytest.raises(gx.StaleError):
            use()
    if is_users:
        with pytest.raises(gx.StaleError, match=r"'x' lay in memory that another Method has used since; set it again"):
            first.execute()
    else:
        first.execute()
        np.testing.assert_array_equal(first.get_output(0).readback_and_clone(), expect_two_layers(8))
        with pytest.raises(gx.StaleError):
            second.get_output(0)
    for rows in range(1, 9):
        first.execute([ramp(rows, 3)], wait=False)
        request = first.get_output(0).readback_request()
        second.execute([ramp(rows, 3)], wait=False)
        np.testing.assert_array_equal(second.get_output(0).readback_and_clone(), expect_affine(ramp(rows, 3)))
        np.testing.assert_array_equal(request.result(), expect_two_layers(rows))
    first.close()
    np.testing.assert_array_equal(second.get_output(0).readback_and_clone(), expect_affine(ramp(8, 3)))
    second.close()


def test_output_of_one_is_the_input_of_another_over_the_same_memory() -> None:
    program = build(SIMULATOR, forward=affine(), other=affine())
    first, second = (program.load_method(name, share_arenas=True) for name in program.method_names)
    expected = ramp(8, 3)
    first.execute([expected])
    for _ in range(2):
        second.execute([first.get_output(0)])
        first.execute([second.get_output(0)])
        expected = expect_affine(expect_affine(expected))
    np.testing.assert_array_equal(first.get_output(0).readback_and_clone(), expect_affine(expected))
    second.execute()
    np.testing.assert_array_equal(second.get_output(0).readback_and_clone(), expected)
    first.close()
    second.close()


def test_output_copied_to_the_place_of_an_input_is_lost_once_another_method_used_it() -> None:
    program = build(SIMULATOR, forward=affine(), other=affine())
    memory = manage(*program.method_meta("forward").allocate())
    first, second = (program.load_method(name, memory) for name in program.method_names)
    first.execute([ramp(8, 3)])
    first.execute([first.get_output(0)])
    first.execute()
    twice = expect_affine(expect_affine(ramp(8, 3)))
    np.testing.assert_array_equal(first.get_output(0).readback_and_clone(), twice)
    np.testing.assert_array_equal(run(second), expect_affine(ramp(8, 3)))
    with pytest.raises(gx.StaleError, match="'x' lay in memory that another Method has used since"):
        first.execute()
    first.close()
    second.close()


def test_input_waits_for_the_run_of_another_method_that_reads_its_memory() -> None:
    program = build(CPU, forward=affine(), other=affine())
    memory = manage(*program.method_meta("forward").allocate())
    stream = open_backend(CPU).device.create_stream()
    first, second = program.load_method("forward", memory, stream=stream), program.load_method("other", memory)
    first.set_input(0, ramp(8, 3))
    with holding(stream) as gate:
        first.execute(wait=False)
        request = first.get_output(0).readback_request()
        with pytest.raises(gx.ImplicitSyncError, match="'x': a run in flight reads"), gx.no_implicit_sync():
            second.set_input(0, -ramp(8, 3))
        gate.set()
        np.testing.assert_array_equal(request.result(), expect_affine(ramp(8, 3)))
    first.close()
    second.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_output_of_one_stays_the_input_of_another_while_the_one_runs_on(backend: gx.BackendType) -> None:
    shapes = {"pair": {"left": (8, 3), "right": (8, 3)}, "single": {"x": (8, 3)}}
    program = gx.Program.build({"pair": two_inputs(), "single": affine()}, shapes=shapes, backend=backend)
    pair, single = (program.load_method(name, share_arenas=True) for name in ("pair", "single"))
    x = ramp(8, 3)
    pair.execute([x, 3 * x])
    single.execute([pair.get_output("difference")])
    np.testing.assert_array_equal(single.get_output(0).readback_and_clone(), expect_affine(-2 * x))
    pair.execute([7 * x, x])
    single.execute()
    np.testing.assert_array_equal(single.get_output(0).readback_and_clone(), expect_affine(-2 * x))
    pair.close()
    single.close()


@pytest.mark.feature("E69")
@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_over_shared_memory_follow_one_another(backend: gx.BackendType) -> None:
    program = build(backend, forward=two_layers(), other=two_layers())
    first, second = (program.load_method(name, share_arenas=True) for name in program.method_names)
    for method in (first, second):
        method.set_input(0, ramp(8, 3))
    gate = hold(first._engine.stream)
    first.execute(wait=False)
    request = first.get_output(0).readback_request()
    # Nothing but the memory orders the two, which are on streams of their own.
    run = second.execute(wait=False)
    assert not run.is_done()
    gate.set()
    np.testing.assert_array_equal(second.get_output(0).readback_and_clone(), expect_two_layers(8))
    np.testing.assert_array_equal(request.result(), expect_two_layers(8))
    first.close()
    second.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_memory_is_used_from_many_threads(backend: gx.BackendType) -> None:
    program = build(backend, forward=two_layers(), other=affine())
    expected = {("forward", rows): expect_two_layers(rows) for rows in range(1, 9)}
    expected |= {("other", rows): expect_affine(ramp(rows, 3)) for rows in range(1, 9)}
    wrong: list[object] = []
    right: list[int] = []

    def work(number: int) -> None:
        choose = random.Random(number)
        methods = {name: program.load_method(name, share_arenas=True) for name in program.method_names}
        for _ in range(40):
            name, rows = choose.choice(program.method_names), choose.randint(1, 8)
            try:
                methods[name].execute([ramp(rows, 3)], wait=choose.random() < 0.5)
                got = methods[name].get_output(0).readback_and_clone()
                (right if np.array_equal(got, expected[name, rows]) else wrong).append(rows)
            except gx.StaleError:
                pass
            except BaseException as error:
                wrong.append(error)
            if choose.random() < 0.1:
                methods[name].close()
                methods[name] = program.load_method(name, share_arenas=True)
        for method in methods.values():
            method.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and right


def test_method_is_closed_while_another_is_in_steps_over_the_same_memory() -> None:
    program = build(CPU, forward=affine(), other=affine())
    first, second = (program.load_method(name, share_arenas=True) for name in program.method_names)
    run(second)
    first.set_input(0, ramp(2, 3))
    first.step()
    second.close()
    list(iter(first.step, None))
    np.testing.assert_array_equal(first.get_output(0).readback_and_clone(), expect_affine(ramp(2, 3)))
    first.close()


def test_steps_over_shared_memory_are_finished_first() -> None:
    program = build(CPU, forward=affine(), other=affine())
    first, second = (program.load_method(name, share_arenas=True) for name in program.method_names)
    second.set_input(0, ramp(2, 3))
    first.set_input(0, ramp(2, 3))
    first.step()
    with pytest.raises(gx.StateError, match="shares this Method's memory and is in the middle of steps"):
        second.execute()
    first.reset()
    np.testing.assert_array_equal(run(second), expect_affine(ramp(8, 3)))
    first.close()
    second.close()


@pytest.mark.feature("E69")
def test_shared_memory_is_as_large_as_the_largest_needs() -> None:
    backend = make_tracer()
    models = {"forward": two_layers(), "other": two_layers()}
    shapes = {"forward": {"x": ((1, 8), 3)}, "other": {"x": ((1, 80), 3)}}
    program = gx.Program.build(models, shapes=shapes, backend=backend)
    needs = {name: program.method_meta(name).memory_planned_buffer_size(0) for name in models}
    assert needs["forward"] < needs["other"]
    before = len(trace(backend))
    methods = [program.load_method(name, share_arenas=True) for name in models]
    taken = [row[2] for row in backend.device.log[before:] if row[0] == "allocate"]  # type: ignore[attr-defined]
    assert taken.count(needs["other"]) == 1 and needs["forward"] not in taken
    for method in methods:
        method.execute([ramp(2, 3)])
    with pytest.raises(gx.InputError, match="share_arenas=True shares memory of the program's"):
        program.load_method("other", manage(), share_arenas=True)
