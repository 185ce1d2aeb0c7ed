"""Kernels that are compiled in the background: runs go on unfused, and take the fused plan once it can be loaded."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.kernels.stored_code import StoredCode
from gpuexec.devices.simulator.compilation import ObjectSource
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.errors import DeviceNotFoundError
from gpuexec.ir.command import Kernel
from gpuexec.ir.instances import instantiations
from gpuexec.system.progress import ProgressCallback
from tests.model.small_models import DOMAIN, GATES, ramp

CHAIN = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[n, 6] x) => (float[n, 6] y)
<float two = {2}> { a = Mul (x, two) b = Sigmoid (a) c = Softmax (b) d = Sub (c, a) y = Exp (d) }"""
# Compilers take their time where many work at once.
PATIENCE_S = 300.0
HELD = ("arena", "exchange", "weights", "frames")


class HeldCompiler(SimulatorDevice):
    """Has no kernels of generated text until its gate is open, whatever is in the cache."""

    def __init__(self) -> None:
        super().__init__(instantiations, "sm_90")
        self.gate, self.begun = threading.Event(), threading.Event()
        self.failure: Exception | None = None
        self.asked: list[list[Kernel]] = []
        self.there: set[Kernel] = set()

    def list_uncompiled(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> list[Kernel]:
        """Return what was not compiled here."""
        return [kernel for kernel in kernels if kernel not in self.there]

    def compile(
        self, kernels: Sequence[Kernel], code: StoredCode | None = None, report: ProgressCallback | None = None
    ) -> None:
        """Wait for the gate, if a kernel has text and this is not the thread of the test."""
        if any(kernel.text for kernel in kernels) and threading.current_thread() is not threading.main_thread():
            if self.list_uncompiled(kernels):
                self.asked.append([kernel for kernel in kernels if kernel.text])
            self.begun.set()
            self.gate.wait(PATIENCE_S)
            if self.failure is not None:
                raise self.failure
            self.there.update(kernels)
        super().compile(kernels, code, report)


@contextmanager
def held(
    model: gx.Model, device: HeldCompiler | None = None, **options: Any
) -> Iterator[tuple[gx.Worker, HeldCompiler]]:
    """Yield a Worker that compiles in the background, and its device, whose compiler is held."""
    device = device or HeldCompiler()
    backend = Backend(device, gx.BackendType.SIMULATOR, "for a test")
    with gx.Worker(model, backend=backend, compile="background", **options) as worker:
        try:
            yield worker, device
        finally:
            device.gate.set()


def let_go(worker: gx.Worker, device: HeldCompiler) -> None:
    """Let the compiler of a Worker do its work."""
    device.gate.set()
    assert worker.wait_for_kernels(PATIENCE_S) and worker.is_compiled


def count_layers(worker: gx.Worker, x: np.ndarray) -> int:  # type: ignore[type-arg]
    """Return how many steps a run takes layer by layer: each operator is one, or all that are fused."""
    return len(list(worker.schedule_iterable(x)))


def run_at_once(model: gx.Model, *inputs: np.ndarray) -> list[tuple[np.ndarray, ...]]:  # type: ignore[type-arg]
    """Return what runs give where kernels are compiled before the first."""
    with gx.Worker(model, backend="simulator") as worker:
        return [tuple(worker.run(x)) for x in inputs]


def chain() -> gx.Model:
    """Return a model of two regions around a Softmax, which takes the first as its epilogue."""
    return gx.load(parser.parse_model(CHAIN))


def sums(*, gate: int | None = None) -> gx.Model:
    """Return a model: total = x + held, y = |2 * total|, held <- total; x passes through a gate of the host first."""
    first = "passed = Identity (x)" if gate is None else f"passed = {DOMAIN}.Gate <number = {gate}> (x)"
    text = f"""<ir_version: 10, opset_import: ["": 21, "{DOMAIN}": 1]>
agraph (float[n, 6] x, float[n, 6] held) => (float[n, 6] y, float[n, 6] total)
<float two = {{2}}> {{ {first} total = Add (passed, held) wide = Mul (total, two) y = Abs (wide) }}"""
    return gx.load(parser.parse_model(text)).bind_state({"total": "held"})


def test_runs_go_on_unfused_to_the_same_bits_until_the_kernels_are_there() -> None:
    inputs = [ramp(4, 6) / 7 + number for number in range(5)]
    expected = run_at_once(chain(), *inputs)
    with held(chain()) as (worker, device):
        made = [tuple(worker.run(x)) for x in inputs[:3]]
        assert device.begun.wait(PATIENCE_S) and not worker.is_compiled and not worker.wait_for_kernels(0.0)
        report = worker.report()
        assert (report.plans_waiting, report.runs_unfused, report.runs) == (1, 3, 3)
        assert "plans that wait for kernels 1" in worker.summary()
        unfused = count_layers(worker, inputs[3])
        let_go(worker, device)
        made += [tuple(worker.run(x)) for x in inputs[3:]]
        assert count_layers(worker, inputs[3]) < unfused == 5
        report = worker.report()
        assert (report.plans_waiting, report.runs_unfused, report.uncompiled) == (0, 4, ())
        assert "runs unfused meanwhile 4" in worker.summary()
    for rows, others in zip(made, expected, strict=True):
        for got, wanted in zip(rows, others, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_state_goes_on_from_plan_to_plan() -> None:
    x = ramp(2, 6)
    with held(sums()) as (worker, device):
        for number in range(1, 4):
            np.testing.assert_array_equal(worker.run(x)["y"], np.abs(2 * number * x))
        let_go(worker, device)
        for number in range(4, 7):
            np.testing.assert_array_equal(worker.run(x)["y"], np.abs(2 * number * x))
        assert worker.report().runs_unfused == 3
        assert count_layers(worker, x) < 3


def test_runs_under_way_and_outputs_not_read_yet_stay_as_they_are() -> None:
    gate, x = GATES.new(), ramp(2, 6)
    with held(sums(gate=gate), frames=3) as (worker, device):
        # The first waits for a node that the host computes, the next for that run.
        requests = [worker.schedule(x).peek_output("y").readback_request() for _ in range(2)]
        assert not any(request.is_done() for request in requests)
        device.gate.set()
        requests.append(worker.schedule(x).peek_output("y").readback_request())
        GATES.open[gate].set()
        for number, request in enumerate(requests, 1):
            np.testing.assert_array_equal(request.result(), np.abs(2 * number * x))
        let_go(worker, device)
        np.testing.assert_array_equal(worker.run(x)["y"], np.abs(8 * x))


def test_memory_is_that_of_both_plans_from_the_beginning() -> None:
    x = ramp(64, 6) / 50
    with held(chain()) as (worker, device):
        worker.run(x)
        worker.run(x)
        before = worker.memory_stats()
        let_go(worker, device)
        worker.run(x)
        worker.run(x)
        after = worker.memory_stats()
        assert count_layers(worker, x) < 5
        assert [after[name] for name in HELD] == [before[name] for name in HELD]
        needed = sum(after[name] for name in HELD)
    with held(chain(), max_bytes=needed) as (worker, device):
        worker.run(x)
        let_go(worker, device)
        np.testing.assert_array_equal(worker.run(x)[0], run_at_once(chain(), x)[0][0])
        assert worker.report().runs_unfused == 1


def test_where_there_is_no_room_for_both_the_kernels_are_waited_for() -> None:
    x = ramp(64, 6) / 50
    with gx.Worker(chain(), backend="simulator") as worker:
        expected = worker.run(x)[0]
        worker.run(x)
        needed = sum(worker.memory_stats()[name] for name in HELD)
    with held(chain(), max_bytes=needed) as (worker, device):
        device.gate.set()
        np.testing.assert_array_equal(worker.run(x)[0], expected)
        assert worker.report().runs_unfused == 0 and worker.is_compiled


def test_each_size_class_waits_for_its_own_kernels_and_equal_ones_are_compiled_once() -> None:
    small, large = ramp(2, 6) / 7, ramp(300, 6) / 99
    expected = run_at_once(chain(), small, large)
    with held(chain()) as (worker, device):
        worker.run(small)
        let_go(worker, device)
        np.testing.assert_array_equal(worker.run(small)[0], expected[0][0])
        np.testing.assert_array_equal(worker.run(large)[0], expected[1][0])
        assert worker.report().runs_unfused == 1  # text follows from structure, not from sizes
        assert len(device.asked) == 1


def test_all_classes_of_a_declared_range_are_compiled_in_the_background() -> None:
    model = gx.load(parser.parse_model(CHAIN), dims={"n": (1, 64)})
    inputs = [ramp(rows, 6) / 50 for rows in (3, 64, 17)]
    expected = run_at_once(model, *inputs)
    with held(model) as (worker, device):
        made = [worker.run(x)[0] for x in inputs]
        let_go(worker, device)
        before = worker.report().plans
        made += [worker.run(x)[0] for x in inputs]
        assert worker.report().plans == before and worker.report().runs_unfused == 3
    for got, (wanted,) in zip(made, [*expected, *expected], strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_kernels_of_the_plan_that_runs_meanwhile_are_made_first() -> None:
    calls: list[tuple[str, list[Kernel]]] = []

    class Noting(HeldCompiler):
        def compile(
            self, kernels: Sequence[Kernel], code: StoredCode | None = None, report: ProgressCallback | None = None
        ) -> None:
            """Note who compiles what."""
            where = "here" if threading.current_thread() is threading.main_thread() else "beside"
            calls.append((where, list(kernels)))
            super().compile(kernels, code, report)

    with held(chain(), Noting()) as (worker, device):
        worker.run(ramp(4, 6) / 7)
        let_go(worker, device)
    (first, plain), *others = calls
    assert first == "here" and not any(kernel.text for kernel in plain)
    assert [where for where, _ in others] == ["beside", "beside"]
    assert all(kernel.text for kernel in others[0][1]) and {*others[0][1]} <= {*others[1][1]}


def test_kernels_that_are_there_are_taken_at_once() -> None:
    device = HeldCompiler()
    x = ramp(4, 6) / 7
    with held(chain(), device) as (worker, _):
        worker.run(x)
        let_go(worker, device)
    with held(chain(), device) as (worker, _):
        assert worker.is_compiled and worker.wait_for_kernels(0.0)
        worker.run(x)
        assert worker.report().runs_unfused == 0 and worker.report().plans == 1


def test_a_kernel_that_does_not_compile_is_reported_once_and_the_plan_stays_unfused() -> None:
    x = ramp(4, 6) / 7
    (expected,) = run_at_once(chain(), x)
    with held(chain()) as (worker, device):
        device.failure = gx.KernelError("it does not compile")
        worker.run(x)
        let_go(worker, device)
        with pytest.warns(RuntimeWarning, match="goes on unfused.*it does not compile"):
            worker.run(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(worker.run(x)[0], expected[0])
        report = worker.report()
        assert (report.runs_unfused, report.plans_waiting) == (3, 0)
        assert len(report.uncompiled) == 1 and "it does not compile" in worker.summary()


def test_bad_text_is_found_by_the_compiler_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    list_groups = SimulatorDevice._list_groups

    def spoil(self: SimulatorDevice, units: Sequence[str | Kernel]) -> list[dict[ObjectSource, list[str | Kernel]]]:
        return [
            {replace(each, generated=each.generated and "} what is this\n"): group[each] for each in group}
            for group in list_groups(self, units)
        ]

    monkeypatch.setattr(SimulatorDevice, "_list_groups", spoil)
    x = ramp(4, 6) / 7
    with held(chain()) as (worker, device):
        worker.run(x)
        let_go(worker, device)
        with pytest.warns(RuntimeWarning, match="does not compile for the simulator"):
            worker.run(x)


def test_without_a_compiler_plans_are_unfused_as_ever() -> None:
    class Without(HeldCompiler):
        def list_uncompiled(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> list[Kernel]:
            """Refuse kernels with text."""
            if kernels:
                raise DeviceNotFoundError("there is no compiler")
            return []

    x = ramp(4, 6) / 7
    with held(chain(), Without()) as (worker, _):
        np.testing.assert_array_equal(worker.run(x)[0], run_at_once(chain(), x)[0][0])
        assert worker.is_compiled and worker.report().runs_unfused == 0
        assert count_layers(worker, x) == 5


def test_closing_does_not_wait_for_the_compiler() -> None:
    with held(chain()) as (worker, device):
        run = worker.schedule(ramp(4, 6))
        assert device.begun.wait(PATIENCE_S)
        worker.close()
        assert not device.gate.is_set() and run.is_done()
        with pytest.raises(gx.ClosedError):
            worker.wait_for_kernels()
    with held(chain(), device) as (worker, _):  # what was begun is of use to the next
        worker.run(ramp(4, 6))
        assert worker.wait_for_kernels(PATIENCE_S)


def test_who_waits_for_kernels_is_woken_when_the_worker_is_closed() -> None:
    waited: list[bool] = []
    with held(chain()) as (worker, device):
        worker.run(ramp(4, 6))
        assert device.begun.wait(PATIENCE_S)
        thread = threading.Thread(target=lambda: waited.append(worker.wait_for_kernels(PATIENCE_S)))
        thread.start()
        worker.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_two_workers_of_one_device_compile_the_same_text_once() -> None:
    built: list[tuple[str, ...]] = []

    class Noting(HeldCompiler):
        def _list_groups(self, units: Sequence[str | Kernel]) -> list[dict[ObjectSource, list[str | Kernel]]]:
            found = super()._list_groups(units)
            built.extend(source.expressions for group in found for source in group if source.generated)
            return found

    device, x = Noting(), ramp(4, 6) / 7
    with held(chain(), device) as (first, _), held(chain(), device) as (second, _):
        first.run(x)
        second.run(x)
        device.gate.set()
        assert first.wait_for_kernels(PATIENCE_S) and second.wait_for_kernels(PATIENCE_S)
        np.testing.assert_array_equal(first.run(x)[0], second.run(x)[0])
        assert (first.report().runs_unfused, second.report().runs_unfused) == (1, 1)
    assert len(built) == len(set(built)) > 0


def test_a_replay_keeps_the_plan_that_it_was_recorded_with() -> None:
    x = ramp(4, 6) / 7
    with held(chain()) as (worker, device):
        replay = worker.record(x)
        let_go(worker, device)
        fused = worker.run(x)[0]
        (tensor,) = replay.submit(x).values()
        np.testing.assert_array_equal(tensor.readback_and_clone(), fused)


def test_weights_may_be_replaced_while_kernels_are_compiled() -> None:
    model = sums()
    x = ramp(2, 6)
    with held(model) as (worker, device):
        worker.run(x)
        worker.replace_weights({"two": np.array(3, np.float32)})
        np.testing.assert_array_equal(worker.run(x)["y"], np.abs(6 * x))
        let_go(worker, device)
        np.testing.assert_array_equal(worker.run(x)["y"], np.abs(9 * x))
        assert count_layers(worker, x) < 3 and worker.report().runs_unfused == 2


def test_prepare_takes_what_is_there_and_waits_for_no_kernels() -> None:
    x = ramp(4, 6) / 7
    with held(chain()) as (worker, device):
        assert worker.prepare(x) is not None and worker.report().plans_waiting == 1
        worker.run(x)
        let_go(worker, device)
        worker.prepare(x)
        assert count_layers(worker, x) < 5


def test_nothing_waits_on_devices_without_kernels() -> None:
    with gx.Worker(chain(), backend="cpu", compile="background") as worker:
        worker.run(ramp(4, 6))
        assert worker.is_compiled and worker.wait_for_kernels() and worker.report().runs_unfused == 0


def test_another_word_is_refused() -> None:
    with pytest.raises(gx.InputError, match="compile takes None or 'background', got 'later'"):
        gx.Worker(chain(), backend="cpu", compile="later")


_CHILD = """
import sys, threading
import numpy as np
from tests.execution.runs.test_deferred_plans import HeldCompiler, chain
import gpuexec as gx
from gpuexec.devices.backend import Backend

device = HeldCompiler()
worker = gx.Worker(chain(), backend=Backend(device, gx.BackendType.SIMULATOR, "for a test"), compile="background")
worker.run(np.ones((4, 6), np.float32))
assert device.begun.wait(60)
print("at work", flush=True)
"""


def test_a_process_ends_though_the_compiler_is_at_work() -> None:
    done = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.stdout == "at work\n" and done.returncode == 0, done.stderr
