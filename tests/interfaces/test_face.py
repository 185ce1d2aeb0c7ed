"""The public face: its names are decided on, its stub is up to date, and names tell which calls wait.

The rule for names stands in CONTRIBUTING.md.
"""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from tests.execution.held import held_worker
from tests.interfaces.face import STUB, list_classes, list_methods, list_names, make_stub
from tests.model.small_models import affine, ramp

# What each class shows; errors have code, message, node and value. A name more or less is a decision.
FACE = {
    "BackendType": "AUTO CPU GPU_COMPUTE GPU_PIXEL SIMULATOR SIMULATOR_PIXEL",
    "Batcher": "close close_async run run_async submit",
    "BufferDataLoader": "close load load_into size",
    "BumpAllocator": "allocate nbytes",
    "Case": "atol inputs outputs rtol",
    "DataLoader": "close load load_into size",
    "DeviceAllocator": "allocate nbytes",
    "ExternalData": "files tensors",
    "FileDataLoader": "close load load_into size",
    "FileLikeDataLoader": "close load load_into size",
    "Gap": "is_close l1 max_abs max_rel max_ulp mean_rel mse nonfinite share size snr_db to_dict",
    "GapReport": "against backend is_close outputs overflows precision rows table to_dict worst",
    "GapRow": "accumulated alone node operator to_dict value",
    "HierarchicalAllocator": "",
    "ImageConverter": "close to_image to_tensor",
    "ImageTransform": "antialias as_model dtype layout mask mean origin pixel_dtype pixels scale size std swizzle",
    "Inspection": "find_nonfinite history is_done statistics wait",
    "Memory": "axis capacity dtype form input is_implicit output shape zeros",
    "MemoryManager": "method_allocator planned_memory temp_allocator",
    "Method": (
        "close execute get_attribute get_output get_outputs in_progress input_buffer method_meta "
        "replace_weights reset set_attribute set_input set_inputs set_output state step"
    ),
    "MethodMeta": (
        "allocate gaps host_fallbacks input_tag input_tensor_meta memory_planned_buffer_device "
        "memory_planned_buffer_size memory_planned_buffers name num_attributes num_inputs num_instructions "
        "num_memory_planned_buffers num_outputs output_nbytes output_tag output_tensor_meta uses_backend"
    ),
    "MmapDataLoader": "close load load_into size",
    "Model": (
        "append bind bind_state compress_weights dims disabled_passes expose extract graph info inputs "
        "keep_outputs memories outputs ports precision prepend rename save to_dict with_weights"
    ),
    "Module": (
        "close execute forward get_output get_outputs is_loaded is_method_loaded load load_method method_meta "
        "method_names set_input set_inputs set_output unload_method"
    ),
    "NamedDataMap": "get_tensor_layout load load_data_into merge",
    "NonFinite": "count cure index inputs kind node operator output to_dict",
    "Outputs": "items keys names",
    "Profiler": (
        "count_syncs events find_total memory rows runs save_chrome_trace save_html save_tsv summarise table "
        "to_dataframe to_dict"
    ),
    "Program": "build contents load load_method method_meta method_names save weight_names with_weights",
    "Progress": "describe done_count done_nbytes is_over name stage total_count total_nbytes",
    "ReadbackRequest": "add_done_callback cancel is_cancelled is_done result spec view wait",
    "Replay": "close has_graph is_done nbytes submit",
    "Run": "cancel inspection is_cancelled is_done number outputs peek_output wait",
    "Snapshot": "backend memories",
    "State": (
        "backend crop fork get join length load mask memories positions reorder reset restore save seed set slide "
        "snapshot starts"
    ),
    "Statistics": (
        "absmax first_inf first_nan histogram infs locate max mean min nans negative_infs node nonfinite "
        "positive_infs results spec std to_dict value"
    ),
    "Step": "index nodes waiting",
    "SymbolicArray": (
        "T all any argmax argmin argsort astype at clip copy cumprod cumsum diagonal dims dot dtype fill "
        "flatten item mT max mean min ndim nonzero prod ravel repeat reshape round searchsorted shape size "
        "sort squeeze std sum swapaxes take trace transpose var"
    ),
    "Tensor": (
        "backend_type close dtype is_done max_shape name nbytes ndim readback_and_clone "
        "readback_and_clone_async readback_request shape size spec upload wait wait_async"
    ),
    "Verdict": "backend blame culprit engine kind lines to_dict trials unchecked",
    "Verification": "FULL MINIMAL",
    "WeightGap": "nbytes outputs rows to_dict wide_nbytes",
    "WeightRow": "nbytes node operator output to_dict weight wide_nbytes",
    "Worker": (
        "backend_reason backend_type cancel close copy_output create_state is_closed is_compiled memory_report "
        "memory_stats model order_before peek_output plans prepare read_output record replace_weights report "
        "run schedule schedule_iterable schedule_progress state summary tap trim wait_for_completion "
        "wait_for_completion_async wait_for_kernels"
    ),
}
DATA_LOADERS = ["BufferDataLoader", "DataLoader", "FileDataLoader", "FileLikeDataLoader", "MmapDataLoader"]
# First words of calls that wait for the device, and what the first line of their docstring says then.
WAITING = ["execute", "forward", "read", "readback", "result", "run", "trim", "view", "wait"]
SAYS = re.compile(r"\b(?:wait|waiting|block for)\b", re.IGNORECASE)
# Calls that wait under other names: closing, state by name, what was looked at or profiled, outputs of a Module.
OTHERS = {
    "Batcher": "close",
    "ImageConverter": "close",
    "Inspection": "find_nonfinite history statistics",
    "Method": "close get_attribute",
    "Module": "close get_output get_outputs",
    "Profiler": "events memory rows runs to_dict",
    "Replay": "close",
    "State": "get",
    "Worker": "close",
}
# Calls that speak of waiting because they do not.
DENIES = re.compile(r"never waits|without waiting|[Nn]o copy, no wait|nothing is copied or waited for|return at once")


@pytest.mark.parametrize("name", list_classes())
def test_names_of_a_class_are_those_decided_on(name: str) -> None:
    assert list_names(list_classes()[name]) == FACE[name].split()


def test_every_class_has_a_row() -> None:
    assert list(FACE) == list(list_classes())


def test_a_name_more_is_seen() -> None:
    class Wider(gx.Run):
        def __init__(self) -> None:
            self.shown = self._hidden = 1

        def settle(self) -> None:
            """Do nothing."""

    Wider.__module__ = "gpuexec.execution.runs.run"
    assert set(list_names(Wider)) - set(list_names(gx.Run)) == {"settle"}


def test_stub_is_what_the_package_exports() -> None:
    assert STUB.read_text() == make_stub(), "run `python -m tests.interfaces.face`"
    assert [each for each in gx.__all__ if f" as {each}\n" not in STUB.read_text()] == []


def test_every_name_is_written_once() -> None:
    source = Path(gx.__file__).read_text().partition('"""\n\nfrom')[2]
    assert [name for name in gx.__all__ if source.count(f'"{name}"') != 1] == []


def test_type_checkers_know_the_names_and_what_is_taken(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(
        "from typing import Any\n"
        "import numpy as np\n"
        "import gpuexec as gx\n"
        "def use(worker: gx.Worker, method: gx.Method, tensor: gx.Tensor, x: np.ndarray[Any, Any]) -> None:\n"
        "    worker.schedule(x), worker.schedule([x, tensor]), worker.schedule({'x': tensor, 'n': 3})\n"
        "    reveal_type(worker.schedule({'x': x}).outputs)\n"
        "    reveal_type(method.get_outputs()[0])\n"
        "    worker.schedule(object())\n"
        "    worker.schedule({1, 2})\n"
        "    gx.Nothing\n"
    )
    # What tests/system/test_static.py has checked is in mypy's cache, and not checked again.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(tmp_path / "use.py")],
        cwd=STUB.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"use\.py:(\d+): (error|note): (.*)", done.stdout)
    assert [line for line, kind, _ in found if kind == "error"] == ["8", "9", "10"]
    reported = [text for _, kind, text in found if kind == "note"]
    assert "dict[str, gpuexec.execution.results.tensor.Tensor]" in reported[0] and reported[1].endswith(
        'results.tensor.Tensor"'
    )


def test_help_on_a_worker_names_all_there_is() -> None:
    page = pydoc.plain(pydoc.render_doc(gx.Worker))
    front = page.partition("Args:")[0]
    rest = {"backend_type", "create_state", "is_closed", "memory_stats", "model", "schedule_progress"}
    named = set(re.findall(r"`(\w+)`", front))
    assert named == {*FACE["Worker"].split()} - rest - {"wait_for_completion_async"}
    assert "inputs: 'Inputs | None' = None" in page and "'object' = None, *, copy" not in page
    undocumented = [name for name, item in list_methods(gx.Worker).items() if not inspect.getdoc(item)]
    assert undocumented == []


def list_calls() -> list[Any]:
    return [
        pytest.param(kind, name, method, id=f"{kind}.{name}")
        for kind, item in list_classes().items()
        if kind not in DATA_LOADERS
        for name, method in list_methods(item).items()
    ]


@pytest.mark.parametrize(("kind", "name", "method"), list_calls())
def test_name_says_whether_a_call_waits(kind: str, name: str, method: Any) -> None:
    first = (inspect.getdoc(method) or "").partition("\n")[0]
    is_coroutine = inspect.iscoroutinefunction(method)
    assert is_coroutine == name.endswith("_async")
    if is_coroutine:
        twin = list_methods(list_classes()[kind])[name.removesuffix("_async")]
        assert {*inspect.signature(method).parameters} <= {*inspect.signature(twin).parameters}
    others = OTHERS.get(kind, "").split()
    is_waiting = (name.split("_")[0] in WAITING and not name.endswith("_request")) or name in others
    says = SAYS.search(first) is not None and DENIES.search(first) is None
    assert says == is_waiting, first


def test_what_is_polled_can_be_waited_for() -> None:
    polled = {kind: list_names(item) for kind, item in list_classes().items() if "is_done" in list_names(item)}
    # What a Replay puts on a stream is waited for by the Tensors that it gives.
    assert {kind for kind, names in polled.items() if "wait" not in names} == {"Replay"}
    assert {*polled} == {"Inspection", "ReadbackRequest", "Replay", "Run", "Tensor"}


@pytest.mark.parametrize("device", ["cpu", "simulator"])
def test_calls_that_do_not_wait_leave_the_run_pending(device: str) -> None:
    backend = open_backend(gx.BackendType(device))
    stream = backend.device.create_stream()
    with held_worker(affine(), backend) as (worker, gate):
        run = worker.schedule(ramp(2, 3))
        tensor = worker.peek_output()
        request = tensor.readback_request()
        copied = worker.copy_output()
        copied.upload(ramp(2, 3))
        worker.order_before(stream)
        steps = worker.schedule_iterable(ramp(2, 3))
        assert len([next(steps), *steps]) == 3
        assert not any(each.is_done() for each in (run, tensor, request, copied, worker.peek_output()))
        assert not run.wait(0) and not copied.wait(0)
        gate.set()
        assert run.wait() and copied.wait()
