"""Calls of CuPy and of cuda.bindings, each resolved against what is installed. Needs no GPU.

Calls are read from the sources, so a new one is checked without a new row here. Cython functions say their signature in
the first line of their docstring.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuexec.devices
from gpuexec.devices.cuda.cuda_context import CudaContext
from gpuexec.devices.cuda.cuda_graph import CudaGraph
from gpuexec.devices.cuda.cuda_stream import CudaFunction, CudaStream
from gpuexec.devices.cuda.driver import probe
from gpuexec.devices.prepared import PreparedCopy, PreparedFill, PreparedLaunch, PreparedLibraryCall
from gpuexec.ir.command import Copy, Fill, Kernel, Launch, LaunchConfig, LibraryCall, Slot
from gpuexec.ir.library_problem import ProductProblem
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from tests.devices import cuda_wheels

cupy, driver = cuda_wheels.load("cupy"), cuda_wheels.load("cuda.bindings.driver")
DynamicLibNotFoundError = cuda_wheels.load("cuda.pathfinder").DynamicLibNotFoundError

LAUNCH = Launch(Kernel("a.cu", "f"), (1, 1, 1), (32, 1, 1), (np.int32(1), np.float32(2)), writes=())
RUNTIME = Path(gpuexec.devices.__file__).parent
# What an expression stands for, where the source does not say it by its own name.
MEANINGS: dict[str, dict[str, Any]] = {
    "cuda.py": {
        **dict.fromkeys(("cupy", "self.context.cupy", "self._context.cupy"), cupy),
        "driver": driver,
        "runtime": cupy.cuda.runtime,
        "current": cupy.cuda.Stream,
    },
    "cuda_event.py": {
        **dict.fromkeys(("context.cupy", "self._context.cupy"), cupy),
        **dict.fromkeys(("self.event", "since.event"), cupy.cuda.Event),
    },
    "cuda_stream.py": {
        **dict.fromkeys(("context.cupy", "self.context.cupy"), cupy),
        **dict.fromkeys(("driver", "context.driver", "self.context.driver"), driver),
        "runtime": cupy.cuda.runtime,
        "event.event": cupy.cuda.Event,
        "self.stream": cupy.cuda.Stream,
        "raw": cupy.RawKernel,
        "function.raw": cupy.RawKernel,
        "raw.kernel": cupy.cuda.Function,
        "self._launch_packed": cupy.cuda.driver.launchKernel,
    },
    "kernel_library.py": {"cupy": cupy, "module": cupy.RawModule, "function": cupy.RawKernel},
    "cuda_graph.py": {
        **dict.fromkeys(("driver", "self._driver", "context.driver"), driver),
        "context.cupy": cupy,
        "stream.stream": cupy.cuda.Stream,
    },
    "cuda_pixel.py": {
        **dict.fromkeys(("device.context.cupy", "self.context.cupy"), cupy),
        "cuda": cupy.cuda,
        "runtime": cupy.cuda.runtime,
        "textures": cupy.cuda.texture,
    },
    "cuda_context.py": {**dict.fromkeys(("cupy", "self.cupy"), cupy), "context.device": cupy.cuda.Device},
}
# How often each file must be seen to touch the libraries: a guard against reading past the calls.
EXPECTED_USES = {
    "cuda.py": 25,
    "cuda_stream.py": 20,
    "cuda_graph.py": 20,
    "cuda_pixel.py": 25,
    "kernel_library.py": 3,
    "cuda_context.py": 20,
    "cuda_event.py": 15,
}


def resolve(node: ast.expr, meanings: dict[str, Any]) -> Any:
    """Return what an expression stands for, or None where it is none of the libraries' things."""
    text = ast.unparse(node)
    if text in meanings:
        return meanings[text]
    if isinstance(node, ast.Attribute):
        owner = resolve(node.value, meanings)
        return None if owner is None else find_attribute(owner, node.attr, text)
    return None


def find_attribute(owner: Any, name: str, text: str) -> Any:
    if hasattr(owner, name):
        return getattr(owner, name)
    documented = any(f"~{cls.__name__}.{name} " in (cls.__doc__ or "") for cls in getattr(owner, "__mro__", ()))
    assert documented, f"{text}: {owner} has no attribute {name}"
    return f"documented attribute {name}"


def read_signature(function: Any) -> inspect.Signature:
    """Return the signature that a Cython function's docstring begins with, ``self`` or ``cls`` removed."""
    texts = [function.__doc__, getattr(type(function), "__doc__", None)]
    if inspect.isclass(function):
        texts = [function.__init__.__doc__, function.__doc__]
    line = next(
        line for text in texts if text for line in [text.strip().splitlines()[0]] if re.match(r"[\w.]+\(", line)
    )
    inner = re.match(r"[\w.]+\((.*)\)(?: *->.*)?$", line)
    assert inner, line
    parameters, kind = [], inspect.Parameter.POSITIONAL_OR_KEYWORD
    for part in re.split(r",\s*(?![^\[]*\])", inner[1]):
        if part == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
        elif part.startswith("**"):
            parameters.append(inspect.Parameter(part[2:], inspect.Parameter.VAR_KEYWORD))
        elif re.fullmatch(r"\*\w+", part):
            parameters.append(inspect.Parameter(part[1:], inspect.Parameter.VAR_POSITIONAL))
        elif part and part not in ("self", "cls"):
            name = re.split(r"[:=]", part)[0].split()[-1].lstrip("*")
            default = None if "=" in part else inspect.Parameter.empty
            parameters.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(parameters)


def find_uses(file: str) -> Iterator[tuple[ast.expr, Any]]:
    """Yield each expression of a source that stands for a thing of the libraries, with that thing."""
    for node in ast.walk(ast.parse(_find(file).read_text())):
        if isinstance(node, ast.Attribute):
            thing = resolve(node, MEANINGS[file])
            if thing is not None:
                yield node, thing


@pytest.mark.parametrize("file", MEANINGS)
def test_every_name_used_exists_in_the_installed_libraries(file: str) -> None:
    assert len(list(find_uses(file))) >= EXPECTED_USES[file]


@pytest.mark.parametrize("file", MEANINGS)
def test_every_call_fits_the_signature_in_the_installed_libraries(file: str) -> None:
    calls = 0
    for node in ast.walk(ast.parse(_find(file).read_text())):
        if not isinstance(node, ast.Call):
            continue
        function = resolve(node.func, MEANINGS[file])
        if not callable(function):
            continue
        if isinstance(function, type) and ast.unparse(node.func) in MEANINGS[file]:
            function = function.__call__  # an object of the class is called, like a RawKernel
        if isinstance(function, type) and not node.args and not node.keywords:
            function()  # structures of parameters say nothing of their constructor
            continue
        # A starred argument stands for a grid or a block: three numbers.
        positional = [item for a in node.args for item in ([0, 0, 0] if isinstance(a, ast.Starred) else [0])]
        read_signature(function).bind(*positional, **{keyword.arg or "": 0 for keyword in node.keywords})
        calls += 1
    assert calls > 0


def test_memsets_chosen_by_width_share_one_signature() -> None:
    for function in (driver.cuMemsetD8Async, driver.cuMemsetD16Async, driver.cuMemsetD32Async):
        assert len(read_signature(function).parameters) == 4


@pytest.mark.skipif(probe().found, reason="a driver is here, and made-up handles must not reach it")
def test_driver_takes_the_types_of_every_argument() -> None:
    """cuda.bindings converts arguments before it looks for the driver: without one, a wrong type shows all the same."""
    called = set()

    class Checking:
        def __getattr__(self, name: str) -> Any:
            real = getattr(driver, name)
            if not name.startswith("cu"):
                return real

            def call(*arguments: Any) -> tuple[int, Any]:
                called.add(name)
                with pytest.raises(DynamicLibNotFoundError):
                    real(*arguments)
                return 0, driver.CUgraphNode(1) if "Node" in name else 1

            return call

    current = contextlib.nullcontext()
    context: Any = CudaContext.__new__(CudaContext)
    context.driver, context.device, context.name, context.errors = Checking(), current, "GPU", ()
    context.lost = context.done = None
    context.cupy = SimpleNamespace(
        cuda=SimpleNamespace(
            driver=SimpleNamespace(ctxGetCurrent=lambda: 1, launchKernel=None),
            Stream=lambda non_blocking: SimpleNamespace(ptr=1),
        )
    )
    stream: Any = CudaStream.__new__(CudaStream)
    stream.context, stream.stream, stream.handle = context, SimpleNamespace(ptr=1), 1
    stream._dependent_config = None
    spec = TensorSpec((4,), np.dtype(np.int64))
    slot = Slot(0, 0, spec, (1,))
    function = CudaFunction(context, LAUNCH.kernel, SimpleNamespace(kernel=SimpleNamespace(ptr=1)))
    launch, together = PreparedLaunch(function, LAUNCH), PreparedLaunch(function, replace(LAUNCH, cooperative=True))
    copy, fill = PreparedCopy(Copy(slot, slot)), PreparedFill(Fill(slot, bytes(8)))
    plan: Any = SimpleNamespace(calling="calling a library", run=lambda addresses, stream: None)
    problem = ProductProblem("float32", "float32", "float32", (4, 4, 4), (4, 1), (4, 1), None, 4)
    call = PreparedLibraryCall(plan, LibraryCall("cublaslt", problem, (slot, slot, None, None, slot, None)))
    commands = [launch, copy, fill, together, launch, call]
    graph = CudaGraph(context, commands, [(0, 1), (1, 2), (0, 4), (4, 5)], (), {(0, 4)})
    graph.update([0, 1, 2, 3, 5], commands)
    graph.launch(stream)
    graph.close()
    for width in (1, 2, 4, 8):
        stream.fill(256, bytes(width), 4)
    function.check_residency(LaunchConfig((1, 1, 1), (32, 1, 1)), Target.named("sm_90"))
    together.issue(stream)
    launch.issue_early(stream)
    sources = "".join(
        _find(name).read_text() for name in ("cuda.py", "cuda_context.py", "cuda_stream.py", "cuda_graph.py")
    )
    used = re.findall(r"driver\.(cu\w+)", sources)
    assert called == set(used) and len(called) == 24


def test_raw_kernel_takes_the_stream_by_keyword() -> None:
    function = cupy.cuda.Function.__new__(cupy.cuda.Function)
    with pytest.raises(AttributeError, match="ptr"):  # it asks the stream for its handle before it calls CUDA
        function((1,), (1,), (), shared_mem=0, stream=object())


def test_read_signature_refuses_a_call_that_does_not_fit() -> None:
    signature = read_signature(cupy.cuda.runtime.memcpyAsync)
    assert list(signature.parameters) == ["dst", "src", "size", "kind", "stream"]
    with pytest.raises(TypeError):
        signature.bind(1, 2, 3, 4)


def test_find_attribute_refuses_a_name_that_does_not_exist() -> None:
    with pytest.raises(AssertionError, match="nothing"):
        find_attribute(cupy.cuda.Event, "nothing", "self.event.nothing")


def _find(file: str) -> Path:
    (path,) = RUNTIME.rglob(file)
    return path
