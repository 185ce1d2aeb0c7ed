"""Window extents and padding, against counting one by one."""

from __future__ import annotations

import itertools

import pytest

from gpuexec.errors import InputError
from gpuexec.ops.lib import window_extents


def test_conv_output_extent_counts_the_windows_that_fit() -> None:
    for extent, kernel, stride, dilation, begin, end in itertools.product(
        range(1, 8), (1, 2, 3), (1, 2, 3), (1, 2), (0, 1), (0, 2)
    ):
        padded, reach = begin + extent + end, dilation * (kernel - 1)
        fits = [start for start in range(0, padded, stride) if start + reach < padded]
        if not fits:
            with pytest.raises(InputError, match=f"at most the padded extent {padded}"):
                window_extents.conv_output_extent(extent, kernel, stride, dilation, (begin, end))
            continue
        got = window_extents.conv_output_extent(extent, kernel, stride, dilation, (begin, end))
        assert got == len(fits)
        ceiled = window_extents.conv_output_extent(extent, kernel, stride, dilation, (begin, end), ceil_mode=True)
        starts = fits + [fits[-1] + stride] * (fits[-1] + reach + 1 < padded)
        assert ceiled == len(starts) - (starts[-1] >= begin + extent)


def test_conv_output_extent_lets_one_window_hang_over_a_short_input() -> None:
    assert window_extents.conv_output_extent(2, 512, 512, ceil_mode=True) == 1
    assert window_extents.conv_output_extent(2, 4, 3, ceil_mode=True) == 1
    with pytest.raises(InputError, match="at most the padded extent 2"):
        window_extents.conv_output_extent(2, 4, 2, ceil_mode=True)
    with pytest.raises(InputError, match="at most the padded extent 2"):
        window_extents.conv_output_extent(2, 512, 512)


def test_conv_output_extent_of_an_empty_axis_is_empty() -> None:
    assert window_extents.conv_output_extent(0, 3) == 0
    assert window_extents.conv_output_extent(0, 1, pads=(1, 1)) == 2


def test_window_pads_same_keeps_ceil_of_extent_over_stride_windows() -> None:
    for extent, kernel, stride, dilation in itertools.product(range(9), (1, 2, 3, 5), (1, 2, 3), (1, 2)):
        sizes = [extent], [kernel], [stride], [dilation]
        ((upper_begin, upper_end),) = window_extents.window_pads(*sizes, None, "SAME_UPPER")
        ((lower_begin, lower_end),) = window_extents.window_pads(*sizes, None, "SAME_LOWER")
        assert (upper_begin, upper_end) == (lower_end, lower_begin)
        assert 0 <= upper_end - upper_begin <= 1
        windows = window_extents.conv_output_extent(extent, kernel, stride, dilation, (upper_begin, upper_end))
        assert windows == -(-extent // stride)


def test_window_pads_pairs_the_attribute_and_drops_it_for_valid() -> None:
    ones = [1, 1]
    assert window_extents.window_pads([5, 5], [3, 3], ones, ones, [1, 2, 3, 4]) == ((1, 3), (2, 4))
    assert window_extents.window_pads([5, 5], [3, 3], ones, ones) == ((0, 0), (0, 0))
    assert window_extents.window_pads([5, 5], [3, 3], ones, ones, [1, 2, 3, 4], "VALID") == ((0, 0), (0, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"auto_pad": "SAME"}, "auto_pad must be one of NOTSET, .*got 'SAME'"),
        ({"pads": [1, 1]}, "pads must hold a begin and an end for each of 2"),
        ({"strides": [1]}, r"strides must hold one entry for each of 2 spatial axes, got \[1\]"),
        ({"strides": [1, 0]}, "strides must hold entries of at least 1"),
        ({"kernel": [3, 3, 3]}, "kernel"),
        ({"dilations": [0, 1]}, "dilations"),
    ],
)
def test_window_pads_refuses_by_name(change: dict[str, object], message: str) -> None:
    legal: dict[str, object] = {"extents": [5, 5], "kernel": [3, 3], "strides": [1, 1], "dilations": [1, 1]}
    with pytest.raises(InputError, match=message):
        window_extents.window_pads(**{**legal, **change})  # type: ignore[arg-type]


def test_conv_transpose_output_undoes_convolution() -> None:
    for extent, kernel, stride, dilation, begin, end in itertools.product(
        range(1, 6), (1, 2, 3), (1, 2, 3), (1, 2), (0, 1), (0, 1)
    ):
        if stride * (extent - 1) + dilation * (kernel - 1) + 1 <= begin + end:
            continue
        (out,), (pads,) = window_extents.conv_transpose_output([extent], [kernel], [stride], [dilation], [begin, end])
        assert pads == (begin, end)
        assert window_extents.conv_output_extent(out, kernel, stride, dilation, pads) == extent


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ((7,), ((0, 0),))),
        ({"output_padding": [1]}, ((8,), ((0, 0),))),
        ({"auto_pad": "SAME_UPPER"}, ((6,), ((0, 1),))),
        ({"auto_pad": "SAME_LOWER"}, ((6,), ((1, 0),))),
        ({"output_shape": [6]}, ((6,), ((1, 0),))),
        ({"output_shape": [6], "pads": [3, 3]}, ((6,), ((1, 0),))),
        ({"output_shape": [6], "output_padding": [1], "auto_pad": "SAME_UPPER"}, ((6,), ((1, 1),))),
        ({"output_shape": [8]}, ((8,), ((0, -1),))),
        ({"auto_pad": "VALID", "pads": [1, 1]}, ((7,), ((0, 0),))),
    ],
)
def test_conv_transpose_output_of_three_by_kernel_three_stride_two(
    options: dict[str, list[int]], expected: object
) -> None:
    assert window_extents.conv_transpose_output([3], [3], [2], [1], **options) == expected  # type: ignore[arg-type]


def test_conv_transpose_output_refuses_pads_that_cut_everything() -> None:
    with pytest.raises(InputError, match="cut more than the output has"):
        window_extents.conv_transpose_output([1], [2], [1], [1], [2, 2])
    with pytest.raises(InputError, match="auto_pad"):
        window_extents.conv_transpose_output([1], [2], [1], [1], auto_pad="same")


def test_window_pads_below_zero_are_refused() -> None:
    with pytest.raises(InputError, match=r"pads must hold entries of 0 or more, got \[1, -1\]"):
        window_extents.window_pads([5], [3], [1], [1], [1, -1])
