"""Slices of sums: how many there are, and that buffers of a size class have room for all of its sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.lib.slices import (
    DEEP_MMA_TILES,
    MAX_SLICES,
    MIN_SLABS,
    TILES,
    choose_mma_tile,
    count_slices,
    slice_mma_tiles,
    slice_tiles,
)
from gpuexec.planner.template import Template, plan_graph
from tests.devices.execute import run_template
from tests.devices.opening import open_device
from tests.ir.graph_builder import GraphBuilder

Array = np.ndarray[Any, Any]
ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 120)


class Emitter:
    """An emitter that repeats what was chosen at an upper end, and makes nothing."""

    def __init__(
        self,
        target: str,
        given: list[int] | None = None,
        fixes_division: bool = False,
        has_one_size: bool = False,
    ) -> None:
        self.target, self.has_one_size = Target.named(target), has_one_size
        self.chosen: list[int] = []
        self.sizes: list[int] = []
        self._given, self._fixes_division = given, fixes_division

    def choose(self, now: int | Callable[[], int]) -> int:
        if self._given is None:
            self.chosen.append(now() if callable(now) else now)
        else:
            self.chosen.append(self._given[len(self.chosen)])
        return self.chosen[-1]

    def divide(self, now: int) -> int:
        return self.choose(now) if self._fixes_division else now

    def temp(self, shape: tuple[int, ...], dtype: Any) -> Slot:
        self.sizes.append(shape[0])
        return Slot(0, 0, TensorSpec(shape, np.dtype(dtype)), (1,))

    def counters(self, count: int) -> Slot:
        self.sizes.append(count)
        return Slot(1, 0, TensorSpec((count,), np.dtype(np.uint32)), (1,))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_slices_fill_nine_tenths_of_a_wave_where_they_may(architecture: int) -> None:
    wave = find_gpu(architecture).multiprocessors
    for tiles in range(1, 3 * wave):
        for slabs in (1, 4, 9, 48, 200):
            slices = count_slices(tiles, slabs, wave)
            assert 1 <= slices <= MAX_SLICES and (slices == 1 or slices * MIN_SLABS <= slabs)
            assert slices == 1 or tiles * slices <= 3.9 * wave
            if tiles * slices < 0.9 * wave:  # no more are allowed
                assert slices + 1 > min(MAX_SLICES, slabs // MIN_SLABS) or tiles * (slices + 1) > 3.9 * wave


@pytest.mark.parametrize(("rows", "columns", "inner", "slices"), [(128, 768, 768, 5), (128, 3072, 768, 4)])
def test_products_of_a_layer_of_bert_fill_an_h100(rows: int, columns: int, inner: int, slices: int) -> None:
    small = TILES[1]
    assert count_slices(small.count(rows, columns), inner // 16, find_gpu(90).multiprocessors) == slices


@pytest.mark.parametrize("slabs", [3, 4, 16, 48, 300])
@pytest.mark.parametrize("end", [1, 7, 24, 96, 140, 600])
def test_all_sizes_of_a_class_have_the_room_of_its_end(end: int, slabs: int) -> None:
    at_end = Emitter("sm_90")
    slice_tiles(at_end, end, slabs, 64)
    for tiles in range(1, end + 1):
        emit = Emitter("sm_90", at_end.chosen)
        slices = slice_tiles(emit, tiles, slabs, 64)
        assert emit.sizes == at_end.sizes and (slices.scratch is None) == (not at_end.sizes)
        if slices.count > 1:
            room, counters = at_end.sizes
            assert tiles * slices.count * 64 <= room and tiles <= counters
        if 4 * tiles >= end:
            assert slices.count == count_slices(tiles, slabs, find_gpu(90).multiprocessors)


@pytest.mark.parametrize("tiles", [24, 96, 500])
def test_a_plan_for_one_size_has_the_room_that_it_needs(tiles: int) -> None:
    emit, slices = Emitter("sm_90", has_one_size=True), count_slices(tiles, 48, find_gpu(90).multiprocessors)
    made = slice_tiles(emit, tiles, 48, 64)
    assert made.count == slices
    assert emit.sizes == ([tiles * slices * 64, tiles * slices // 2] if slices > 1 else [])
    for other in (tiles // 3, tiles):
        smaller = slice_tiles(Emitter("sm_90", emit.chosen, has_one_size=True), other, 48, 64)
        assert other * smaller.count <= max(tiles * slices, other)


def test_classes_without_slices_take_no_scratch_memory() -> None:
    emit = Emitter("sm_90")
    slices = slice_tiles(emit, 2000, 48, 64)
    assert (slices.count, slices.scratch, slices.counters, emit.sizes) == (1, None, None, [])
    assert slices.writes(3, 5, 2000) == [3]


def test_fixed_divisions_are_those_of_the_upper_end() -> None:
    at_end = Emitter("sm_90", fixes_division=True)
    expected = slice_tiles(at_end, 24, 48, 64).count
    assert [slice_tiles(Emitter("sm_90", at_end.chosen, True), tiles, 48, 64).count for tiles in (24, 12, 6)] == [
        expected
    ] * 3


def plan_product(rows: int, target: Target) -> tuple[Template, Any]:
    graph_of = GraphBuilder()
    x = graph_of.input("x", "n", 1024)
    weight = graph_of.constant(np.random.default_rng(0).integers(-3, 4, (1024, 48)).astype(np.float32))
    graph = graph_of.graph(graph_of.node(build("MatMul", {}), x, weight))
    return plan_graph(graph, {"x": TensorSpec((rows, 1024), np.dtype(np.float32))}, target), graph


def test_a_plan_runs_again_and_again_by_the_same_counters() -> None:
    device = open_device("simulator")
    template, graph = plan_product(200, device.target)
    (launch,) = [each for each in template.plan.segment.commands if isinstance(each, Launch)]
    assert launch.grid[1] > 1
    weight = next(iter(graph.constants.values()))
    rng = np.random.default_rng(1)
    for rows in (200, 130, 200, 250, 129):
        x = rng.integers(-3, 4, (rows, 1024)).astype(np.float32)
        (y,) = run_template(template, graph, {"x": x}, device)
        np.testing.assert_array_equal(y, x @ np.asarray(weight))


@pytest.mark.parametrize("architecture", [each for each in ARCHITECTURES if each >= 80])
def test_every_tile_of_tensor_cores_fits_an_architecture(architecture: int) -> None:
    for tile in DEEP_MMA_TILES:
        assert tile.ring_nbytes <= Target.named(f"sm_{architecture}").shared_bytes_per_block
        assert find_gpu(architecture).count_blocks(tile.threads, tile.registers, tile.ring_nbytes) >= 1


@pytest.mark.parametrize(
    ("architecture", "extents", "name", "slices"),
    [
        (90, (1, 4096, 4096), "FlatMma", 1),  # weights of a token
        (80, (16, 4096, 4096), "FlatMma", 1),
        (90, (128, 768, 768), "FlatMma", 1),  # a layer of BERT: to join slices of 24 tiles would take longer
        (90, (128, 768, 3072), "SmallMma", 4),
        (90, (262144, 64, 1728), "SmallMma", 1),  # others have more columns than there are
        (80, (1024, 1024, 1024), "LargeMma", 3),
        (90, (4096, 4096, 4096), "LargeMma", 1),
        (80, (4096, 4096, 4096), "LargeMma", 1),
    ],
)
def test_tile_of_tensor_cores_follows_from_extents_and_architecture(
    architecture: int, extents: tuple[int, int, int], name: str, slices: int
) -> None:
    emit: Any = Emitter(f"sm_{architecture}")
    rows, columns, inner = extents
    tile = choose_mma_tile(emit, rows, columns, 2 * inner)
    assert tile.name == name
    assert slice_mma_tiles(emit, tile, tile.count(rows, columns), 2 * inner).count == slices


@pytest.mark.parametrize(
    ("extents", "name"),
    [
        ((128, 2304, 768), "SmallDeepMma"),  # 72 blocks
        ((1, 768, 768), "FlatDeepMma"),
        ((100352, 64, 64), "SmallMma"),  # multiprocessors have eleven blocks each, whose warps wait in turn
        ((4096, 4096, 4096), "LargeMma"),
    ],
)
def test_groups_of_warps_share_tiles_where_blocks_are_few(extents: tuple[int, int, int], name: str) -> None:
    emit: Any = Emitter("sm_90")
    rows, columns, inner = extents
    assert choose_mma_tile(emit, rows, columns, 2 * inner, tiles=DEEP_MMA_TILES).name == name
