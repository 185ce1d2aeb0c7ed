"""Windows over an input: taps and counts of `Windows`, against counting one by one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ops.lib.windows import Windows, resolve_windows


@st.composite
def windows(draw: st.DrawFn) -> Windows:
    """Return windows over one axis."""
    extent, kernel, stride, dilation = (draw(st.integers(1, top)) for top in (9, 4, 4, 3))
    pads = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    try:
        return resolve_windows((extent,), (kernel,), (stride,), (dilation,), pads, "NOTSET", draw(st.booleans()))
    except InputError:
        return resolve_windows((extent,), (1,), (stride,), (dilation,), pads, "NOTSET")


@given(windows())
def test_seen_pairs_each_window_with_the_position_its_tap_has(w: Windows) -> None:
    expected = {
        (tap, window, window * w.strides[0] + tap * w.dilations[0] - w.begins[0])
        for tap in range(w.kernel[0])
        for window in range(w.counts[0])
        if 0 <= window * w.strides[0] + tap * w.dilations[0] - w.begins[0] < w.extents[0]
    }
    got = set()
    for tap, (counted,), (positions,) in w.seen():
        members = range(*counted.indices(w.counts[0])), range(*positions.indices(w.extents[0]))
        assert len(members[0]) == len(members[1]) > 0
        got |= {(tap, window, position) for window, position in zip(*members)}
    assert got == expected


@given(windows())
def test_taps_inside_are_counted_with_and_without_padding(w: Windows) -> None:
    for with_padding in (False, True):
        low = -w.begins[0] if with_padding else 0
        high = w.extents[0] + (w.ends[0] if with_padding else 0)
        taps = [
            [o * w.strides[0] + t * w.dilations[0] - w.begins[0] for t in range(w.kernel[0])]
            for o in range(w.counts[0])
        ]
        assert w.count_inside(0, with_padding=with_padding) == [sum(low <= p < high for p in row) for row in taps]


def test_taps_of_several_axes_are_numbered_in_row_major_order() -> None:
    w = resolve_windows((3, 3), (2, 3), (), (), (), "NOTSET")
    assert [tap for tap, _, _ in w.seen()] == list(range(6))
    padded = resolve_windows((1, 1), (3, 1), (), (), (1, 0, 1, 0), "NOTSET")
    assert [tap for tap, _, _ in padded.seen()] == [1]  # taps 0 and 2 see padding alone


@given(windows(), st.integers(0, 40))
def test_taps_behind_the_padded_input_count_for_nothing(w: Windows, more: int) -> None:
    long = replace(w, kernel=(w.kernel[0] + more,))
    fewer = long.drop_taps_behind()
    assert fewer.kernel[0] <= max(1, w.extents[0] + w.begins[0] + w.ends[0])
    assert list(fewer.seen_along(0)) == list(long.seen_along(0))
    for with_padding in (False, True):
        assert fewer.count_inside(0, with_padding=with_padding) == long.count_inside(0, with_padding=with_padding)
