"""Kernels compiled once: among threads, layers and models, in as many programs as cores, the longest first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.kernels import nvrtc
from gpuexec.devices.kernels.compile_once import OnceEach
from gpuexec.devices.kernels.kernel_cache import KernelCache
from gpuexec.devices.kernels.kernel_library import KernelLibrary
from gpuexec.devices.kernels.nvrtc import CompiledKernel, Cubin
from gpuexec.devices.simulator.compilation import ObjectSource
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.errors import DeviceNotFoundError, KernelError
from gpuexec.ir.command import Kernel
from gpuexec.ir.instances import instantiations
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.passes import run_passes
from gpuexec.planner.template import plan_graph
from gpuexec.system.progress import Progress

PATIENCE_S = 60.0
# Layers of one structure, with other numbers and sizes.
LAYERS = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[n, {width}] x) => (float[n, {width}] y) <float s = {{{scale}}}, float t = {{3}}> {{
  a = Mul (x, s) b = Sigmoid (a) c = Trilu (b) d = Mul (c, t) e = Sigmoid (d) f = Trilu (e) g = Sub (f, t)
  y = Tanh (g) }}"""


class Compiles:
    """Stands for NVRTC: notes the programs, and makes each once its gate is open."""

    def __init__(self) -> None:
        self.programs: list[tuple[str, ...]] = []
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()
        self.bad: set[str] = set()

    def __call__(self, text: str, expressions: Sequence[str], *_: object, source: str) -> Cubin:
        self.programs.append(tuple(expressions))
        self.begun.set()
        assert self.gate.wait(PATIENCE_S)
        if self.bad.intersection(expressions):
            raise KernelError("it does not compile")
        return Cubin(source, b"\x7fELF", tuple(CompiledKernel(each, each, 0, 0, 0, 0) for each in expressions), "")


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Compiles:
    made = Compiles()
    monkeypatch.setattr(nvrtc, "compile_cubin", made)
    monkeypatch.setattr(nvrtc, "compiler_version", lambda: "nvrtc-0.0")
    monkeypatch.setenv("GPUEXEC_BUILD_JOBS", "2")
    return made


@pytest.fixture
def library(tmp_path: Path) -> KernelLibrary:
    return KernelLibrary("sm_90", KernelCache(tmp_path / "cache"))


def plan_kernels(width: int, scale: float) -> Sequence[Kernel]:
    """Return the kernels of the layers of a model."""
    model = gx.load(parser.parse_model(LAYERS.format(width=width, scale=scale)))
    specs = {"x": TensorSpec((5, width), np.dtype(np.float32))}
    return plan_graph(
        run_passes(model.graph, model._plan_passes, (), specs), specs, Target.named("sm_90")
    ).plan.kernels()


def start(*calls: Callable[[], object]) -> list[threading.Thread]:
    """Start a thread for each call."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def test_equal_structures_are_compiled_once_across_layers_and_models(
    compiles: Compiles, library: KernelLibrary
) -> None:
    first, second = plan_kernels(6, 2.0), plan_kernels(40, 7.0)
    generated = [kernel for kernel in first if kernel.text]
    assert len(generated) == len(set(generated)) >= 2
    library.compile(first)
    count = len(compiles.programs)
    assert sorted(sum(compiles.programs, ())) == sorted(kernel.expression for kernel in set(first))
    library.compile([kernel for kernel in second if kernel.text])
    assert len(compiles.programs) == count and library.list_uncompiled(first) == []


def test_generated_kernels_share_as_many_programs_as_there_are_jobs(
    compiles: Compiles, library: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [Kernel("flat.cu", f"flat<S{number}>", f"struct S{number} {{}};\n") for number in range(7)]
    library.compile(kernels)
    assert sorted(map(len, compiles.programs)) == [3, 4]
    assert sorted(sum(compiles.programs, ())) == sorted(kernel.expression for kernel in kernels)


def test_what_takes_longest_is_begun_first(compiles: Compiles, library: KernelLibrary, tmp_path: Path) -> None:
    for name, loops in (("short", 1), ("long", 50), ("middle", 20)):
        (tmp_path / f"{name}.cu").write_text(f"// {name}\n" * (100 - loops) + "#pragma unroll\n" * loops)
    order = []
    compile_group = KernelLibrary._compile_group

    def note(self: KernelLibrary, kernels: Sequence[Kernel]) -> object:
        order.append(Path(kernels[0].source).stem)
        return compile_group(self, kernels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUEXEC_BUILD_JOBS", "1")
        patch.setattr(KernelLibrary, "_compile_group", note)
        library.compile([Kernel(str(tmp_path / f"{name}.cu"), name) for name in ("short", "long", "middle")])
    assert order == ["long", "middle", "short"]


def test_threads_that_want_the_same_kernel_compile_it_once(compiles: Compiles, library: KernelLibrary) -> None:
    shared, own, other = (Kernel("flat.cu", f"flat<{name}>", f"struct {name} {{}};\n") for name in "ABC")
    compiles.gate.clear()
    threads = start(lambda: library.compile([shared, own]))
    assert compiles.begun.wait(PATIENCE_S)
    threads += start(lambda: library.compile([shared, other]))
    assert library.list_uncompiled([shared, own]) == [shared, own]
    compiles.gate.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(sum(compiles.programs, ())) == ["flat<A>", "flat<B>", "flat<C>"]
    assert library.compile_count == 3


def test_who_waits_for_a_kernel_that_does_not_compile_gets_the_error_too(
    compiles: Compiles, library: KernelLibrary
) -> None:
    kernel = Kernel("flat.cu", "flat<A>", "struct A {};\n")
    compiles.bad.add(kernel.expression)
    compiles.gate.clear()
    errors: list[str] = []

    def attempt() -> None:
        try:
            library.compile([kernel])
        except KernelError as error:
            errors.append(str(error))

    threads = start(attempt, attempt)
    assert compiles.begun.wait(PATIENCE_S)
    compiles.gate.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert errors == ["it does not compile"] * 2
    compiles.bad.clear()
    library.compile([kernel])
    assert library.compile_count == 1


def test_what_disk_or_a_program_has_takes_no_compiler(
    compiles: Compiles, library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = plan_kernels(6, 2.0)
    assert set(library.list_uncompiled(kernels)) == set(kernels) and not compiles.programs
    library.compile(kernels)
    count = len(compiles.programs)
    again = KernelLibrary("sm_90", KernelCache(tmp_path / "cache"))
    assert again.list_uncompiled(kernels) == []
    again.compile(kernels)
    assert len(compiles.programs) == count and again.compile_count == 0

    def refuse() -> str:
        raise DeviceNotFoundError("NVRTC is not installed")

    monkeypatch.setattr(nvrtc, "compiler_version", refuse)
    with pytest.raises(DeviceNotFoundError):
        KernelLibrary("sm_90", KernelCache(tmp_path / "empty")).list_uncompiled(kernels)


def test_progress_counts_kernels_from_none_to_all(compiles: Compiles, library: KernelLibrary) -> None:
    told: list[Progress] = []
    kernels = plan_kernels(6, 2.0)
    library.compile(kernels, report=told.append)
    counts = [each.done_count for each in told]
    assert counts == sorted(counts) and counts[0] == 0 and told[-1].is_over
    assert {each.total_count for each in told} == {len(set(kernels))}
    told.clear()
    library.compile(kernels, report=told.append)
    assert told == []


def test_an_error_of_the_callback_ends_the_work(compiles: Compiles, library: KernelLibrary) -> None:
    def refuse(progress: Progress) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        library.compile(plan_kernels(6, 2.0), report=refuse)
    library.compile(plan_kernels(6, 2.0))


def test_the_simulator_compiles_equal_structures_once_across_models(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[ObjectSource]] = []
    list_groups = SimulatorDevice._list_groups

    def note(self: SimulatorDevice, units: Sequence[str | Kernel]) -> list[dict[ObjectSource, list[str | Kernel]]]:
        found = list_groups(self, units)
        if self is backend.device:
            groups.extend(list(group) for group in found if any(source.generated for source in group))
        return found

    monkeypatch.setattr(SimulatorDevice, "_list_groups", note)
    backend = Backend(SimulatorDevice(instantiations, "sm_90"), gx.BackendType.SIMULATOR, "for a test")
    for width, scale in ((6, 2.0), (40, 7.0)):
        model = gx.load(parser.parse_model(LAYERS.format(width=width, scale=scale)))
        with gx.Worker(model, backend=backend) as worker:
            worker.run(np.ones((5, width), np.float32))
    (group,) = groups  # one shared object for all files
    expressions = [each for source in group for each in source.expressions]
    assert len(expressions) == len(set(expressions)) >= 2
    assert len({source.path for source in group}) == len(group)


def test_values_are_made_once_and_an_interrupted_maker_is_replaced() -> None:
    once: OnceEach[int, int] = OnceEach()
    asked: list[int] = []

    def make(keys: Sequence[int]) -> Iterator[tuple[int, int]]:
        asked.extend(keys)
        yield from [(key, 2 * key) for key in keys]

    def fail(keys: Sequence[int]) -> Iterator[tuple[int, int]]:
        yield keys[0], 2 * keys[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        once.get([1, 2], fail)
    assert once.get([1, 2, 1], make) == {1: 2, 2: 4} and 1 in once and 3 not in once
    assert once.get([2, 3], make) == {2: 4, 3: 6} and asked == [2, 3]
    once.clear()
    assert 1 not in once


def test_what_is_made_is_there_for_others_before_all_of_it_is() -> None:
    once: OnceEach[int, int] = OnceEach()
    begun, gate = threading.Event(), threading.Event()

    def make(keys: Sequence[int]) -> Iterator[tuple[int, int]]:
        for key in keys:
            yield key, 2 * key
            begun.set()
            assert gate.wait(PATIENCE_S)

    (thread,) = start(lambda: once.get([1, 2], make))
    assert begun.wait(PATIENCE_S)
    assert once.get([1], make) == {1: 2}
    gate.set()
    thread.join(PATIENCE_S)
    assert once.get([2], make) == {2: 4}
