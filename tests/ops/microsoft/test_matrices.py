"""Inverse and Solve by NumPy, singular matrices included; CropAndResize by onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case
from tests.ops.microsoft.composed import DOMAIN
from tests.ops.microsoft.samples import HALF, SINGLE, ints, sample

DOUBLE = np.dtype(np.float64)


def inverse_cases() -> list[Case]:
    cases = []
    for dtype in (SINGLE, HALF, DOUBLE):
        for shape in ((3, 3), (2, 2, 5, 5), (1, 1), (0, 4, 4), (2, 0, 0)):
            x = (sample(*shape) + 3 * np.eye(shape[-1])).astype(dtype)
            y = np.linalg.inv(x.astype(DOUBLE)).astype(dtype)
            cases.append(inverse(f"{dtype}-{shape}", x, y))
    turned = np.eye(4, dtype=SINGLE)[[2, 0, 3, 1]]  # no pivot stands in its place
    large = sample(40, 40) + 9 * np.eye(40, dtype=SINGLE)
    none = np.array([[1, 2], [2, 4]], SINGLE)
    nowhere = np.array([[-np.inf, np.inf], [np.inf, -np.inf]], SINGLE)
    return [
        *cases,
        inverse("turned", turned, turned.T),
        inverse("large", large, np.linalg.inv(large.astype(DOUBLE)).astype(SINGLE)),
        inverse("long", sample(300, 300) + 60 * np.eye(300, dtype=SINGLE), None),
        inverse("none", none, nowhere),
        inverse("strided", large[::2, ::2].T, np.linalg.inv(large[::2, ::2].T.astype(DOUBLE)).astype(SINGLE)),
    ]


def inverse(name: str, x: Array, y: Array | None) -> Case:
    """Return a case of Inverse."""
    y = np.linalg.inv(x.astype(DOUBLE)).astype(x.dtype) if y is None else y
    return Case(name, "Inverse", (x,), opset=1, expected=(y,), terms=64, domain=DOMAIN)


def solve_cases() -> list[Case]:
    """Cases of Solve: vectors, matrices, batches, and systems that have no solution."""
    cases = []
    for dtype in (SINGLE, DOUBLE):
        for shape, columns in (((3, 3), (3, 2)), ((5, 5), (5,)), ((1, 1), (1, 4)), ((2, 3, 4, 4), (2, 3, 4, 3))):
            a = (sample(*shape) + 3 * np.eye(shape[-1])).astype(dtype)
            cases.append(solve(f"{dtype}-{shape}-{columns}", a, sample(*columns, dtype=dtype, seed=1)))
    a = sample(40, 40) + 9 * np.eye(40, dtype=SINGLE)
    turned, long = np.eye(4, dtype=SINGLE)[[2, 0, 3, 1]], sample(300, 300) + 60 * np.eye(300, dtype=SINGLE)
    none = np.array([[1, 2], [2, 4]], SINGLE)
    fields = {"lower": 0, "transposed": 1}
    return [
        *cases,
        solve("vectors", sample(3, 2, 2) + 2 * np.eye(2, dtype=SINGLE), sample(3, 2)),
        solve("turned", turned, sample(4, 3)),
        solve("transposed", a, sample(40, 3), **fields),
        solve("transposed-vectors", np.stack([a[:6, :6], a[6:12, 6:12]]), sample(2, 6), **fields),
        solve("as-skl2onnx-writes", np.tril(a), sample(40, 70), lower=0, transposed=0),
        solve("lower", a, sample(40, 3), lower=1),
        solve("many-columns", a[:3, :3], sample(3, 700)),
        solve("long", long, sample(300, 2)),
        solve("strided", a[::2, ::2].T, sample(6, 20)[::-2].T),
        solve("strided-transposed", a[::2, ::2], sample(20, 6)[:, ::-3], **fields),
        solve("no-columns", a[:3, :3], sample(3, 0)),
        solve("no-rows", a[:0, :0], sample(0, 3)),
        solve("no-matrices", sample(0, 3, 3), sample(0, 3, 2)),
        solve("none", none, np.array([[1], [3]], SINGLE), np.array([[np.inf], [-np.inf]], SINGLE)),
    ]


def solve(name: str, a: Array, b: Array, y: Array | None = None, **fields: int) -> Case:
    """Return a case of Solve, by NumPy in double."""
    if y is None:
        left = a.swapaxes(-1, -2) if fields.get("transposed") else a
        is_vector = b.ndim < a.ndim
        right = b[..., None] if is_vector else b
        found = np.linalg.solve(left.astype(DOUBLE), right.astype(DOUBLE)).astype(a.dtype)
        y = found[..., 0] if is_vector else found
    return Case(name, "Solve", (a, b), fields, opset=1, expected=(y,), terms=64, domain=DOMAIN)


def crop_cases() -> list[Case]:
    boxes = np.array([[0, 0, 1, 1], [0.2, 0.1, 0.7, 0.9], [0.9, 0.8, 0.1, 0.3], [-0.3, 0.5, 1.2, 0.6]], SINGLE)
    images, x = ints(0, 1, 1, 0), sample(2, 3, 7, 5)
    cases = []
    for mode in ("bilinear", "nearest"):
        for size in (ints(4, 6), ints(1, 1), ints(3, 1)):
            fields = {"mode": mode, "extrapolation_value": -2.5}
            given = (x, boxes, images, size)
            cases.append(
                Case(
                    f"{mode}-{size}",
                    "CropAndResize",
                    given,
                    fields,
                    (3,),
                    opset=1,
                    oracle="onnxruntime",
                    terms=8,
                    domain=DOMAIN,
                )
            )
    corners = np.array([[0, 0, 1, 1]])
    for dtype in (HALF, DOUBLE):
        given = (x.astype(dtype), corners.astype(dtype), ints(1), ints(7, 5))
        cases.append(
            Case(f"whole-{dtype}", "CropAndResize", given, const=(3,), opset=1, expected=(given[0][1:],), domain=DOMAIN)
        )
    beyond = (x, boxes[:2], ints(2, -1), ints(2, 2))
    fields = {"extrapolation_value": 0.5}
    outside = np.full((2, 3, 2, 2), 0.5, SINGLE)
    nothing = (x, boxes[:0], images[:0], ints(2, 2))
    # Half a pixel beyond the last row, then beyond the last column, one place each.
    edges = np.array([[6.5 / 6, 0, 6.5 / 6, 0], [0, 4.5 / 4, 0, 4.5 / 4]], SINGLE)
    given = (x, edges, ints(0, 1), ints(1, 1))
    return [
        *cases,
        Case("edges", "CropAndResize", given, fields, (3,), opset=1, expected=(outside[..., :1, :1],), domain=DOMAIN),
        Case("beyond", "CropAndResize", beyond, fields, (3,), opset=1, expected=(outside,), domain=DOMAIN),
        Case(
            "no-channels",
            "CropAndResize",
            (x[:, :0], *beyond[1:]),
            const=(3,),
            opset=1,
            expected=(outside[:, :0],),
            domain=DOMAIN,
        ),
        Case("nothing", "CropAndResize", nothing, const=(3,), opset=1, expected=(outside[:0],), domain=DOMAIN),
    ]


@pytest.mark.parametrize(
    "case", [*inverse_cases(), *solve_cases(), *crop_cases()], ids=lambda case: f"{case.op}-{case.id}"
)
def test_matrices(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_what_does_not_fit_is_refused() -> None:
    spec = TensorSpec((2, 3), SINGLE)
    with pytest.raises(InputError, match="square matrices"):
        build(f"{DOMAIN}.Inverse", {}).infer(spec)
    with pytest.raises(InputError, match="type float32, float16, float64"):
        build(f"{DOMAIN}.Inverse", {}).infer(TensorSpec((2, 2), np.dtype(np.int32)))
    system = build(f"{DOMAIN}.Solve", {})
    with pytest.raises(InputError, match="square matrices"):
        system.infer(spec, spec)
    with pytest.raises(InputError, match=r"Y \[2, 3\] or \[2, 3, 'columns'\], got float32\[3,3\]"):
        system.infer(TensorSpec((2, 3, 3), SINGLE), TensorSpec((3, 3), SINGLE))
    with pytest.raises(InputError, match="Y of type float32"):
        system.infer(TensorSpec((2, 2), SINGLE), TensorSpec((2,), DOUBLE))
    with pytest.raises(InputError, match="mode to be one of"):
        build(f"{DOMAIN}.CropAndResize", {"mode": "cubic"})
    image, rows, at = TensorSpec((1, 1, 2, 2), SINGLE), TensorSpec((2, 4), SINGLE), TensorSpec((2,), np.dtype(np.int32))
    crop = build(f"{DOMAIN}.CropAndResize", {})
    with pytest.raises(InputError, match="two positive numbers"):
        crop.infer(image, rows, at, TensorSpec.of(ints(0, 2)))
    with pytest.raises(InputError, match="four axes"):
        crop.infer(spec, rows, at, TensorSpec.of(ints(1, 2)))
