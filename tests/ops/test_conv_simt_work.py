"""Closed forms of convolutions of float by tiles and of depthwise ones, beside what count mode counts of them."""

from __future__ import annotations

import pytest

from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats


def conv(batch: int, ins: int, outs: int, extent: int, taps: int, stride: int = 1) -> CountedCase:
    """Return a convolution padded so that its middle tap is inside."""
    attributes = {"strides": [stride] * 2, "pads": [taps // 2] * 4}
    weight = floats(outs, ins, taps, taps)
    return CountedCase("Conv", "simt_conv", {"x": (batch, ins, extent, extent)}, {"w": weight}, attributes)


@pytest.mark.parametrize(
    "case",
    [conv(1, 16, 64, 8, 1), conv(1, 32, 64, 16, 3), conv(1, 32, 72, 16, 3, 2), conv(2, 3, 64, 32, 7, 2)],
    ids=str,
)
def test_convolutions_by_tiles_are_as_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.work.flops == found.flops
    assert found.work.multiply_adds == found.counts.multiply_adds.calls
    # Four floats count as four wavefronts, where pairs of lanes read one address and the device needs two.
    assert found.work.wavefronts == pytest.approx(count_wavefronts(found.counts, 2), rel=0.15)
    # Count mode has no L1, which answers most taps of a place after the first.
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert 0.5 * counted <= found.work.l2_nbytes <= 1.01 * counted


def test_depthwise_convolutions_move_their_operands() -> None:
    attributes = {"pads": [1] * 4, "group": 32}
    found = compare(
        CountedCase("Conv", "conv_depthwise", {"x": (1, 32, 12, 12)}, {"w": floats(32, 1, 3, 3)}, attributes)
    )
    assert found.work.flops == found.flops
    assert found.work.needed_multiply_adds == found.counts.multiply_adds.taken
    assert found.work.multiply_adds == pytest.approx(found.counts.multiply_adds.calls, rel=0.2)  # lanes are off at ends
    assert found.operand_nbytes == found.counts.dram_read_nbytes + found.counts.dram_written_nbytes


@pytest.mark.parametrize(
    ("case", "ratio"),
    [
        (conv(1, 64, 64, 56, 1), 1.0),  # of ResNet-50: 49 tiles for 3136 places
        (conv(1, 16, 64, 56, 3), 1.0),
        (conv(1, 32, 128, 28, 1), 832 / 784),  # 13 tiles
        (conv(1, 32, 64, 28, 3), 832 / 784),
        (conv(4, 32, 64, 14, 3), 832 / 784),  # places of four images together
        (conv(1, 32, 64, 14, 3), 256 / 196),  # a lone image has three tiles and a sixteenth
    ],
    ids=str,
)
def test_multiply_adds_issued_for_one_that_is_needed_by_layers_of_a_resnet(case: CountedCase, ratio: float) -> None:
    assert compare(case).counts.issue_ratio == pytest.approx(ratio, rel=1e-12)
