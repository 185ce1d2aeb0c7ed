"""Token-by-token decoding of gpt2 with a growing cache: few plans, no compilation, right logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, BackendType, open_backend
from gpuexec.ir.command import Kernel
from tests.devices.opening import open_device
from tests.system.models.folder import measure, needs_models, path_of, read_case, read_manifest

pytestmark = [pytest.mark.models, needs_models]

MODEL = "gpt2_kv__d21"
STEPS = 64
BOUNDS = {"past": (0, 128), "total": (0, 128)}
LAYERS = [f"{layer}.{part}" for layer in (0, 1) for part in ("key", "value")]
Array = np.ndarray[Any, Any]


class Reference:
    """The same decoding by onnxruntime."""

    def __init__(self) -> None:
        import onnxruntime

        self._session = onnxruntime.InferenceSession(str(path_of(MODEL)), providers=["CPUExecutionProvider"])
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(self._names, self._session.run(self._names, dict(inputs)), strict=True))


def decode(worker: gx.Worker, expected: Reference, is_answering: bool) -> Iterator[tuple[Array, Array]]:
    """Yield the logits of each step and the reference's.

    The cache stays on the device: a step takes the tensors that the step before made. Tokens are the device's own, or
    where it does not answer the reference's.
    """
    inputs = read_case(read_manifest()[MODEL]["cases"][0]).inputs
    past: dict[str, Any] = {f"past_key_values.{layer}": inputs[f"past_key_values.{layer}"] for layer in LAYERS}
    past_expected = dict(past)
    token, length = inputs["input_ids"], past["past_key_values.0.key"].shape[2]
    for position in range(length, length + STEPS):
        step = {
            "input_ids": token,
            "attention_mask": np.ones((1, position + 1), np.int64),
            "position_ids": np.full((1, 1), position, np.int64),
        }
        outputs = worker.schedule(step | past).outputs
        answer = expected.run(step | past_expected)
        logits = outputs["logits"].readback_and_clone()
        yield logits, answer["logits"]
        token = (logits if is_answering else answer["logits"])[:, -1:].argmax(-1)
        past = {f"past_key_values.{layer}": outputs[f"present.{layer}"] for layer in LAYERS}
        past_expected = {f"past_key_values.{layer}": answer[f"present.{layer}"] for layer in LAYERS}


def kernels_of(worker: gx.Worker) -> set[Kernel]:
    return {kernel for plan in worker.plans for kernel in plan.kernels()}


@pytest.mark.parametrize(("dims", "max_plans"), [(None, 5), (BOUNDS, 3)], ids=["free", "bounded"])
@pytest.mark.parametrize("device", ["simulator", "tracer", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_decoding_makes_few_plans_and_the_right_logits(
    device: str, dims: dict[str, tuple[int, int]] | None, max_plans: int
) -> None:
    backend = {
        "simulator": lambda: open_backend(BackendType.SIMULATOR),
        "tracer": lambda: Backend(open_device("tracer"), BackendType.SIMULATOR, "of a test"),
        "gpu": lambda: open_backend(BackendType.GPU_COMPUTE),
    }[device]()
    is_answering = device != "tracer"
    with gx.Worker(gx.load(path_of(MODEL), dims=dims), backend=backend) as worker:
        early: set[Kernel] = set()
        for number, (logits, expected) in enumerate(decode(worker, Reference(), is_answering)):
            if number == 1:
                early = kernels_of(worker)
            if is_answering:
                distance = measure(f"{MODEL} decoding {device}{' bounded' if dims else ''}", logits, expected)
                assert distance <= 1, f"step {number} is {distance:.3g} times further off than allowed"
        report = worker.report()
        # Indices of the mask are computed by the host as long as they are few; then one launch joins them.
        late = {kernel for kernel in kernels_of(worker) - early if not kernel.text.startswith("// Concat, ")}
        assert not late and len(kernels_of(worker) - early) <= (dims is None), (
            "a kernel was loaded after the second step"
        )
        assert early <= kernels_of(worker)
        assert report.plans <= max_plans
        assert (report.runs, report.host_calls, report.host_reads) == (STEPS, (), ())
