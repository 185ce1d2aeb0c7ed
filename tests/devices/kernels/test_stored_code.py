"""Stored kernels of a program: found without a compiler, only where they are current."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuexec.devices.kernels.kernel_cache import KernelCache
from gpuexec.devices.kernels.kernel_library import KernelLibrary
from gpuexec.devices.kernels.kernel_source import find_source, flatten
from gpuexec.devices.kernels.nvrtc import OPTIONS, compile_cubin, compiler_version
from gpuexec.devices.kernels.stored_code import StoredCode, StoredKernel, runs_on
from gpuexec.ir.command import Kernel
from gpuexec.system import knobs
from tests.devices.cuda_wheels import needs_cuda_wheels
from tests.program.program_seeds import KERNEL, make_code

ROOT = Path(__file__).resolve().parents[3]
TEXT = flatten(find_source(KERNEL.source))


@pytest.mark.parametrize(
    ("made_for", "architecture", "expected"),
    [
        ("sm_80", "sm_80", True),
        ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False),
        ("sm_80", "sm_90", False),
        ("sm_90a", "sm_90a", True),
        ("sm_90", "sm_90a", True),
        ("sm_90a", "sm_90", False),
        ("sm_100", "sm_103", True),
        ("sm_100", "sm_120", False),
        ("sm_80", "sm_87", False),
        ("compute_80", "sm_120", True),
        ("compute_80", "sm_80", True),
        ("compute_90", "sm_80", False),
        ("compute_90a", "sm_100", False),
        ("compute_80", "sm_87", True),
        ("cubin", "sm_80", False),
    ],
)
def test_code_runs_on_its_generation_and_ptx_on_later_ones(made_for: str, architecture: str, expected: bool) -> None:
    assert runs_on(made_for, architecture) is expected


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [("sm_80", "sm_80"), ("sm_86", "sm_80"), ("sm_90", "compute_80"), ("sm_120", "compute_80"), ("sm_75", None)],
)
def test_machine_code_is_preferred_to_ptx(architecture: str, expected: str | None) -> None:
    found = make_code().find(KERNEL, TEXT, architecture, OPTIONS)
    assert (found and found.architecture) == expected


def test_code_of_another_source_expression_or_option_is_not_taken() -> None:
    code = make_code()
    assert code.find(KERNEL, TEXT, "sm_80", OPTIONS) is not None
    assert code.find(KERNEL, TEXT + "// edited\n", "sm_80", OPTIONS) is None
    assert code.find(Kernel(KERNEL.source, "softmax<double>"), TEXT, "sm_80", OPTIONS) is None
    assert code.find(KERNEL, TEXT, "sm_80", (*OPTIONS, "-ftz=true")) is None


def test_stored_code_is_taken_before_the_cache(tmp_path: Path) -> None:
    library = KernelLibrary("sm_80", KernelCache(tmp_path))
    entry = library.compile([KERNEL], make_code())[KERNEL]
    assert entry.cubin.image == b"sm_80 image" and entry.cubin.kernels[0].lowered_name == "softmax"
    assert library.compile_count == 0 and list(tmp_path.iterdir()) == []
    assert library.compile([KERNEL])[KERNEL] is entry, "what was found is kept"


def test_code_of_an_architecture_without_dependent_launches_does_not_wait(tmp_path: Path) -> None:
    """PTX of sm_80, which the driver translates for sm_90, was compiled without the wait."""
    library = KernelLibrary("sm_90", KernelCache(tmp_path))
    assert library.waits(KERNEL)
    library.compile([KERNEL], make_code())
    assert not library.waits(KERNEL)
    assert not KernelLibrary("sm_80", KernelCache(tmp_path)).waits(KERNEL)


def test_stored_code_lies_in_a_file_for_the_driver(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    entry = KernelLibrary("sm_80", cache).compile([KERNEL], make_code())[KERNEL]
    assert cache.file_of(entry).read_bytes() == b"sm_80 image"
    cache.close()


@needs_cuda_wheels
def test_kernel_that_is_not_stored_is_compiled(tmp_path: Path) -> None:
    library = KernelLibrary("sm_75", KernelCache(tmp_path))
    assert library.compile([KERNEL], make_code())[KERNEL].was_compiled
    assert library.compile_count == 1


@needs_cuda_wheels
def test_ptx_is_text_that_names_the_symbol() -> None:
    made = compile_cubin(TEXT, [KERNEL.expression], "compute_80", source=KERNEL.source)
    assert b".target sm_80" in made.image and made.image.endswith(b"\0")
    assert made.kernels[0].lowered_name.encode() in made.image
    assert made.kernels[0].registers == 0


def test_no_code_finds_nothing() -> None:
    assert StoredCode().find(KERNEL, TEXT, "sm_80", OPTIONS) is None
    assert (StoredCode().architectures, StoredCode().nbytes) == ((), 0)


# A process that has no NVRTC and an empty cache, and loads the kernels of a program's plans.
START = """
import json, sys
sys.modules["cuda.bindings.nvrtc"] = sys.modules["cuda.bindings"] = None  # importing them fails
from gpuexec.program.container import read_contents
from gpuexec.program.data_loader import MmapDataLoader
from gpuexec.devices.kernels import nvrtc
from gpuexec.devices.kernels.kernel_library import KernelLibrary
from gpuexec.errors import DeviceNotFoundError
try:
    nvrtc.load_nvrtc()
except DeviceNotFoundError:
    pass
else:
    raise SystemExit("NVRTC is there")
contents = read_contents(MmapDataLoader(sys.argv[1]))
found = {}
for architecture in ("sm_80", "sm_86", "sm_90", "sm_120"):
    plans = [plan for method in contents.methods.values() for rows in method.plans.values() for plan in rows]
    kernels = list(dict.fromkeys(kernel for plan in plans for kernel in plan.kernels()))
    library = KernelLibrary(architecture)
    entries = library.compile(kernels, contents.code)
    assert library.compile_count == 0 and len(entries) == len(kernels) > 1
    found[architecture] = sorted({"ptx" if b".version" in e.cubin.image else "cubin" for e in entries.values()})
print(json.dumps(found))
"""


@needs_cuda_wheels
def test_program_starts_without_a_compiler_and_with_an_empty_cache(tmp_path: Path) -> None:
    from gpuexec.program.building import build_contents
    from gpuexec.program.container import write_contents
    from tests.program.program_seeds import load_linear, load_twin

    models = {"forward": load_linear(dims={"n": (1, 8)}), "twin": load_twin(dims={"n": (1, 8)})}
    contents = build_contents(models, architectures=["sm_80", "sm_90"])
    write_contents(contents, tmp_path / "a.gxp")
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path / "a.gxp")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "GPUEXEC_CACHE_DIR": str(empty), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "sm_80": ["cubin"],
        "sm_86": ["cubin"],
        "sm_90": ["cubin"],
        "sm_120": ["ptx"],
    }
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("name", ["sm_" + "9" * 5000, "sm_9", "sm_\N{ARABIC-INDIC DIGIT NINE}0"])
def test_architecture_that_is_none_runs_nowhere(name: str) -> None:
    assert not runs_on(name, "sm_90") and not runs_on("sm_90", name)


@needs_cuda_wheels
def test_kernels_of_generated_text_share_programs_unless_they_are_to_stand_alone(tmp_path: Path) -> None:
    def make(number: int) -> Kernel:
        name = f"Value{number}"
        text = f"struct {name} {{ __device__ float operator()(float x) const {{ return x + {number}; }} }};\n"
        return Kernel(str(tmp_path / "apply.cu"), f"apply<{name}>", text)

    (tmp_path / "apply.cu").write_text("template <class F> __global__ void apply(float* x) { *x = F()(*x); }\n")
    kernels = [make(number) for number in range(5)]
    library = KernelLibrary("sm_80", KernelCache(tmp_path / "cache"))
    compiled = library.compile(kernels)
    assert library.compile_count == 5 and len({entry.key for entry in compiled.values()}) == min(5, knobs.build_jobs())
    symbols = [compiled[kernel].cubin.find(kernel.expression).lowered_name for kernel in kernels]
    assert len(set(symbols)) == 5
    alone = KernelLibrary("sm_80", KernelCache(tmp_path / "cache")).compile(kernels, apart=True)
    assert [len(entry.cubin.kernels) for entry in alone.values()] == [1] * 5
    # What a program stores is found by the kernel's own text.
    (first, *_) = kernels
    made = alone[first].cubin.kernels[0]
    image = memoryview(alone[first].cubin.image)
    stored = StoredKernel(alone[first].key, first, "sm_80", compiler_version(), made.lowered_name, image)
    fresh = KernelLibrary("sm_80", KernelCache(tmp_path / "empty"))
    assert fresh.compile([first], StoredCode((stored,)))[first].cubin.image == bytes(image)
    assert fresh.compile_count == 0
