"""Convolutions of 8-bit integers on tensor cores: random windows, signs, zero points and groups by tile, to the bit;
and the work of launches beside what is counted."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.lib.slices import MMA_TILES, MmaTile
from gpuexec.ops.quant import integer_conv
from gpuexec.planner.template import plan_graph
from tests.ir.graph_builder import GraphBuilder
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats
from tests.ops.harness import Case, run_case
from tests.ops.test_integer_conv import conv, integers, quantised

U8, I8 = np.uint8, np.int8
NAMES = [tile.name for tile in MMA_TILES]


def draw(pick: random.Random) -> Case:
    """Return a convolution of one to three axes, of which some are of several groups or have many channels."""
    axes, group = pick.choice([1, 2, 2, 2, 3]), pick.choice([1, 1, 1, 2, 3])
    ins, outs = pick.choice([3, 8, 15, 16, 17, 33]), pick.choice([2, 7, 16, 31, 33, 70])
    taps = [pick.choice([1, 2, 3, 5]) for _ in range(axes)]
    strides, dilations = ([pick.choice([1, 1, 2, 3]) for _ in range(axes)] for _ in range(2))
    pads = [pick.choice([0, 0, 1, 2]) for _ in range(2 * axes)]
    spans = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
    extents = [span + pick.choice([0, 1, 4, 9] if axes < 3 else [0, 1, 3]) for span in spans]
    x, w = (pick.choice([U8, I8]) for _ in range(2))
    images, weights = integers(x, pick.choice([1, 2, 3]), group * ins, *extents), integers(w, group * outs, ins, *taps)
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    if pick.random() < 0.5:
        y, has_bias, by_channel = pick.choice([U8, I8]), pick.random() < 0.5, pick.random() < 0.5
        case = quantised("drawn", images, weights, y, bias=has_bias, by_channel=by_channel, **attributes)
        return dataclasses.replace(case, const=pick.choice([(), (3,)]))
    zeros = [integers(x) if pick.random() < 0.6 else None, integers(w) if pick.random() < 0.6 else None]
    return dataclasses.replace(conv("drawn", images, weights, *zeros, **attributes), const=pick.choice([(), (1,)]))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("tile", MMA_TILES, ids=NAMES)
def test_drawn_convolutions(checks: str, tile: MmaTile, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a size class takes a tile whose upper end is larger."""
    monkeypatch.setattr(integer_conv, "choose_mma_tile", lambda *_: tile)
    run_case(draw(random.Random(f"{tile.name} {seed}")), checks)


def test_devices_without_tensor_cores_give_the_same_bits(checks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As all before sm_80."""
    monkeypatch.setattr(integer_conv, "has_tensor_cores", lambda _: False)
    for seed in range(3):
        run_case(draw(random.Random(seed)), checks)


@pytest.mark.parametrize(
    ("target", "channels", "kernel"),
    [
        ("sm_80", 8, "integer_conv_mma"),
        ("sm_120", 8, "integer_conv_mma"),
        ("sm_75", 8, "integer_conv"),
        ("sm_80", 7, "integer_conv"),
    ],
)
def test_sums_of_32_terms_take_tensor_cores(target: str, channels: int, kernel: str) -> None:
    build, byte = GraphBuilder(), np.dtype(I8)
    specs = {"x": TensorSpec((1, channels, 9, 9), byte), "w": TensorSpec((5, channels, 2, 2), byte)}
    values = [build.input(name, *spec.shape, dtype=spec.dtype) for name, spec in specs.items()]
    plan = plan_graph(build.graph(build.node(integer_conv.ConvInteger(), *values)), specs, Target.named(target)).plan
    assert kernel in {each.expression.partition("<")[0] for each in plan.kernels()}


@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize("tile", MMA_TILES, ids=NAMES)
def test_work_is_as_counted(tile: MmaTile, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """In slices; all copies, fragments and sums take the least sectors and wavefronts."""
    monkeypatch.setattr(integer_conv, "choose_mma_tile", lambda *_: tile)
    ins, outs, extent = 128, tile.columns, 16
    weight = floats(outs, ins, 3, 3, dtype=dtype)
    inputs = {"x": (1, ins, extent, extent)}
    found = compare(CountedCase("ConvInteger", "integer_conv_mma", inputs, {"w": weight}, {"pads": [1] * 4}, dtype))
    issued = sum(line.counts.issued for line in found.counts.operations if line.unit == "mma")
    assert 2 * found.work.matrix_products == issued
    assert found.work.flops == 2 * outs * extent**2 * ins * 9
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    assert found.work.wavefronts == count_wavefronts(found.counts, 1)
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    # Where a slab has two taps, a warp may ask for one place through both.
    assert 0.9 <= counted / found.work.l2_nbytes <= 1.02
    for line in found.counts.lines:
        if line.counts.nbytes and (line.width == 16 or line.space == "shared"):
            assert line.counts.ratio == 1.0, line
