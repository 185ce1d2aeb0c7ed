"""Convolutions as products by tiles: random shapes to the bit, packed weights, slices, requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_file, load_generated
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div, contiguous_strides
from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.instances import instantiations
from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.weight_forms import PackedForm, WeightForm
from gpuexec.ops.lib.slices import LARGE_TILE, MAX_SLICES, MIN_SLABS, SLAB_DEPTH, Slices
from gpuexec.ops.nn import conv_simt
from gpuexec.ops.nn.conv_simt import ConvPhases, ConvTaps
from tests.ops.chains import chain
from tests.ops.direct import DirectEmitter
from tests.ops.draws import draws

Array = np.ndarray[Any, Any]
LOADED: dict[tuple[Kernel, str], SimulatorFunction] = {}
SEEDS = draws(12)  # of random shapes


def load(kernel: Kernel, mode: Any) -> SimulatorFunction:
    if kernel.text and (kernel, mode) not in LOADED:
        LOADED[kernel, mode] = load_generated([kernel], mode)[kernel]
    elif (kernel, mode) not in LOADED:
        # The whole file, as other tests have it compiled, but for counting.
        names = [kernel.expression] if mode == "count" else instantiations(kernel.source)
        LOADED[kernel, mode] = load_file(kernel.source, names, mode=mode)[kernel.expression]
    return LOADED[kernel, mode]


def align(memory: Array) -> Array:
    """Return a copy that lies as memory of a device does."""
    room = np.zeros(memory.size + 256, np.uint8)
    first = -room.ctypes.data % 256
    room[first : first + memory.size] = memory
    return room[first : first + memory.size]


class CheckingEmitter(DirectEmitter):
    """An emitter whose launches run in check mode, threads in a random order, or in count mode.

    Args:
        seed: Of the order.
        has_weights: Whether inputs are weights, which are packed beforehand.
        mode: Of the simulator.
    """

    def __init__(self, seed: int = 0, *, has_weights: bool = True, mode: str = "check") -> None:
        super().__init__()
        self.seed, self.has_weights, self.mode = seed, has_weights, mode
        self.zeros: list[Slot] = []
        self.counts: list[LaunchCounts] = []
        self.grids: list[tuple[int, int, int]] = []

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Argument],
        writes: Sequence[int],
        shared_bytes: int = 0,
        cooperative: bool = False,
    ) -> None:
        """Run the kernel."""
        self.launches.append((kernel, arguments))
        self.grids.append(grid)
        if all(isinstance(arguments[i], Slot) and arguments[i].spec.size == 0 for i in writes):  # type: ignore[union-attr]
            return
        values = [self.arrays[a.buffer][a.offset_bytes :] if isinstance(a, Slot) else a for a in arguments]
        options: dict[str, Any] = {}
        if self.mode == "count":
            values = [align(value) if isinstance(value, np.ndarray) else value for value in values]
            options["counts"] = self.counts
        order = Schedule("random", self.seed) if self.mode == "check" else None
        load(kernel, self.mode).launch_arrays(grid, block, *values, schedule=order, **options)

    def packed(self, slot: Slot, form: WeightForm) -> Slot | None:
        """Return a packed copy of a weight."""
        return super().packed(slot, form) if self.has_weights else None

    def counters(self, count: int) -> Slot:
        """Return new zeros."""
        self.zeros.append(super().counters(count))
        return self.zeros[-1]

    def run(self, op: Operator, inputs: Sequence[Array | None]) -> Array:
        """Return what the kernels make of arrays; counters must be 0 behind them."""
        slots = tuple(None if x is None else self.slot(x) for x in inputs)
        (spec,) = op.infer(*(None if slot is None else slot.spec for slot in slots))
        y = self.fresh(spec.shape, spec.dtype)
        assert op.lower is not None
        op.lower(self, slots, (y,))
        assert not any(self.read(zeros).any() for zeros in self.zeros)
        return self.read(y).copy()

    @property
    def names(self) -> list[str]:
        """Names of the kernels launched."""
        return [kernel.expression.partition("<")[0] for kernel, _ in self.launches]


@dataclass(frozen=True, slots=True)
class Given:
    """A convolution of small integers, whose sums are exact in any order."""

    op: Operator
    inputs: tuple[Array | None, ...]


def integers(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-4, 5, shape).astype(np.float32)


def lay(x: Array, pick: random.Random) -> Array:
    """Return an equal array of other strides, or the array itself."""
    match pick.choice(["dense", "dense", "dense", "last", "wide"]):
        case "last":
            return np.ascontiguousarray(np.moveaxis(x, 1, -1)).transpose(0, x.ndim - 1, *range(1, x.ndim - 1))
        case "wide":
            wide = np.full((*x.shape[:-1], x.shape[-1] + 3), np.nan, np.float32)
            wide[..., : x.shape[-1]] = x
            return wide[..., : x.shape[-1]]
    return x


def make(seed: int, *, is_transposed: bool = False, is_depthwise: bool = False) -> Given:
    """Return a random convolution."""
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    rank = pick.choice([1, 2, 2, 2] if is_depthwise else [1, 2, 2, 2, 3])
    some = lambda *choices: tuple(pick.choice(choices) for _ in range(rank))
    kernel = pick.choice([(1,) * rank, (3,) * rank, (5,) * rank, some(1, 2, 3, 4, 7)])
    if prod(kernel) > 49:
        kernel = (3,) * rank
    if is_transposed and prod(kernel) > 25:
        kernel = (2,) * rank
    square = pick.random() < 0.5
    strides = (pick.choice([1, 1, 2]),) * rank if square else some(1, 1, 2, 3)
    dilations = (1,) * rank if square else some(1, 1, 2, 3)
    if is_transposed and prod(strides) > 16:
        strides = (2,) * rank
    pads = [pick.choice([0, 1, 2]) for _ in range(2 * rank)]
    least = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    extents = [pick.choice([1, 4, 7, 8, 12, 13]) if rank > 1 else pick.choice([1, 17, 64, 130]) for _ in range(rank)]
    if not is_transposed:
        extents = [max(extent, low) for extent, low in zip(extents, least, strict=True)]
    groups, batch = pick.choice([1, 1, 2, 3]), pick.choice([1, 1, 2, 3])
    channels = pick.choice([2, 3, 4, 5, 8, 16, 24, 32])
    outs = pick.choice([2, 5, 8, 20, 64, 70])
    if is_depthwise:
        groups, channels, outs = pick.choice([1, 2, 3, 5, 16, 33]), 1, pick.choice([1, 1, 1, 2, 3, 7])
    attributes: dict[str, Any] = {"group": groups, "strides": strides, "dilations": dilations, "pads": tuple(pads)}
    shape = (groups * outs, channels, *kernel)
    if is_transposed:
        outs = max(outs, 8)
        shape = (groups * channels, outs, *kernel)
        spare = [pick.choice([0, 0, 1]) for _ in range(rank)]
        attributes["output_padding"] = tuple(
            min(each, max(stride, dilation) - 1)
            for each, stride, dilation in zip(spare, strides, dilations, strict=True)
        )
        spans = [stride * (extent - 1) for stride, extent in zip(strides, extents, strict=True)]
        most = [(span + low - 1) // 2 for span, low in zip(spans, least, strict=True)]
        attributes["pads"] = tuple(min(pad, top) for pad, top in zip(pads, most * 2, strict=True))
    x = lay(integers(rng, batch, groups * channels, *extents), pick)
    w, bias = integers(rng, *shape), integers(rng, groups * outs) if pick.random() < 0.5 else None
    name = "ConvTranspose" if is_transposed else "Conv"
    return Given(build(name, attributes), (x, w, bias))


def check(given: Given, emit: CheckingEmitter) -> None:
    expected = given.op.compute(*given.inputs)[0]
    np.testing.assert_array_equal(emit.run(given.op, given.inputs), expected, err_msg=str(given.op))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_convolution_is_exact(seed: int) -> None:
    emit = CheckingEmitter(seed, has_weights=seed % 3 > 0)
    check(make(seed), emit)
    assert emit.names[-1] == "simt_conv"


@pytest.mark.parametrize("seed", SEEDS)
def test_random_transposed_convolution_is_exact(seed: int) -> None:
    emit = CheckingEmitter(seed, has_weights=seed % 3 > 0)
    check(make(seed, is_transposed=True), emit)
    assert emit.names[-1] == "simt_conv_transpose"


def divide(slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let convolutions take so many slices."""

    def slice_tiles(emit: CheckingEmitter, tiles: int, slabs: int, floats: int) -> Slices:
        return Slices(slices, emit.temp((tiles * slices * floats,), np.float32), emit.counters(tiles))

    monkeypatch.setattr(conv_simt, "slice_tiles", slice_tiles)


@pytest.mark.parametrize("slices", [1, 2, 3, 5, 8, 16])
def test_slices_add_up_exactly(slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also more slices than there are slabs, some of which are empty."""
    divide(slices, monkeypatch)
    for given in (make(100 + slices), make(200 + slices, is_transposed=True)):
        emit = CheckingEmitter(slices)
        check(given, emit)
        assert emit.grids[-1][1] == slices


def test_slices_of_tiles_with_an_epilogue() -> None:
    x, w = (integers(np.random.default_rng(3), *shape) for shape in ((1, 64, 5, 7), (9, 64, 3, 3)))
    emit = CheckingEmitter()
    steps = (("Relu", (), (-1,)),)
    got = emit.run(build("gpuexec.FusedConv", chain(steps)), (x, w))
    np.testing.assert_array_equal(got, np.maximum(build("Conv", {}).compute(x, w)[0], 0))
    assert emit.grids[-1][1] > 1


@pytest.mark.parametrize("name", ["large_positions", "large_blocks", "large_taps"])
def test_large_tile_in_slices_is_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a small size of a class takes it."""
    monkeypatch.setattr(conv_simt, "choose_tile", lambda *_: LARGE_TILE)
    divide(3, monkeypatch)
    shape = {"large_positions": (2, 32, 6, 6), "large_blocks": (2, 24, 9, 9), "large_taps": (3, 5, 7, 11)}[name]
    extent = 1 if name == "large_positions" else 3
    rng = np.random.default_rng(7)
    x, w, bias = integers(rng, *shape), integers(rng, 140, shape[1], extent, extent), integers(rng, 140)
    emit = CheckingEmitter(1)
    check(Given(build("Conv", {}), (x, w, bias)), emit)
    assert "LargeTile" in emit.launches[-1][0].expression


FORMS: list[tuple[WeightForm, tuple[int, ...]]] = [
    (ConvTaps(16), (5, 24, 3, 3)),
    (ConvTaps(4), (70, 3, 7, 7)),
    (ConvTaps(4), (3, 70, 2)),
    (ConvPhases(16, 2, 40, 140, 1, 2, 2, 1, 1, 1, 0, 1, 1), (80, 70, 3, 3)),
    (ConvPhases(4, 3, 5, 24, 1, 2, 3, 1, 1, 2, 0, 0, 2), (15, 8, 4, 2)),
]


@pytest.mark.parametrize(("form", "shape"), FORMS, ids=lambda each: str(each)[:40])
def test_weights_packed_in_parts_are_those_packed_at_once(form: WeightForm, shape: tuple[int, ...]) -> None:
    source = np.arange(prod(shape), dtype=np.float32).reshape(shape) + 1
    whole = PackedForm.of(form, TensorSpec.of(source), tuple(range(source.ndim))).pack(source)
    for axis in (0, 1):
        packed = np.zeros_like(whole)
        for first in range(0, shape[axis], 64):
            part = source[(slice(None),) * axis + (slice(first, first + 64),)]
            form.pack(part, (0,) * axis + (first,) + (0,) * (source.ndim - axis - 1), packed)
        np.testing.assert_array_equal(packed, whole)
    assert sorted(whole[whole != 0].tolist()) == source.reshape(-1).tolist()


# Output channels, channels, extents of the input, kernel, stride, groups.
Layer = tuple[int, int, int, int, int, int]
RESNET: list[Layer] = [
    (64, 3, 224, 7, 2, 1), (64, 64, 56, 1, 1, 1), (64, 64, 56, 3, 1, 1), (256, 64, 56, 1, 1, 1),
    (64, 256, 56, 1, 1, 1), (128, 256, 56, 1, 1, 1), (128, 128, 56, 3, 2, 1), (512, 256, 56, 1, 2, 1),
    (512, 128, 28, 1, 1, 1), (128, 512, 28, 1, 1, 1), (128, 128, 28, 3, 1, 1), (256, 512, 28, 1, 1, 1),
    (256, 256, 28, 3, 2, 1), (1024, 512, 28, 1, 2, 1), (1024, 256, 14, 1, 1, 1), (256, 1024, 14, 1, 1, 1),
    (256, 256, 14, 3, 1, 1), (512, 1024, 14, 1, 1, 1), (512, 512, 14, 3, 2, 1), (2048, 1024, 14, 1, 2, 1),
    (2048, 512, 7, 1, 1, 1), (512, 2048, 7, 1, 1, 1), (512, 512, 7, 3, 1, 1),
]  # fmt: skip
MOBILENET: list[Layer] = [
    (32, 3, 224, 3, 2, 1), (16, 32, 112, 1, 1, 1), (96, 16, 112, 1, 1, 1), (24, 96, 56, 1, 1, 1),
    (144, 24, 56, 1, 1, 1), (32, 144, 28, 1, 1, 1), (192, 32, 28, 1, 1, 1), (64, 192, 14, 1, 1, 1),
    (384, 64, 14, 1, 1, 1), (96, 384, 14, 1, 1, 1), (576, 96, 14, 1, 1, 1), (160, 576, 7, 1, 1, 1),
    (960, 160, 7, 1, 1, 1), (320, 960, 7, 1, 1, 1), (1280, 320, 7, 1, 1, 1),
]  # fmt: skip
UNET: list[Layer] = [
    (width, channels, 256 >> level, 3, 1, 1)
    for level, width in enumerate((64, 128, 256, 512, 1024))
    for channels in (max(width // 2, 3), width, 2 * width)
]


class RecordingEmitter(CheckingEmitter):
    """An emitter whose launches are noted, and whose memory is never there."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target  # type: ignore[misc]

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], *rest: Any, **named: Any) -> None:
        """Note the grid."""
        self.launches.append((kernel, rest[1]))
        self.grids.append(grid)

    def fresh(self, shape: tuple[int, ...], dtype: Any) -> Slot:
        """Return a window on nothing."""
        return Slot(0, 0, TensorSpec(shape, np.dtype(dtype)), contiguous_strides(shape))

    def packed(self, slot: Slot, form: WeightForm) -> Slot | None:
        """Return a window on nothing."""
        return self.fresh(form.infer(slot.spec).shape, slot.dtype)

    def counters(self, count: int) -> Slot:
        """Return a window on nothing."""
        return self.fresh((count,), np.uint32)


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("architecture", [80, 86, 90, 120])
def test_convolutions_of_networks_fill_a_wave(architecture: int, batch: int) -> None:
    """But those whose inner extent allows no more slices."""
    wave = find_gpu(architecture).multiprocessors
    for outs, channels, extent, kernel, stride, groups in (*RESNET, *MOBILENET, *UNET):
        emit = RecordingEmitter(Target.named(f"sm_{architecture}"))
        op = build("Conv", {"pads": (kernel // 2,) * 4, "strides": (stride,) * 2, "group": groups})
        x = emit.fresh((batch, channels, extent, extent), np.float32)
        w = emit.fresh((outs, channels // groups, kernel, kernel), np.float32)
        (spec,) = op.infer(x.spec, w.spec)
        assert op.lower is not None
        op.lower(emit, (x, w), (emit.fresh(spec.shape, spec.dtype),))
        assert emit.names == ["simt_conv"]
        tiles, slices, _ = emit.grids[-1]
        slabs = ceil_div(channels * kernel * kernel, SLAB_DEPTH)
        most = min(MAX_SLICES, slabs // MIN_SLABS)
        assert 10 * tiles * slices >= 9 * wave or slices >= most, (outs, channels, extent, kernel, tiles, slices)


def count(op: Operator, x: tuple[int, ...], w: tuple[int, ...]) -> LaunchCounts:
    """Return what count mode counts of the launch of a convolution, in memory aligned as a device's."""
    emit = CheckingEmitter(mode="count")
    emit.run(op, (np.zeros(x, np.float32), np.zeros(w, np.float32)))
    (counts,) = emit.counts
    return counts


PADDED = {"pads": (1, 1, 1, 1)}


@pytest.mark.parametrize(
    ("shape", "outs", "kernel", "attributes", "sectors"),
    [
        ((1, 16, 32, 32), 64, 3, PADDED, 1.25),  # windows that begin beside a sector
        ((1, 32, 16, 16), 64, 1, {}, 1.0),
        ((1, 6, 16, 16), 64, 3, PADDED, 1.25),
        ((2, 16, 7, 7), 64, 3, PADDED, 1.5),  # rows of 28 bytes
    ],
)
def test_requests_of_a_convolution(
    shape: tuple[int, ...], outs: int, kernel: int, attributes: dict[str, Any], sectors: float
) -> None:
    counts = count(build("Conv", attributes), shape, (outs, shape[1], kernel, kernel))
    assert counts.total("global").ratio <= sectors
    assert counts.total("shared").ratio == 1.0
