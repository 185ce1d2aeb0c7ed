"""Cases as one-node models, run by Workers, for operators made of others."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import helper

import gpuexec as gx
from gpuexec.ir.spec import dtype_row
from tests.ops.case import make_model
from tests.ops.harness import Array, Case, build_operator, check_compute, compare


def check_as_model(case: Case) -> None:
    """Check an operator by its oracle, and a model of it on both devices, within its tolerance and on them alone."""
    op, inputs = build_operator(case)
    computed = op.compute(*inputs)
    check_compute(case, op, inputs, set(range(len(inputs))), computed)
    for backend in (gx.BackendType.CPU, gx.BackendType.SIMULATOR):
        answers = run_model(case, computed, backend)
        for index, wanted in enumerate(case.outputs):
            expected = computed[index]
            if wanted:
                assert expected is not None
                compare(case, op, index, answers[f"y{index}"], expected, inputs)


def run_model(case: Case, computed: Sequence[Array | None], backend: gx.BackendType) -> gx.Outputs:
    """Return what a device makes of the model, which no node leaves."""
    model = make_model(case)
    del model.graph.output[:]
    model.graph.output.extend(
        helper.make_tensor_value_info(f"y{i}", dtype_row(made.dtype).code, made.shape)
        for i, (made, wanted) in enumerate(zip(computed, case.outputs, strict=False))
        if wanted and made is not None
    )
    with gx.Worker(gx.load(model), backend=backend) as worker:
        answers = worker.run({f"x{i}": x for i, x in enumerate(case.inputs) if x is not None})
        assert not worker.report().host_calls, f"{case.id}: {worker.report().host_calls}"
    return answers
