"""Style transfer on the simulator: by the kernels of the model's own images, on one of an eighth of their work.

An image of 720 by 720 takes the simulator a minute, as long as all other models of the suite together.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import gpuexec as gx
from gpuexec.ir.command import Launch
from gpuexec.ir.plan import Plan
from tests.system.models.folder import measure, needs_models, path_of, read_case, read_manifest
from tests.system.models.judge import MAX_ARENA
from tests.system.models.test_every_model import SHRUNK

(MODEL,) = SHRUNK
OWN = 720
# The smallest by which kernels are chosen as by its own: normalize_large_channels takes planes of more than 4096 floats
# in whole vectors.
SMALLER = 264


def shrink(extent: int) -> bytes:
    """Return the model for square images of an extent, which two transposed convolutions name too."""
    model = onnx.load(path_of(MODEL))
    for port in (*model.graph.input, *model.graph.output):
        for dim in port.type.tensor_type.shape.dim:
            if dim.dim_value == OWN:
                dim.dim_value = extent
    sizes = [each for node in model.graph.node for each in node.attribute if each.name == "output_shape"]
    assert [list(each.ints) for each in sizes] == [[OWN // 2 + 2] * 2, [OWN + 2] * 2]
    for attribute, size in zip(sizes, (extent // 2 + 2, extent + 2), strict=True):
        attribute.ints[:] = [size] * 2
    return bytes(model.SerializeToString())


def list_kernels(plan: Plan) -> list[object]:
    """Return the kernel of each command, or what else it is."""
    return [each.kernel if isinstance(each, Launch) else type(each) for each in plan.segment.commands]


def check_arena(plan: Plan) -> None:
    assert plan.layout.nbytes <= MAX_ARENA * plan.layout.lower_bound


@pytest.mark.models
@needs_models
def test_smaller_image_goes_through_the_kernels_of_the_models_own_and_is_near_the_reference() -> None:
    import onnxruntime

    (case,) = read_manifest()[MODEL]["cases"]
    given = read_case(case)
    ((port, image),) = given.inputs.items()
    with gx.Worker(gx.load(path_of(MODEL)), backend=gx.BackendType.SIMULATOR) as worker:
        own = worker.prepare(image)
        assert own is not None
        check_arena(own)
    content = shrink(SMALLER)
    smaller = np.ascontiguousarray(image[..., :SMALLER, :SMALLER])
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    expected = dict(zip(given.outputs, session.run(list(given.outputs), {port: smaller}), strict=True))
    with gx.Worker(gx.load(content), backend=gx.BackendType.SIMULATOR) as worker:
        outputs = worker.schedule(smaller).outputs
        for name, array in expected.items():
            assert measure(f"{case} smaller, simulator", outputs[name].readback_and_clone(), array) <= 1
        (plan,) = worker.plans
        (plan,) = worker.plans
        check_arena(plan)
        assert list_kernels(plan) == list_kernels(own)
        report = worker.report()
        assert (report.plans, report.host_calls, report.host_syncs) == (1, (), ())
