"""Transposes of images in plans of whole models in fp16 and tf32: at the ends alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpuexec.ir.command import Launch
from gpuexec.ir.plan import Plan
from gpuexec.ir.precision import STRICT
from gpuexec.ir.target import Target
from gpuexec.planner.memory_format import count_transposes
from tests.bench.architectures import make_mobilenet_v2, make_resnet50, make_unet
from tests.bench.models import BenchModel
from tests.system.models.folder import HALF, needs_models, path_of

TARGET = Target.named("sm_80")
# Of models of the folder, what is left, and why.
LEFT = {
    "resnet__d18": 0,
    "mobilenet_v2__d18": 0,
    "efficientnet__d19": 0,
    "yolox_nano_fp16": 1,  # of the joined rows of three heads, which a region turns and casts
    "unet_classic__d18": 3,  # around a softmax over channels, and behind a transposed convolution whose taps overlap
}


def name_kernels(plan: Plan) -> set[str]:
    commands = plan.segment.commands
    return {each.kernel.expression.partition("<")[0] for each in commands if isinstance(each, Launch)}


@pytest.mark.parametrize(
    ("make", "kernels"),
    [
        (lambda: make_resnet50(1, 64, 16, (1, 1, 1, 1), 10), {"conv_mma"}),
        (lambda: make_mobilenet_v2(1, 64, last=64, classes=10), {"conv_depthwise_last"}),
        (lambda: make_unet(1, 8, 16), {"normalize_small_channels"}),
        (lambda: make_unet(1, 8, 160), {"normalize_large_channels"}),
    ],
    ids=["resnet", "mobilenet", "unet", "large-unet"],
)
@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_architectures_transpose_no_image(make: Callable[[], BenchModel], kernels: set[str], precision: str) -> None:
    plan = replace(make(), precision=precision).plan(TARGET)
    names = name_kernels(plan)
    assert len(kernels & names) == 1 and "simt_conv" not in names
    assert count_transposes(plan.segment.commands)[0] == 0


@pytest.mark.parametrize("make", [make_resnet50, make_mobilenet_v2], ids=["resnet", "mobilenet"])
def test_tf32_adds_no_launch(make: Callable[..., BenchModel]) -> None:
    """Convolutions round their images themselves, be these residuals, pooled, or of few channels."""
    model = make(1, 64, has_weights=False)
    plans = [replace(model, precision=precision).plan(TARGET) for precision in (STRICT, "tf32")]
    before, after = ([each for each in plan.segment.commands if isinstance(each, Launch)] for plan in plans)
    assert len(after) == len(before)
    assert not any("RoundToTf32" in each.kernel.expression for each in after)


@needs_models
@pytest.mark.parametrize("name", LEFT)
def test_models_transpose_images_at_the_ends_alone(name: str) -> None:
    path = path_of(name)
    with np.load(path.with_suffix(".case0.npz")) as case:
        inputs = {str(port): case[f"in_{index}"] for index, port in enumerate(case["input_names"])}
    model = BenchModel(name, Path(path).read_bytes(), inputs, precision=STRICT if name in HALF else "fp16")
    plan = model.plan(TARGET)
    # Of models whose other convolutions are products or depthwise, the first one is the only one.
    assert ("conv_few" if name in ("mobilenet_v2__d18", "efficientnet__d19") else "conv_mma") in name_kernels(plan)
    assert count_transposes(plan.segment.commands)[0] == LEFT[name]
