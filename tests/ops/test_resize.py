"""Resize and Upsample: every mode, every way to give the size, old opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir import operator as gx_operator
from gpuexec.ir.spec import BFLOAT16, COMPUTED, TensorSpec
from gpuexec.ops.vision.resize import BLENDED
from gpuexec.ops.vision.resize_tables import COORDINATES
from tests.ops.harness import Case, expect, run_case

Array = np.ndarray[Any, Any]


def make(seed: int, *shape: int, dtype: Any = np.float32) -> Array:
    """Return reproducible content."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -60, 120, shape).astype(dtype)
    return (
        rng.standard_normal(shape).astype(np.float32).astype(dtype)
        if kind != "b"
        else rng.integers(0, 2, shape).astype(dtype)
    )


def resize(
    id: str,
    shape: tuple[int, ...],
    scales: list[float] | None = None,
    sizes: list[int] | None = None,
    roi: list[float] | None = None,
    dtype: Any = np.float32,
    opset: int = 19,
    oracle: str = "reference",
    terms: int = 16,
    **attributes: Any,
) -> Case:
    """Return a Resize of opset 11 or newer."""
    x = make(1, *shape, dtype=dtype)
    inputs: list[Array | None] = [x, None if roi is None else np.array(roi, np.float32)]
    inputs += [None if scales is None else np.array(scales, np.float32)]
    inputs += [] if sizes is None else [np.array(sizes, np.int64)]
    if dtype == BFLOAT16:
        wide = Case(id, "Resize", (x.astype(np.float32), *inputs[1:]), attributes, opset=opset)
        answer = (expect(wide)[0].astype(BFLOAT16),)
        return Case(id, "Resize", tuple(inputs), attributes, const=(1, 2, 3), expected=answer, opset=opset, terms=terms)
    return Case(id, "Resize", tuple(inputs), attributes, const=(1, 2, 3), oracle=oracle, opset=opset, terms=terms)


ROIS = {"tf_crop_and_resize": [0.0, 0.0, 0.2, 0.1, 1.0, 1.0, 0.8, 0.9]}
HALF = {"coordinate_transformation_mode": "half_pixel"}
CASES = [
    *(
        resize(
            f"{mode}_{name}_{direction}",
            (1, 2, 5, 7),
            scales,
            roi=ROIS.get(name),
            # The reference goes by a length that is no whole number.
            oracle="onnxruntime" if name == "tf_crop_and_resize" else "reference",
            mode=mode,
            coordinate_transformation_mode=name,
        )
        for mode in ("nearest", "linear", "cubic")
        for name in COORDINATES
        if name != "tf_half_pixel_for_nn"
        for direction, scales in (("up", [1, 1, 2.0, 1.7]), ("down", [1, 1, 0.7, 0.45]))
    ),
    *(
        resize(
            f"{mode}_{name}_sizes",
            (1, 2, 5, 7),
            None,
            [1, 2, 8, 3],
            ROIS.get(name),
            mode=mode,
            coordinate_transformation_mode=name,
        )
        for mode in ("nearest", "linear", "cubic")
        for name in ("half_pixel", "align_corners", "tf_crop_and_resize", "pytorch_half_pixel")
    ),
    *(
        resize(
            f"{nearest}_{name}",
            (1, 1, 4, 6),
            [1, 1, 1.5, 0.75],
            nearest_mode=nearest,
            coordinate_transformation_mode=name,
        )
        for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        for name in ("half_pixel", "asymmetric", "align_corners")
    ),
    Case(
        "nothing_half_pixel_symmetric",
        "Resize",
        (np.zeros((1, 2, 0, 7), np.float32), None, np.array([1, 1, 2, 0.6], np.float32)),
        {"coordinate_transformation_mode": "half_pixel_symmetric"},
        const=(2,),
        expected=(np.zeros((1, 2, 0, 4), np.float32),),
    ),
    *(
        resize(f"antialias_{mode}_{i}", (1, 1, 9, 12), s, mode=mode, antialias=1, terms=400)
        for mode in ("linear", "cubic")
        for i, s in enumerate(([1, 1, 0.3, 0.45], [1, 1, 2, 0.5]))
    ),
    resize(
        "antialias_exclude_outside",
        (1, 1, 9, 12),
        [1, 1, 0.4, 0.6],
        mode="cubic",
        antialias=1,
        exclude_outside=1,
        terms=400,
    ),
    resize("exclude_outside", (1, 1, 5, 6), [1, 1, 1.6, 0.6], mode="cubic", exclude_outside=1),
    resize("cubic_coefficient", (1, 1, 5, 6), [1, 1, 1.6, 0.6], mode="cubic", cubic_coeff_a=-0.5),
    resize(
        "extrapolated",
        (1, 1, 4, 5),
        None,
        [1, 1, 5, 6],
        [0, 0, -0.35, 0.6, 1, 1, 1.2, 1.7],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=10.0,
    ),
    resize(
        "extrapolated_nearest",
        (1, 1, 4, 5),
        None,
        [1, 1, 5, 6],
        [0, 0, -0.35, 0.6, 1, 1, 1.2, 1.7],
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=10.0,
    ),
    resize(
        "crop_to_one",
        (1, 1, 4, 5),
        None,
        [1, 1, 1, 1],
        [0, 0, 0.2, 0.1, 1, 1, 0.6, 0.9],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
    *(
        resize(
            f"{mode}_{name}_to_one_of_{scale}",
            (1, 1, 4, 5),
            [1, 1, 0.5, scale],
            roi=ROIS.get(name),
            oracle="onnxruntime",
            mode=mode,
            coordinate_transformation_mode=name,
        )
        for mode in ("nearest", "linear", "cubic")
        for name in ("tf_crop_and_resize", "pytorch_half_pixel")
        for scale in (0.2, 0.3)
    ),
    resize("to_one", (1, 1, 4, 5), None, [1, 1, 1, 1], mode="linear", coordinate_transformation_mode="align_corners"),
    *(
        resize(f"nearest_{row.name}", (1, 2, 3, 4), [1, 1, 2, 1.5], dtype=row.numpy)
        for row in COMPUTED
        if row.kind != "bool"
    ),
    *(resize(f"linear_{d}", (1, 2, 3, 4), [1, 1, 2, 0.75], dtype=d, mode="linear") for d in BLENDED),
    *(
        resize(f"cubic_{d}", (1, 2, 3, 4), [1, 1, 2, 1.5], dtype=np.dtype(d), mode="cubic")
        for d in ("uint8", "int8", "int64")
    ),
    resize("one_axis", (6,), [1.5], mode="linear"),
    resize("three_axes", (1, 1, 3, 4, 5), [1, 1, 2, 1.5, 0.6], mode="linear", terms=64),
    resize("four_axes", (2, 3, 4, 5), [2, 1.5, 0.5, 1.2], mode="linear", terms=128),
    resize("channels_last", (1, 3, 4, 5), [1, 2, 1.5, 1], mode="linear"),
    resize("axes", (1, 2, 4, 5), [2, 0.6], axes=[2, 3], mode="linear", opset=18),
    resize("axes_swapped", (1, 2, 4, 5), [0.6, 2], axes=[3, 2], mode="linear"),
    resize("axes_sizes", (1, 2, 4, 5), None, [7, 3], axes=[2, 3], mode="cubic"),
    resize(
        "axes_roi",
        (1, 2, 4, 5),
        None,
        [3, 4],
        [0.1, 0.2, 0.9, 0.7],
        axes=[2, 3],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
    *(
        resize(f"{policy}_{i}", (1, 2, 4, 5), None, sizes, axes=[2, 3], mode="linear", keep_aspect_ratio_policy=policy)
        for policy in ("not_larger", "not_smaller")
        for i, sizes in enumerate(([7, 8], [2, 4], [8, 5]))
    ),
    resize("identity", (1, 2, 4, 5), [1, 1, 1, 1], mode="linear"),
    resize("empty", (0, 2, 4, 5), [1, 1, 2, 2], mode="linear"),
    resize("opset_11", (1, 2, 4, 5), [1, 1, 2, 1.6], roi=[], opset=11, mode="linear"),
    resize("opset_13", (1, 2, 4, 5), [1, 1, 2, 1.6], opset=13, mode="cubic"),
    Case(
        "opset_11_sizes",
        "Resize",
        (make(1, 1, 2, 4, 5), np.zeros(0, np.float32), np.zeros(0, np.float32), np.array([1, 2, 6, 3])),
        {"mode": "linear"},
        const=(1, 2, 3),
        opset=11,
        oracle="onnxruntime",
        terms=16,
    ),
    resize(
        "tf_half_pixel_for_nn",
        (1, 1, 4, 5),
        [1, 1, 1.5, 0.6],
        roi=[],
        opset=11,
        oracle="onnxruntime",
        coordinate_transformation_mode="tf_half_pixel_for_nn",
    ),
    *(
        Case(
            f"{op.lower()}_{opset}_{mode}",
            op,
            (make(2, 1, 2, 4, 6), np.array([1, 1, *s], np.float32)),
            {"mode": mode},
            const=(1,),
            opset=opset,
            oracle="onnxruntime",
            terms=16,
        )
        for op, opset, s in (("Resize", 10, [2, 1.5]), ("Resize", 10, [0.6, 0.5]), ("Upsample", 9, [2, 3]))
        for mode in ("nearest", "linear")
    ),
    *(
        Case(
            f"upsample_7_{mode}",
            "Upsample",
            (make(2, 1, 2, 4, 6),),
            {"mode": mode, "scales": [1.0, 1.0, 2.0, 3.0]},
            opset=7,
            oracle="onnxruntime",
            terms=16,
        )
        for mode in ("nearest", "linear")
    ),
    Case(
        "upsample_1",
        "Upsample",
        (make(2, 1, 2, 4, 6),),
        {"mode": "nearest", "height_scale": 2.0, "width_scale": 3.0},
        opset=1,
        expected=(make(2, 1, 2, 4, 6).repeat(2, axis=2).repeat(3, axis=3),),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(checks: str, case: Case) -> None:
    """Each case passes all checks of the harness."""
    run_case(case, checks)


VIEWS = [
    Case(
        f"view_{mode}",
        "Resize",
        (make(1, 2, 8, 9, 4).transpose(0, 3, 1, 2)[:, :, ::-1, ::2], None, np.array([1, 1, 2, 1.5], np.float32)),
        {"mode": mode},
        const=(2,),
        terms=16,
    )
    for mode in ("nearest", "linear", "cubic")
]


@pytest.mark.parametrize("case", VIEWS, ids=lambda case: case.id)
def test_views(checks: str, case: Case) -> None:
    """Inputs keep their strides."""
    run_case(case, checks)


def test_integers_saturate_and_round_to_even(checks: str) -> None:
    """Cubic overshoot must not wrap; a half goes to the even neighbour."""
    x = np.array([[0, 0, 255, 255, 255]], np.uint8)
    scales = np.array([1, 2], np.float32)
    case = Case("overshoot", "Resize", (x, None, scales), {"mode": "cubic"}, const=(2,), opset=19)
    run_case(case, checks)
    assert set(expect(case)[0].flat) >= {0, 255}
    half = np.array([1, 2, 4], np.int32)
    answer = (np.array([1, 2, 2, 3, 4, 4], np.int32),)
    case = Case(
        "ties",
        "Resize",
        (half, None, np.array([2], np.float32)),
        {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
        const=(2,),
        expected=answer,
    )
    run_case(case, checks)


def test_cubic_in_double(checks: str) -> None:
    """Doubles are blended in double, by Keys' kernel at half-pixel coordinates (the reference's weights are float)."""
    x, a = make(3, 6, dtype=np.float64), -0.75

    def weight(d: float) -> float:
        d = abs(d)
        return ((a + 2) * d - (a + 3)) * d * d + 1 if d <= 1 else ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    answer = []
    for i in range(9):
        at = (i + 0.5) / 1.5 - 0.5
        answer.append(
            sum(weight(at - k) * x[min(max(k, 0), 5)] for k in range(int(np.floor(at)) - 1, int(np.floor(at)) + 3))
        )
    scales = np.array([1.5], np.float32)
    run_case(
        Case(
            "cubic_double",
            "Resize",
            (x, None, scales),
            {"mode": "cubic"},
            const=(2,),
            expected=(np.array(answer),),
            terms=4,
        ),
        checks,
    )


@pytest.mark.parametrize("extent", [2, 4, 7])
def test_align_corners_meets_the_ends_by_sizes_and_by_scales_that_give_a_whole_size(checks: str, extent: int) -> None:
    """A scale that gives no whole size divides by that number, as ONNX's cases do; sizes divide by what comes out."""
    x = np.arange(extent, dtype=np.float32)
    attributes = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    for count in (extent * 2, extent * 3 - 1):
        ends = (np.linspace(0, extent - 1, count).astype(np.float32),)
        by_sizes = (x, None, None, np.array([count]))
        run_case(Case(f"sizes_{count}", "Resize", by_sizes, attributes, const=(3,), expected=ends, terms=16), checks)
        by_scales = (x, None, np.array([count / extent], np.float32))
        (y,) = gx_operator.build("Resize", attributes).compute(x, None, np.array([(count + 0.5) / extent], np.float32))
        np.testing.assert_allclose(y, np.arange(count) * (extent - 1) / (count - 0.5), rtol=1e-6)
        assert y[-1] < extent - 1
        if count % extent == 0:
            run_case(
                Case(f"scales_{count}", "Resize", by_scales, attributes, const=(2,), expected=ends, terms=16), checks
            )


def test_nearest_of_bool(checks: str) -> None:
    """Booleans are moved like bytes."""
    x = np.array([[True, False, True]])
    scales = np.array([1, 2], np.float32)
    run_case(Case("bool", "Resize", (x, None, scales), const=(2,), expected=(np.repeat(x, 2, axis=1),)), checks)


def test_nearest_keeps_every_bit() -> None:
    """Integers beyond 2**53, negative zero and NaN payloads pass unchanged."""
    for x in (np.array([2**63 - 1, -(2**63), 2**53 + 1]), np.array([-0.0, 5e-324, -np.inf])):
        op = gx_operator.build("Resize", {})
        (y,) = op.compute(x, None, np.array([2.0], np.float32))
        np.testing.assert_array_equal(y.view(np.int64), np.repeat(x, 2).view(np.int64))


@pytest.mark.parametrize(
    ("shape", "scales", "sizes", "attributes", "words"),
    [
        ((1, 4), [2.0], None, {}, "one entry for each of 2"),
        ((4,), [0.0], None, {}, "above 0"),
        ((4,), None, None, {}, "scales with one entry"),
        ((0,), None, [3], {}, "0 where the input is empty"),
        ((4,), [2.0], None, {"mode": "area"}, "mode among"),
        ((4,), [2.0], None, {"antialias": 1}, "antialias"),
        ((4,), [2.0], None, {"axes": [1]}, "axes"),
        ((4,), [2.0], None, {"coordinate_transformation_mode": "tf_crop_and_resize"}, "roi"),
    ],
)
def test_refuses(
    shape: tuple[int, ...], scales: list[float] | None, sizes: list[int] | None, attributes: dict[str, Any], words: str
) -> None:
    """Inputs that do not fit are refused, with what was expected."""
    given = [None if v is None else TensorSpec.of(np.array(v, t)) for v, t in ((scales, np.float32), (sizes, np.int64))]
    with pytest.raises(InputError, match=words):
        gx_operator.build("Resize", attributes).infer(TensorSpec(shape, np.dtype(np.float32)), None, *given)


def test_unknown_modes_are_refused_when_sampling() -> None:
    """The tables name the modes they know."""
    for attributes in ({"coordinate_transformation_mode": "pixel"}, {"nearest_mode": "nearest"}):
        with pytest.raises(InputError, match="expects"):
            gx_operator.build("Resize", attributes).compute(make(1, 4), None, np.array([2.0], np.float32))


def test_sizes_from_data_are_asked_for() -> None:
    """Scales that the host does not know are what planning needs."""
    with pytest.raises(NeedsHostValue, match="scales"):
        gx_operator.build("Resize", {}).infer(
            TensorSpec((4,), np.dtype(np.float32)), None, TensorSpec((1,), np.dtype(np.float32))
        )
