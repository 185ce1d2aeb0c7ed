"""Closed forms of products of float on the FP32 units, beside what count mode counts of them.

Count mode takes a vector of four floats that lanes read from shared memory as four wavefronts, where pairs of lanes
read one address and the device needs two.
"""

from __future__ import annotations

import pytest

from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats

_READ_TOGETHER = 2


def gemm(rows: int, inner: int, columns: int, kernel: str = "simt_gemm", *, turned: int = 0) -> CountedCase:
    weight = floats(columns, inner) if turned else floats(inner, columns)
    return CountedCase("Gemm", kernel, {"x": (rows, inner)}, {"w": weight}, {"transB": turned})


@pytest.mark.parametrize(
    "case",
    [
        gemm(64, 64, 64),
        gemm(128, 256, 128),  # in slices
        gemm(64, 128, 64, turned=1),
        gemm(1024, 32, 2048),
    ],
    ids=str,
)
def test_tiled_products_are_as_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.work.flops == found.flops
    assert found.work.multiply_adds == found.counts.multiply_adds.calls
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    assert found.work.wavefronts == count_wavefronts(found.counts, _READ_TOGETHER)
    # Slices count their tiles too.
    assert found.work.l2_nbytes == pytest.approx(found.counts.l2_read_nbytes + found.counts.l2_written_nbytes, rel=2e-3)


@pytest.mark.parametrize(
    "case",
    [
        gemm(1, 1024, 256, "gemv_along_columns"),
        gemm(8, 256, 512, "gemv_along_columns"),
        gemm(4, 512, 128, "gemv_along_k", turned=1),
    ],
    ids=str,
)
def test_products_of_few_rows_read_the_matrix_once(case: CountedCase) -> None:
    found = compare(case)
    assert found.work.flops == found.flops
    assert found.work.multiply_adds == found.counts.multiply_adds.calls
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert 0.8 * counted <= found.work.l2_nbytes <= counted  # count mode has no L1, which keeps the rows


@pytest.mark.parametrize(
    ("case", "ratio"),
    [
        (gemm(64, 64, 64), 1.0),
        (gemm(128, 256, 128), 1.0),  # in slices
        (gemm(64, 128, 64, turned=1), 1.0),
        (gemm(1024, 32, 2048), 1.0),  # by large tiles
        (gemm(60, 64, 64), 64 / 60),
        (gemm(64, 56, 64), 64 / 56),  # slabs of 16
        (gemm(33, 64, 65), 64 * 128 / (33 * 65)),
        (gemm(4, 512, 128, "gemv_along_k", turned=1), 1.0),
    ],
    ids=str,
)
def test_multiply_adds_issued_for_one_that_is_needed(case: CountedCase, ratio: float) -> None:
    assert compare(case).counts.issue_ratio == pytest.approx(ratio, rel=1e-12)
