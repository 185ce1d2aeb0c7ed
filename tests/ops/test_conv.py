"""Conv and ConvTranspose: all attributes, types and paths against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir import operator as gx_operator
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ops.nn import conv_host
from gpuexec.ops.nn.conv import DTYPES
from gpuexec.ops.nn.conv_depthwise import DTYPES as DEPTHWISE_DTYPES
from gpuexec.ops.nn.conv_depthwise import FORMS
from tests.ops.harness import Case, run_case

Array = np.ndarray[Any, Any]
LARGE = 128 * 340  # windows of as many large tiles as are two on each multiprocessor of the largest device


def make(seed: int, *shape: int, dtype: Any = np.float32) -> Array:
    """Return reproducible content."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def direct_sum(x: Array, w: Array, bias: Array | None, attributes: dict[str, Any]) -> Array:
    """Convolve by the definition, in double, with pads given by begins and ends."""
    rank, group = x.ndim - 2, attributes.get("group", 1)
    strides, dilations = attributes.get("strides", [1] * rank), attributes.get("dilations", [1] * rank)
    pads = attributes.get("pads", [0] * 2 * rank)
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])])
    w = w.astype(np.float64)
    counts = [(e - d * (k - 1) - 1) // s + 1 for e, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilations)]
    y = np.zeros((x.shape[0], w.shape[0], *counts))
    ins, outs = w.shape[1], w.shape[0] // group
    for at in np.ndindex(*w.shape[2:]):
        window = tuple(slice(t * d, t * d + (c - 1) * s + 1, s) for t, d, c, s in zip(at, dilations, counts, strides))
        for g in range(group):
            y[:, g * outs : (g + 1) * outs] += np.einsum(
                "oc,nc...->no...",
                w[(slice(g * outs, (g + 1) * outs), slice(None), *at)],
                x[(slice(None), slice(g * ins, (g + 1) * ins), *window)],
            )
    return y if bias is None else y + bias.astype(np.float64).reshape(-1, *(1,) * rank)


def conv(
    id: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    bias: bool = False,
    dtype: Any = np.float32,
    oracle: str = "onnxruntime",
    opset: int = 22,
    **attributes: Any,
) -> Case:
    """Return a Conv; ``oracle="expected"`` works it out by the definition."""
    a, b, c = make(1, *x, dtype=dtype), make(2, *w, dtype=dtype), make(3, w[0], dtype=dtype) if bias else None
    expected = (direct_sum(a, b, c, attributes).astype(dtype),) if oracle == "expected" else None
    terms = int(np.prod(w[1:])) + 1
    return Case(
        id,
        "Conv",
        (a, b) if c is None else (a, b, c),
        attributes,
        expected=expected,
        oracle=oracle,
        terms=terms,
        opset=opset,
    )


def transpose(
    id: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    bias: bool = False,
    oracle: str = "reference",
    opset: int = 22,
    **attributes: Any,
) -> Case:
    """Return a ConvTranspose."""
    outs = w[1] * attributes.get("group", 1)
    inputs = (make(4, *x), make(5, *w)) + ((make(6, outs),) if bias else ())
    return Case(
        id, "ConvTranspose", inputs, attributes, oracle=oracle, terms=w[0] * int(np.prod(w[2:])) + 1, opset=opset
    )


def transpose_of_type(dtype: Any) -> Case:
    """Return a ConvTranspose of a type, expected from its definition: the transpose of a convolution's matrix."""
    x, w = make(7, 1, 2, 3, 4, dtype=dtype), make(8, 2, 3, 2, 2, dtype=dtype)
    y = np.zeros((1, 3, 6, 8))
    for i, j in np.ndindex(3, 4):
        y[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2] += np.einsum(
            "nc,cokl->nokl", x[:, :, i, j].astype(np.float64), w.astype(np.float64)
        )
    return Case(
        f"transpose_{dtype_row(dtype).name}",
        "ConvTranspose",
        (x, w),
        {"strides": [2, 2]},
        expected=(y.astype(dtype),),
        terms=2,
    )


CASES = [
    *(
        conv(f"conv_{dtype_row(d).name}", (2, 3, 7, 8), (4, 3, 3, 3), True, d, "expected", pads=[1, 1, 1, 1])
        for d in DTYPES
    ),
    *(
        conv(f"depthwise_{dtype_row(d).name}", (2, 3, 7, 8), (3, 1, 3, 3), True, d, "expected", pads=[1] * 4, group=3)
        for d in DTYPES
    ),
    *(
        conv(
            f"depthwise_{extent}_{stride}_{dtype_row(d).name}",
            (2, 3, 9, 13),
            (3, 1, extent, extent),
            True,
            d,
            "expected",
            pads=[extent // 2] * 4,
            strides=[stride] * 2,
            group=3,
        )
        for extent, stride in FORMS[1:]
        for d in DEPTHWISE_DTYPES
    ),
    *(
        conv(f"single_out_{dtype_row(d).name}", (2, 4, 5, 6), (2, 2, 3, 3), True, d, "expected", group=2)
        for d in DTYPES
    ),
    conv("plain", (1, 3, 6, 7), (4, 3, 3, 2)),
    conv("bias", (1, 3, 6, 7), (4, 3, 3, 2), True),
    conv("asymmetric", (1, 3, 6, 7), (4, 3, 3, 3), True, pads=[2, 0, 1, 3]),
    conv("strided", (2, 3, 9, 11), (4, 3, 3, 3), strides=[2, 3], pads=[1, 1, 1, 1]),
    conv("dilated", (1, 3, 9, 11), (4, 3, 3, 3), dilations=[2, 3]),
    conv("grouped", (2, 6, 5, 6), (8, 3, 3, 3), True, group=2, pads=[1, 1, 1, 1]),
    conv("grouped_single_out", (2, 6, 5, 6), (2, 3, 3, 3), True, group=2, pads=[1, 1, 1, 1]),
    conv("depthwise_multiple", (2, 3, 9, 8), (6, 1, 3, 3), True, group=3, strides=[2, 2], pads=[1, 1, 1, 1]),
    conv("depthwise_many", (1, 2, 5, 6), (8, 1, 3, 3), True, group=2),
    conv("depthwise_that_leaves_rows", (2, 6, 8, 8), (6, 1, 3, 3), group=6, strides=[2, 2]),
    conv("depthwise_dilated", (1, 3, 9, 9), (3, 1, 3, 3), group=3, dilations=[2, 2], pads=[2, 2, 2, 2]),
    *(
        conv(
            f"depthwise_dilated_{dtype_row(d).name}",
            (1, 3, 9, 9),
            (3, 1, 3, 3),
            False,
            d,
            "expected",
            group=3,
            dilations=[2, 2],
        )
        for d in DEPTHWISE_DTYPES[1:]
    ),
    conv("single_channel", (2, 1, 6, 6), (5, 1, 3, 3), True),
    conv("pointwise", (2, 5, 4, 3), (6, 5, 1, 1), True),
    conv("pointwise_grouped", (2, 6, 4, 3), (4, 3, 1, 1), group=2),
    conv("pointwise_strided", (2, 5, 5, 6), (6, 5, 1, 1), strides=[2, 2]),
    conv("pointwise_padded", (1, 2, 3, 3), (2, 2, 1, 1), True, pads=[1, 0, 0, 1]),
    conv("pointwise_strided_padded", (1, 2, 3, 3), (2, 2, 1, 1), True, pads=[0, 0, 2, 2], strides=[2, 2]),
    conv("beyond_a_tile", (2, 3, 9, 9), (67, 3, 3, 3), True),
    conv("channels_in_blocks", (2, 24, 7, 6), (5, 24, 3, 3), True, pads=[1] * 4),
    conv("blocks_and_groups", (2, 48, 6, 6), (64, 24, 3, 3), True, pads=[1] * 4, group=2),
    conv("slices", (1, 64, 7, 7), (65, 64, 3, 3), True, pads=[1] * 4),
    conv("many_taps", (1, 2, 13, 12), (3, 2, 12, 11), True),
    conv("full_table_of_taps", (1, 4, 17, 11), (5, 4, 16, 8), True, strides=[1, 2], pads=[1, 0, 0, 1]),
    conv("far_taps", (1, 2, 3, 40), (3, 2, 1, 33)),
    conv("positions", (3, 20, 4, 6), (7, 20, 1, 1), True),
    conv("positions_of_odd_rows", (3, 20, 3, 5), (7, 20, 1, 1), True),
    conv("positions_strided", (2, 8, 5, 6), (6, 8, 1, 1), strides=[2, 2], pads=[1, 0, 2, 1]),
    conv("positions_in_groups", (2, 16, 2, 6), (12, 8, 1, 1), True, group=2),
    # Many tiles whose sums are short: the large tile.
    conv("large_positions", (1, 4, LARGE), (65, 4, 1), oracle="expected"),
    conv("large_blocks", (1, 8, LARGE + 1), (65, 8, 2), oracle="expected"),
    conv("large_taps", (1, 2, LARGE + 1), (65, 2, 2), oracle="expected"),
    conv("whole_tiles", (1, 4, 8, 8), (128, 2, 1, 1), group=2),
    conv("windows_over_two_images", (3, 2, 5, 5), (3, 2, 3, 3)),
    conv("one_axis", (2, 3, 9), (4, 3, 3), True, strides=[2], pads=[1, 2]),
    conv("one_axis_depthwise", (2, 3, 9), (3, 1, 4), group=3, pads=[3, 0]),
    conv("three_axes", (1, 2, 4, 5, 6), (3, 2, 2, 3, 2), True, pads=[1, 0, 1, 0, 1, 1], strides=[1, 2, 1]),
    conv("three_axes_depthwise", (1, 2, 4, 5, 6), (2, 1, 2, 3, 2), group=2, dilations=[2, 1, 2]),
    *(
        conv(
            f"{auto.lower()}_{size}_{stride}",
            (1, 2, size, size + 1),
            (3, 2, 3, 4),
            auto_pad=auto,
            strides=[stride, stride],
        )
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for size, stride in ((6, 1), (7, 2), (8, 3))
    ),
    conv("same_upper_dilated", (1, 2, 8, 9), (3, 2, 3, 3), oracle="expected", pads=[2, 2, 2, 2], dilations=[2, 2]),
    conv("kernel_shape_given", (1, 2, 5, 5), (3, 2, 3, 3), kernel_shape=[3, 3]),
    conv("opset_7", (1, 2, 5, 5), (3, 2, 3, 3), opset=7, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    conv("no_images", (0, 2, 5, 5), (3, 2, 3, 3), oracle="expected"),
    conv("no_channels", (1, 0, 5, 5), (3, 0, 3, 3), True, oracle="expected"),
    *(transpose_of_type(d) for d in DTYPES),
    transpose("transpose", (1, 2, 3, 4), (2, 3, 3, 3), True),
    transpose("phases", (2, 5, 3, 4), (5, 8, 3, 3), True, strides=[2, 2]),
    transpose("phases_of_blocks", (1, 16, 3, 4), (16, 8, 4, 4), True, strides=[2, 2], pads=[1, 1, 1, 1]),
    transpose("phases_dilated", (1, 3, 3, 4), (3, 9, 3, 2), dilations=[3, 2], strides=[2, 3]),
    transpose("phases_grouped", (2, 6, 3, 3), (6, 10, 3, 3), True, "onnxruntime", group=2, strides=[2, 3]),
    transpose("phases_without_taps", (1, 3, 3, 3), (3, 8, 1, 2), True, "onnxruntime", strides=[2, 3]),
    transpose("phases_three_axes", (1, 2, 3, 2, 3), (2, 8, 2, 3, 2), True, strides=[1, 2, 2]),
    transpose("too_many_phases", (1, 2, 3, 3), (2, 8, 5, 5), True, strides=[5, 5]),
    transpose("transpose_strided", (2, 2, 3, 4), (2, 3, 3, 2), True, strides=[2, 3]),
    transpose("transpose_padded", (1, 2, 4, 4), (2, 3, 3, 3), strides=[2, 2], pads=[1, 0, 0, 1]),
    transpose(
        "transpose_output_padding", (1, 2, 4, 4), (2, 3, 3, 3), strides=[3, 2], output_padding=[2, 1], pads=[1, 1, 1, 1]
    ),
    transpose("transpose_dilated", (1, 2, 3, 3), (2, 3, 2, 2), dilations=[2, 3]),
    transpose("transpose_grouped", (2, 4, 3, 3), (4, 2, 3, 3), True, "onnxruntime", group=2, strides=[2, 2]),
    transpose(
        "transpose_depthwise",
        (1, 3, 4, 3),
        (3, 1, 3, 3),
        True,
        "onnxruntime",
        group=3,
        strides=[2, 2],
        pads=[1, 1, 1, 1],
    ),
    transpose(
        "transpose_output_shape",
        (1, 1, 3, 3),
        (1, 2, 3, 3),
        output_shape=[10, 8],
        strides=[3, 2],
        output_padding=[1, 1],
    ),
    transpose(
        "transpose_output_shape_upper",
        (1, 2, 3, 3),
        (2, 2, 4, 4),
        False,
        "onnxruntime",
        output_shape=[5, 7],
        strides=[2, 2],
        auto_pad="SAME_UPPER",
    ),
    transpose("transpose_same_upper", (1, 1, 3, 3), (1, 2, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    transpose(
        "transpose_same_lower", (1, 1, 3, 3), (1, 2, 4, 4), False, "onnxruntime", auto_pad="SAME_LOWER", strides=[2, 2]
    ),
    transpose("transpose_valid", (1, 1, 3, 3), (1, 2, 3, 3), auto_pad="VALID", strides=[2, 2]),
    transpose("transpose_one_axis", (1, 2, 5), (2, 3, 3), True, strides=[2]),
    transpose("transpose_three_axes", (1, 2, 3, 2, 3), (2, 2, 2, 3, 2), True, strides=[1, 2, 2]),
    transpose("transpose_stride_beyond_kernel", (1, 1, 3, 3), (1, 1, 1, 2), True, "onnxruntime", strides=[2, 3]),
    transpose("transpose_opset_7", (1, 2, 3, 4), (2, 3, 3, 3), opset=7, kernel_shape=[3, 3]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(checks: str, case: Case) -> None:
    """Each case passes all checks of the harness."""
    run_case(case, checks)


def last_channels(seed: int) -> Array:
    """Return channels that lie last, rows backwards, every second column."""
    return make(seed, 2, 8, 9, 4).transpose(0, 3, 1, 2)[:, :, ::-1, ::2]


VIEWS = [
    Case("view", "Conv", (last_channels(1), make(2, 5, 4, 3, 3)), {"pads": [1, 1, 1, 1]}, terms=36),
    Case(
        "view_depthwise", "Conv", (last_channels(1), make(2, 4, 1, 3, 3)), {"pads": [1, 1, 1, 1], "group": 4}, terms=9
    ),
    Case("view_transpose", "ConvTranspose", (last_channels(1), make(2, 4, 3, 3, 3)), {"strides": [2, 2]}, terms=36),
    Case("view_of_weight", "Conv", (make(1, 1, 4, 6, 6), make(2, 3, 3, 4, 5).T[..., :3], make(3, 10)[::2]), terms=36),
]


@pytest.mark.parametrize("case", VIEWS, ids=lambda case: case.id)
def test_views(checks: str, case: Case) -> None:
    """Inputs keep their strides."""
    run_case(case, checks)


@pytest.mark.parametrize("piece", [1, 100, 1000])
def test_pieces_do_not_change_the_result(checks: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and images may be cut anywhere."""
    monkeypatch.setattr(conv_host, "_PIECE", piece)
    run_case(conv("pieces", (3, 4, 9, 7), (4, 2, 3, 3), True, group=2, pads=[1, 1, 1, 1], strides=[2, 1]), checks)
    run_case(
        conv("pieces_depthwise", (3, 4, 9, 7), (4, 1, 3, 3), True, group=4, pads=[1, 1, 1, 1], strides=[2, 1]), checks
    )
    run_case(conv("pieces_three_axes", (2, 2, 4, 5, 6), (3, 2, 2, 3, 2), True, pads=[1, 0, 1, 0, 1, 1]), checks)


BY_ROWS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "shared": ((33, 24, 6, 5), (70, 24, 3, 3), {"pads": [1, 1, 1, 1]}),
    "one axis": ((20, 9, 15), (5, 9, 4), {"pads": [1, 2], "strides": [2]}),
    "three axes": ((12, 8, 3, 4, 4), (3, 8, 2, 3, 2), {"pads": [1, 0, 1, 0, 1, 1], "strides": [1, 1, 2]}),
    "dilated": ((9, 8, 9, 7), (6, 8, 2, 3), {"dilations": [3, 2], "pads": [0, 2, 1, 0]}),
    "input that ends behind windows": ((40, 10, 5, 6), (4, 10, 2, 2), {"strides": [2, 4]}),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", BY_ROWS)
def test_patches_of_a_batch_of_small_images_are_rows(name: str, dtype: Any) -> None:
    x, w, attributes = BY_ROWS[name]
    op: Any = gx_operator.build("Conv", attributes)
    windows = op.windows(x, w)
    assert conv_host._is_by_rows(x, w, windows, 1)
    each, together = conv_host._divide_rows(x[0], w, windows)
    assert (together > 1) == (name == "shared") and together * each >= min(x[0], 2)
    run_case(conv(name, x, w, True, dtype, "expected", **attributes), "host")


def test_rows_of_several_pieces_and_single_images_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = make(1, 50, 16, 8, 8), make(2, 20, 16, 3, 3)
    op = gx_operator.build("Conv", {"pads": [1, 1, 1, 1]})
    alone = np.concatenate([np.asarray(op.compute(image[None], w)[0]) for image in x])
    for piece in (1 << 18, 1 << 16, 1 << 15):
        monkeypatch.setattr(conv_host, "_PIECE", piece)
        np.testing.assert_allclose(np.asarray(op.compute(x, w)[0]), alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("group", [1, 4])
def test_strided_input(group: int) -> None:
    """Channels that lie last, as a transposed view has them, give the bits of a dense copy."""
    x, w = make(1, 2, 6, 5, 4).transpose(0, 3, 1, 2), make(2, 4, 4 // group, 3, 3)
    op = gx_operator.build("Conv", {"group": group})
    np.testing.assert_array_equal(op.compute(x, w)[0], op.compute(np.ascontiguousarray(x), w)[0])


def test_negative_padding_of_a_transpose(checks: str) -> None:
    """An output_shape beyond what the input reaches leaves zeros (and the bias) around it."""
    x, w = np.ones((1, 1, 2), np.float32), np.ones((1, 1, 1), np.float32)
    expected = (np.array([[[0, 1, 1, 0, 0]]], np.float32),)
    run_case(
        Case("wide", "ConvTranspose", (x, w), {"output_shape": [5]}, expected=expected, oracle="expected", terms=1),
        checks,
    )


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "words"),
    [
        ("Conv", [(1, 4, 5, 5), (4, 3, 3, 3)], {}, "3 input channels"),
        ("Conv", [(1, 4, 5, 5), (3, 2, 3, 3)], {"group": 2}, "group=2"),
        ("Conv", [(1, 3, 5), (4, 3, 3, 3)], {}, "equal rank"),
        ("Conv", [(1, 3), (4, 3)], {}, "spatial axes"),
        ("Conv", [(1, 3, 5, 5), (4, 3, 3, 3), (5,)], {}, r"bias of \[4\]"),
        ("Conv", [(1, 3, 5, 5), (4, 3, 3, 3)], {"kernel_shape": [2, 2]}, "kernel_shape"),
        ("Conv", [(1, 3, 2, 5), (4, 3, 3, 3)], {}, "padded extent"),
        ("Conv", [(1, 3, 5, 5), (4, 3, 3, 3)], {"strides": [1]}, "strides"),
        ("Conv", [(1, 3, 5, 5), (4, 3, 3, 3)], {"auto_pad": "SAME"}, "auto_pad"),
        ("ConvTranspose", [(1, 3, 5, 5), (4, 3, 3, 3)], {}, "input channels"),
        ("ConvTranspose", [(1, 3, 5, 5), (3, 4, 3, 3), (3,)], {}, r"bias of \[4\]"),
    ],
)
def test_refuses(name: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any], words: str) -> None:
    """Inputs that do not fit are refused, with what was expected."""
    op = gx_operator.build(name, attributes)
    with pytest.raises(InputError, match=words):
        op.infer(*(TensorSpec(shape, np.dtype(np.float32)) for shape in shapes))


def test_refuses_integers_and_mixed_types() -> None:
    """Conv is of floats, all of one type."""
    op = gx_operator.build("Conv", {})
    for first, second in ((np.int32, np.int32), (np.float32, BFLOAT16)):
        with pytest.raises(InputError, match="one type"):
            op.infer(TensorSpec((1, 1, 3), np.dtype(first)), TensorSpec((1, 1, 3), np.dtype(second)))
