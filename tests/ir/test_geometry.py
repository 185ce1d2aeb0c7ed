"""Shape arithmetic against NumPy, onnx's own examples, and rules written out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir import geometry

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

extents = st.integers(0, 4)
shapes = st.lists(extents, max_size=4).map(tuple)


def strides_of(array: np.ndarray) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """A view of any kind: permuted, sliced forwards and backwards, stretched."""
    shape = draw(shapes)
    array = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    for axis in range(array.ndim):
        step = draw(st.sampled_from([1, 1, 1, 2, -1]))
        array = array[(slice(None),) * axis + (slice(None, None, step),)]
    lead = draw(st.lists(st.integers(1, 3), max_size=1))
    return np.broadcast_to(array, (*lead, *array.shape))


def test_ceil_div_and_round_up_of_negative_and_positive_values() -> None:
    assert [geometry.ceil_div(n, 4) for n in (-5, -4, 0, 1, 4, 5)] == [-1, -1, 0, 1, 1, 2]
    assert [geometry.round_up(n, 256) for n in (0, 1, 256, 257)] == [0, 256, 256, 512]


def test_element_count_of_scalar_is_one() -> None:
    assert geometry.element_count(()) == 1
    assert geometry.element_count((2, 0, 3)) == 0


def test_normalize_axis_counts_from_the_back() -> None:
    assert [geometry.normalize_axis(axis, 3) for axis in range(-3, 3)] == [0, 1, 2, 0, 1, 2]
    assert geometry.normalize_axis(3, 3, inclusive=True) == 3
    assert geometry.normalize_axes((-1, 0), 3) == (2, 0)


@pytest.mark.parametrize(("axis", "rank"), [(3, 3), (-4, 3), (0, 0), (-1, 0)])
def test_normalize_axis_refuses_what_is_out_of_range(axis: int, rank: int) -> None:
    with pytest.raises(InputError, match=f"split_axis .*rank {rank}: expected .*got {axis}"):
        geometry.normalize_axis(axis, rank, name="split_axis")


def test_normalize_axes_refuses_an_axis_named_twice() -> None:
    with pytest.raises(InputError, match="once"):
        geometry.normalize_axes((0, -3), 3)


def test_permute_reorders_and_refuses_what_is_no_permutation() -> None:
    assert geometry.permute((5, 6, 7), (2, 0, 1)) == (7, 5, 6)
    assert geometry.permute((), ()) == ()
    for wrong in ((0, 0, 1), (0, 1), (0, 1, 3), (-1, 0, 1)):
        with pytest.raises(InputError, match="perm"):
            geometry.permute((5, 6, 7), wrong)


@pytest.mark.parametrize(
    ("extent", "count", "sizes"),
    [(6, 3, (2, 2, 2)), (7, 3, (3, 3, 1)), (7, 4, (2, 2, 2, 1)), (5, 4, (2, 2, 1, 0)), (0, 2, (0, 0)), (1, 1, (1,))],
)
def test_split_at_gives_the_last_parts_less(extent: int, count: int, sizes: tuple[int, ...]) -> None:
    assert geometry.split_at(extent, count) == sizes


@pytest.mark.parametrize("count", [0, 2**16 + 1, 2**62])
def test_split_at_refuses_what_no_node_has(count: int) -> None:
    with pytest.raises(InputError, match=f"num_outputs must be from 1 to 65536, got {count}"):
        geometry.split_at(4, count)


def test_slice_axis_agrees_with_python_slices() -> None:
    bounds = [INT64_MIN, -7, -6, -5, -2, -1, 0, 1, 2, 5, 6, 7, INT64_MAX]
    for extent, start, stop, step in itertools.product((0, 1, 5), bounds, bounds, (1, 2, 7, -1, -2, -7)):
        # ONNX clamps the start of a backward slice to the first element, where Python ends up before it.
        expected = list(range(extent))[max(start, -extent) if extent else start : stop : step]
        first, count, taken = geometry.slice_axis(start, stop, step, extent)
        assert [first + taken * index for index in range(count)] == expected, (extent, start, stop, step)


@pytest.mark.parametrize("step", [INT64_MIN, INT64_MAX])
def test_slice_axis_with_a_huge_step_takes_one_element_by_step_one(step: int) -> None:
    start, stop = (0, INT64_MAX) if step > 0 else (INT64_MAX, INT64_MIN)
    assert geometry.slice_axis(start, stop, step, 5) == ((0 if step > 0 else 4), 1, 1)


def test_slice_axis_refuses_step_zero() -> None:
    with pytest.raises(InputError, match="steps"):
        geometry.slice_axis(0, 1, 0, 4)


@given(st.lists(st.lists(st.sampled_from([0, 1, 1, 2, 3]), max_size=4).map(tuple), max_size=3))
def test_broadcast_agrees_with_numpy(operands: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*operands)
    except ValueError:
        with pytest.raises(InputError, match="do not broadcast"):
            geometry.broadcast(*operands)
    else:
        assert geometry.broadcast(*operands) == expected


def test_broadcast_names_the_axis_and_both_extents() -> None:
    with pytest.raises(InputError, match=r"axis -2, got 3 and 2 \(shapes \[3, 4\], \[5, 2, 4\]\)"):
        geometry.broadcast((3, 4), (5, 2, 4))


@given(views(), st.lists(st.integers(0, 3), max_size=2), st.data())
def test_broadcast_strides_agrees_with_numpy(array: np.ndarray, lead: list[int], data: st.DataObject) -> None:
    to = (*lead, *(data.draw(st.integers(0, 3)) if extent == 1 else extent for extent in array.shape))
    expected = np.broadcast_to(array, to)
    strides = geometry.broadcast_strides(array.shape, strides_of(array), to)
    assert [s for s, n in zip(strides, to, strict=True) if n > 1] == [
        s for s, n in zip(strides_of(expected), to, strict=True) if n > 1
    ]


@pytest.mark.parametrize(("shape", "to"), [((2,), (3,)), ((2, 3), (3,)), ((3,), (1,)), ((0,), (1,)), ((2,), (0,))])
def test_broadcast_strides_refuses_what_does_not_stretch(shape: tuple[int, ...], to: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="does not broadcast"):
        geometry.broadcast_strides(shape, geometry.contiguous_strides(shape), to)


def test_contiguous_strides_counts_an_empty_axis_as_one() -> None:
    assert geometry.contiguous_strides(()) == ()
    assert geometry.contiguous_strides((2, 3, 4)) == (12, 4, 1)
    assert geometry.contiguous_strides((2, 0, 4)) == (4, 4, 1)


@given(views())
def test_is_contiguous_agrees_with_numpy(array: np.ndarray) -> None:
    assert geometry.is_contiguous(array.shape, strides_of(array)) == array.flags.c_contiguous


def test_is_contiguous_ignores_strides_of_axes_of_one_and_of_empty_tensors() -> None:
    assert geometry.is_contiguous((1, 3, 1), (77, 1, -5))
    assert geometry.is_contiguous((2, 0), (-9, 13))
    assert not geometry.is_contiguous((2, 3), (1, 2))


@given(views())
def test_span_and_max_offset_agree_with_the_addresses_touched(array: np.ndarray) -> None:
    strides = strides_of(array)
    touched = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*array.shape)]
    expected = (min(touched), max(touched) + 1) if touched else (0, 0)
    assert geometry.span(array.shape, strides) == expected
    assert geometry.max_offset(array.shape, strides) == max(0, expected[1] - expected[0] - 1)


@given(views())
def test_coalesce_walks_the_same_elements_in_the_same_order(array: np.ndarray) -> None:
    other = geometry.contiguous_strides(array.shape)
    shape, all_strides = geometry.coalesce(array.shape, (strides_of(array), other))
    assert 1 not in shape and len(shape) <= array.ndim
    for before, after in zip((strides_of(array), other), all_strides, strict=True):
        walk = [sum(i * s for i, s in zip(index, before, strict=True)) for index in np.ndindex(*array.shape)]
        assert walk == [sum(i * s for i, s in zip(index, after, strict=True)) for index in np.ndindex(*shape)]


@pytest.mark.parametrize(
    ("shape", "operands", "expected"),
    [
        ((), ((),), ((), ((),))),
        ((1, 1), ((4, 9),), ((), ((),))),
        ((2, 3, 4), ((12, 4, 1), (12, 4, 1)), ((24,), ((1,), (1,)))),
        ((2, 3, 4), ((12, 4, 1), (0, 0, 1)), ((6, 4), ((4, 1), (0, 1)))),
        ((2, 3, 4), ((12, 4, 1), (0, 0, 0)), ((24,), ((1,), (0,)))),
        ((2, 3, 4), ((12, 4, 1), (0, 1, 0)), ((2, 3, 4), ((12, 4, 1), (0, 1, 0)))),
        ((2, 1, 4), ((4, 4, 1), (4, 99, 1)), ((8,), ((1,), (1,)))),
        ((2, 3), ((-3, -1),), ((6,), ((-1,),))),
    ],
)
def test_coalesce_merges_exactly_what_every_operand_walks_as_one(
    shape: tuple[int, ...], operands: tuple[tuple[int, ...], ...], expected: object
) -> None:
    assert geometry.coalesce(shape, operands) == expected


@settings(max_examples=500)
@given(views(), st.data())
def test_try_view_gives_strides_exactly_where_numpy_needs_no_copy(array: np.ndarray, data: st.DataObject) -> None:
    new_shape = _factor(array.size, data)
    strides = geometry.try_view(array.shape, strides_of(array), new_shape)
    reshaped = array.reshape(new_shape)
    assert (strides is not None) == (array.size == 0 or np.shares_memory(array, reshaped))
    if strides is not None and array.size:
        viewed = np.lib.stride_tricks.as_strided(array, new_shape, [s * array.itemsize for s in strides])
        assert np.array_equal(viewed, reshaped)


def _factor(size: int, data: st.DataObject) -> tuple[int, ...]:
    if size == 0:
        return data.draw(st.sampled_from([(0,), (3, 0), (0, 1, 2)]))
    shape = []
    while size > 1:
        shape.append(data.draw(st.sampled_from([f for f in range(2, size + 1) if size % f == 0])))
        size //= shape[-1]
    for _ in range(data.draw(st.integers(0, 2))):
        shape.insert(data.draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


@pytest.mark.parametrize(
    ("shape", "target", "allowzero", "expected"),
    [
        ((2, 3, 4), (4, 2, 3), False, (4, 2, 3)),
        ((2, 3, 4), (2, -1), False, (2, 12)),
        ((2, 3, 4), (0, -1), False, (2, 12)),
        ((2, 3, 4), (-1, 0), False, (8, 3)),
        ((2, 3, 4), (2, 0, 1, -1), False, (2, 3, 1, 4)),
        ((1, 1), (), False, ()),
        ((), (1, -1), False, (1, 1)),
        ((0, 3, 4), (3, 4, 0), True, (3, 4, 0)),
        ((0, 3, 4), (0, -1), False, (0, 12)),
        ((0, 3), (-1,), False, (0,)),
        ((2, 0), (3, -1), False, (3, 0)),
    ],
)
def test_reshape_shape_resolves_zero_and_minus_one(
    shape: tuple[int, ...], target: tuple[int, ...], allowzero: bool, expected: tuple[int, ...]
) -> None:
    assert geometry.reshape_shape(shape, target, allowzero) == expected


@pytest.mark.parametrize(
    ("shape", "target", "allowzero", "message"),
    [
        ((2, 3), (-1, -1), False, "at most one -1"),
        ((2, 3), (-2, 3), False, "at most one -1"),
        ((2, 3), (4, -1), False, "6 elements to divide by 4"),
        ((2, 3), (2, 4), False, "expects 6 elements, got 8"),
        ((2, 3), (1, 6, 0), False, "copies axis 2"),
        ((0, 3), (0, -1), True, "allowzero"),
        ((2, 3), (0, 3), True, "expects 6 elements, got 0"),
    ],
)
def test_reshape_shape_refuses(shape: tuple[int, ...], target: tuple[int, ...], allowzero: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        geometry.reshape_shape(shape, target, allowzero)
