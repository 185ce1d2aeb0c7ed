"""Closed forms of products on tensor cores, beside what count mode counts of them and what is known of the hardware."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.precision import STRICT, TF32
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ir.work import find_form
from gpuexec.ops.lib.slices import DEEP_MMA_TILES, MmaTile
from gpuexec.ops.linalg.mma_launch import name_mma
from gpuexec.ops.linalg.product import ALONG_K, Product
from gpuexec.ops.nn import conv_mma
from gpuexec.planner.launch_work import CommandGrid
from gpuexec.planner.time_model import TIME_MODEL, bound_launch
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats


def gemm(rows: int, inner: int, columns: int, *, turned: int = 0) -> CountedCase:
    weight = floats(*((columns, inner) if turned else (inner, columns)), dtype=np.float16)
    return CountedCase("Gemm", "mma_gemm", {"x": (rows, inner)}, {"w": weight}, {"transB": turned}, dtype=np.float16)


def conv(
    channels: int, outs: int, extent: int, taps: int = 3, precision: str = STRICT, **attributes: object
) -> CountedCase:
    """Return a convolution of half, or of tf32, whose images are transposed at its ends alone."""
    dtype: type = np.float32 if precision == TF32 else np.float16
    weight, pads = floats(outs, channels, taps, taps, dtype=dtype), (taps // 2,) * 4
    inputs, named = {"x": (2, channels, extent, extent)}, {"pads": pads, **attributes}
    return CountedCase("Conv", "conv_mma", inputs, {"w": weight}, named, dtype=dtype, precision=precision)


@pytest.mark.parametrize(
    "case",
    [
        gemm(64, 128, 64),
        gemm(128, 256, 128, turned=1),
        gemm(64, 2048, 64),  # in slices
        gemm(16, 256, 128, turned=1),
        CountedCase("Gemm", "mma_gemm", {"x": (64, 128)}, {"w": floats(128, 64)}, precision=TF32),
    ],
    ids=str,
)
def test_products_are_as_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.work.flops == found.flops
    assert found.work.matrix_products == found.counts.multiply_adds.issued * (2 if case.precision == TF32 else 1)
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    assert found.counts.issue_ratio == 1.0
    assert found.work.wavefronts == count_wavefronts(found.counts, 1)
    # Slices count their tiles too.
    assert found.work.l2_nbytes == pytest.approx(found.counts.l2_read_nbytes + found.counts.l2_written_nbytes, rel=2e-3)


CONVOLUTIONS = [
    conv(32, 64, 16),
    conv(16, 64, 16, taps=5, strides=(2, 2)),
    conv(64, 64, 8, dilations=(2, 2)),
    conv(256, 64, 8),
]
# Of as many bytes, and one of a single tap.
TF32_CONVOLUTIONS = [
    conv(16, 64, 16, precision=TF32),
    conv(8, 64, 16, taps=5, precision=TF32, strides=(2, 2)),
    conv(128, 64, 8, precision=TF32),
    conv(64, 64, 16, taps=1, precision=TF32),
]


@pytest.mark.parametrize(
    ("case", "tile"),
    [
        *(pytest.param(case, tile, id=f"{case}-{tile.name}") for case in CONVOLUTIONS for tile in DEEP_MMA_TILES),
        *(
            pytest.param(case, tile, id=f"{case}-{tile.name}-tf32")
            for case in TF32_CONVOLUTIONS
            for tile in conv_mma.FLOAT_TILES
        ),
    ],
)
def test_convolutions_are_as_counted(case: CountedCase, tile: MmaTile, monkeypatch: pytest.MonkeyPatch) -> None:
    """In slices; their last slabs are not full."""
    monkeypatch.setattr(conv_mma, "choose_mma_tile", lambda *_: tile)
    found = compare(case)
    assert found.work.flops == found.flops
    assert found.work.matrix_products == found.counts.multiply_adds.issued * (2 if case.precision == TF32 else 1)
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    assert found.work.wavefronts == count_wavefronts(found.counts, 1)
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    if np.dtype(case.dtype).itemsize * case.inputs["x"][1] >= tile.slab_nbytes:
        assert found.work.l2_nbytes == pytest.approx(counted, rel=2e-3)
    else:  # a place that a warp asks for through several taps at once is one sector
        assert counted <= found.work.l2_nbytes <= 1.7 * counted


def predict_us(tile_name: str, architecture: int, extent: int) -> float:
    """Return the time of a product of square matrices of bf16 that lie along the inner extent."""
    tile = next(each for each in DEEP_MMA_TILES if each.name == tile_name)
    spec = TensorSpec((extent, extent), np.dtype(BFLOAT16))
    a, b, y = (Slot(number, 0, spec, (extent, 1)) for number in range(3))
    product = Product(
        (a, b, None, y), (extent,) * 3, (extent, 1), (1, extent), (0, 0), (extent, 1), (1.0, 1.0), (), ((), (), ())
    )
    tiles = tile.count(extent, extent)
    launch = Launch(
        name_mma((spec.dtype, spec.dtype), tile, (ALONG_K, ALONG_K)), (tiles, 1, 1), (tile.threads, 1, 1),
        (a, b, None, y, product.pack_mma(ALONG_K, ALONG_K), None, None), (3,), tile.ring_nbytes,
    )  # fmt: skip
    form = find_form(launch.kernel)
    assert form is not None
    grid = CommandGrid(tiles, tile.threads, tile.ring_nbytes)
    return TIME_MODEL.predict_us(bound_launch(form(launch), grid, 3 * spec.nbytes, 1.0, find_gpu(architecture)))


@pytest.mark.parametrize(
    ("architecture", "peak", "least", "most"), [(90, 989e12, 0.48, 0.57), (80, 312e12, 0.78, 0.92)]
)
def test_large_products_are_predicted_at_what_the_instruction_reaches(
    architecture: int, peak: float, least: float, most: float
) -> None:
    """An H100 gives mma.sync 62.9 % of its rate, an A100 all of it; waves and barriers take the rest."""
    share = 2 * 4096**3 / (predict_us("LargeMma", architecture, 4096) * 1e-6) / peak
    assert least <= share <= most


def test_smaller_tiles_ask_more_of_l2_than_an_h100_gives() -> None:
    assert predict_us("MediumMma", 90, 4096) > 1.05 * predict_us("LargeMma", 90, 4096)
