"""Normalisation of rows against NumPy in double, and against onnx.reference or onnxruntime where they have the form."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuexec.ops.nn.norm  # noqa: F401  (registers the operators)
from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.direct import DirectEmitter
from tests.ops.harness import Array, Case, build_operator, compare, run_case

BF16 = ml_dtypes.bfloat16
FLOATS = (np.float32, np.float64, np.float16, BF16)
NAN = np.nan


def sample(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 5) -> Array:
    return np.random.default_rng([*shape, seed]).normal(0.5, 1.5, shape).astype(dtype)


def standardized(x: Array, axes: tuple[int, ...], epsilon: float, centered: bool = True) -> tuple[Array, Array, Array]:
    """Return x standardised over axes, the mean and the inverse deviation, in double."""
    wide = x.astype(np.float64)
    mean = wide.mean(axes, keepdims=True) if centered else np.zeros(())
    inverse = 1 / np.sqrt(np.square(wide - mean).mean(axes, keepdims=True) + epsilon)
    return (wide - mean) * inverse, mean, inverse


def layer(id: str, x: Array, scale: Array, bias: Array | None = None, axis: int = -1, **more: Any) -> Case:
    """Return a LayerNormalization with all three outputs, worked out in double."""
    attributes = {"axis": axis, **more}
    axes = tuple(range(axis % x.ndim, x.ndim))
    y, mean, inverse = standardized(x, axes, more.get("epsilon", 1e-5))
    y = y * scale.astype(np.float64) + (0 if bias is None else bias.astype(np.float64))
    stash = BF16 if more.get("stash_type") == 16 else np.float32
    inputs = (x, scale) if bias is None else (x, scale, bias)
    terms = int(np.prod(x.shape[axis % x.ndim :]))
    expected = (y.astype(x.dtype), mean.astype(stash), inverse.astype(stash))
    return Case(
        f"layer-{id}", "LayerNormalization", inputs, attributes, outputs=(True,) * 3, expected=expected, terms=terms
    )


def layers() -> list[Case]:
    x = sample((3, 4, 5))
    rows = [layer(np.dtype(t).name, sample((3, 40), t), sample((40,), t, 6), sample((40,), t, 7)) for t in FLOATS]
    rows += [
        layer("no-bias", x, sample((5,))),
        *(
            layer(f"axis{a}", x, sample(x.shape[a % 3 :]), sample(x.shape[a % 3 :], seed=8), a)
            for a in (0, 1, 2, -1, -2, -3)
        ),
        layer("epsilon", x, sample((5,)), sample((5,)), epsilon=0.1),
        *(layer(f"stash-bf16-{np.dtype(t).name}", x.astype(t), sample((5,), t), stash_type=16) for t in FLOATS),
        layer("column-of-1", sample((4, 1)), sample((1,)), sample((1,))),
        layer("scalar-scale", x, sample(()), sample((1,))),
        layer("scale-of-rows", x, sample((3, 1, 1)), sample((4, 5)), axis=2),
        layer("scale-within", x, sample((4, 1)), sample((1, 5)), axis=1),
        layer("full-scale", x, sample((3, 4, 5)), sample((5,)), axis=1),
        # the longest short rows, and those that are one longer
        *(
            layer(f"{np.dtype(t).name}-{n}", sample((2, n), t), sample((n,), t, 6), sample((n,), t, 7))
            for n in (1024, 1025)
            for t in FLOATS
        ),
        layer("block-row", sample((2, 4096)), sample((4096,)), sample((4096,))),
        layer("beyond-registers", sample((2, 4097)), sample((4097,)), sample((4097,))),
        layer("double-beyond-registers", sample((1, 2050), np.float64), sample((2050,), np.float64)),
        layer("many-short-rows", sample((300, 3)), sample((3,)), sample((3,))),
        layer("one-scale", sample((3, 4, 5)), sample((1,))),
        layer("one-scale-and-bias", sample((3, 4, 5)), sample((1,)), sample((1,)), axis=1),
        layer("far-from-zero", sample((2, 64)) + np.float32(1000), sample((64,))),
    ]
    rows += [
        Case("layer-reference", "LayerNormalization", (x, sample((5,)), sample((5,))), terms=5),
        Case("layer-onnxruntime", "LayerNormalization", (x, sample((4, 5))), {"axis": 1}, oracle="onnxruntime",
             opset=17, terms=20),
        Case("layer-no-rows", "LayerNormalization", (x[:0], sample((5,))), expected=(x[:0],)),
        Case("layer-no-columns", "LayerNormalization", (x[..., :0], sample((0,))), expected=(x[..., :0],)),
        Case("layer-mean-of-nothing", "LayerNormalization", (x[..., :0], sample((0,))), outputs=(True,) * 3,
             expected=(x[..., :0], *(np.full((3, 4, 1), NAN, np.float32),) * 2)),
        Case("layer-nan", "LayerNormalization", (np.array([[1, NAN], [1, 1]], np.float32), np.ones(2, np.float32)),
             expected=(np.array([[NAN, NAN], [0, 0]], np.float32),), terms=2),
        Case("layer-mean-alone", "LayerNormalization", (x, sample((5,))), outputs=(True, True),
             expected=layer("", x, sample((5,))).expected[:2], terms=5),
    ]  # fmt: skip
    return rows


def rms(id: str, x: Array, scale: Array, axis: int = -1, **more: Any) -> Case:
    axes = tuple(range(axis % x.ndim, x.ndim))
    y, _, _ = standardized(x, axes, more.get("epsilon", 1e-5), centered=False)
    expected = ((y * scale.astype(np.float64)).astype(scale.dtype),)
    terms = int(np.prod(x.shape[axis % x.ndim :]))
    return Case(f"rms-{id}", "RMSNormalization", (x, scale), {"axis": axis, **more}, expected=expected, terms=terms)


def rms_cases() -> list[Case]:
    rows = [
        rms(f"{np.dtype(t).name}-{np.dtype(v).name}-{n}", sample((2, n), t), sample((n,), v))
        for n in (40, 1025)
        for t in FLOATS
        for v in FLOATS
    ]
    x = sample((3, 4, 5))
    return [
        *rows,
        *(rms(f"axis{a}", x, sample(x.shape[a % 3 :]), a) for a in (0, 1, -1)),
        rms("epsilon", x, sample((5,)), epsilon=0.5),
        rms("scale-of-rows", x, sample((4, 1)), 2),
        rms("one-scale", x, sample((1,)), 1),
        rms("one-scale-half", sample((3, 4, 5), np.float16), sample((1, 1), np.float16)),
        rms("long", sample((2, 5000)), sample((5000,))),
        Case("rms-reference", "RMSNormalization", (x, sample((5,))), terms=5),
    ]


def instance(id: str, x: Array, **more: Any) -> Case:
    scale, bias = sample(x.shape[1:2], x.dtype, 11), sample(x.shape[1:2], x.dtype, 12)
    opset = more.pop("opset", 24)
    y, _, _ = standardized(x, tuple(range(2, x.ndim)), more.get("epsilon", 1e-5))
    spread = (-1, *(1,) * (x.ndim - 2))
    y = y * scale.reshape(spread).astype(np.float64) + bias.reshape(spread).astype(np.float64)
    terms = max(1, int(np.prod(x.shape[2:])))
    return Case(
        f"instance-{id}",
        "InstanceNormalization",
        (x, scale, bias),
        more,
        opset=opset,
        expected=(y.astype(x.dtype),),
        terms=terms,
    )


def instances() -> list[Case]:
    x = sample((2, 3, 4, 5))
    return [
        *(instance(np.dtype(t).name, sample((2, 3, 4, 5), t)) for t in FLOATS),
        instance("1d", sample((2, 3, 70))),
        instance("3d", sample((1, 2, 3, 4, 5))),
        instance("epsilon", x, epsilon=0.25),
        instance("opset7", x, opset=7),
        instance("large", sample((1, 2, 60, 60))),
        instance("many-channels", sample((2, 130, 2, 2))),
        Case("instance-no-batch", "InstanceNormalization", (x[:0], sample((3,)), sample((3,))), expected=(x[:0],)),
        Case("instance-reference", "InstanceNormalization", (x, sample((3,)), sample((3,))), terms=20),
    ]


def group(id: str, x: Array, groups: int, per_group: bool = False, **more: Any) -> Case:
    n, channels = x.shape[:2]
    entries = groups if per_group else channels
    scale, bias = sample((entries,), x.dtype, 13), sample((entries,), x.dtype, 14)
    y, _, _ = standardized(x.reshape(n, groups, -1), (2,), more.get("epsilon", 1e-5))
    each = [
        np.repeat(p.astype(np.float64), channels // entries).reshape(-1, *(1,) * (x.ndim - 2)) for p in (scale, bias)
    ]
    y = y.reshape(x.shape) * each[0] + each[1]
    attributes = {"num_groups": groups, **more}
    return Case(f"group-{id}", "GroupNormalization", (x, scale, bias), attributes, opset=18 if per_group else 21,
                expected=(y.astype(x.dtype),), terms=max(1, x.size // n // groups))  # fmt: skip


def groups() -> list[Case]:
    x = sample((2, 6, 4, 5))
    return [
        *(group(np.dtype(t).name, sample((2, 6, 4, 5), t), 3) for t in FLOATS),
        *(group(f"{g}-groups", x, g) for g in (1, 2, 6)),
        group("epsilon", x, 2, epsilon=0.5),
        group("rank2", sample((4, 6)), 3),
        group("long", sample((1, 4, 40, 40)), 2),
        *(group(f"opset18-{g}-groups", x, g, per_group=True) for g in (1, 2, 6)),
        Case("group-onnxruntime", "GroupNormalization", (x, sample((6,)), sample((6,))), {"num_groups": 3}, opset=21,
             oracle="onnxruntime", terms=40),
    ]  # fmt: skip


ALL = [*layers(), *rms_cases(), *instances(), *groups()]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_normalization(checks: str, case: Case) -> None:
    run_case(case, checks)


LAYERS = [case for case in layers() if case.op == "LayerNormalization"]


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.id)
@pytest.mark.parametrize("wanted", [(True, False, False), (True, True, False), (False, False, True)])
def test_lowering_leaves_out_outputs_nobody_wants(case: Case, wanted: tuple[bool, ...]) -> None:
    op, inputs = build_operator(case)
    emit = DirectEmitter()
    slots = tuple(None if x is None else emit.slot(x) for x in inputs)
    specs = op.infer(*(None if slot is None else slot.spec for slot in slots))
    outputs = tuple(emit.fresh(s.shape, s.dtype) if want else None for s, want in zip(specs, wanted, strict=True))
    assert op.lower is not None
    op.lower(emit, slots, outputs)
    for index, slot in enumerate(outputs):
        if slot is not None:
            compare(case, op, index, emit.read(slot), op.compute(*inputs)[index], inputs)


def test_views(checks: str) -> None:
    x, scale = sample((4, 6, 5)), sample((6,))
    for view in (x.transpose(2, 1, 0), x[::-1, :, ::2], np.broadcast_to(x[:1], (3, 6, 5))):
        run_case(Case("instance", "InstanceNormalization", (view, scale[::-1], scale), terms=5), checks)
        run_case(Case("group", "GroupNormalization", (view, scale, scale[::-1]), {"num_groups": 2}, terms=15), checks)
        inputs = (view, np.broadcast_to(sample((1,)), view.shape[1:]), sample(view.shape[:0:-1]).T)
        run_case(Case("layer", "LayerNormalization", inputs, {"axis": 1}, terms=30), checks)


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("op", "attributes", "specs", "message"),
    [
        ("LayerNormalization", {}, (spec(2, 3), spec(3, dtype=np.float16)), "scale of type float32"),
        ("LayerNormalization", {}, (spec(2, 3), spec(4)), "scale to broadcast"),
        ("LayerNormalization", {}, (spec(2, 3), spec(3), spec(2)), "bias to broadcast"),
        ("LayerNormalization", {}, (spec(2, 3), spec(1, 2, 3)), "scale to broadcast"),
        ("LayerNormalization", {"axis": 2}, (spec(2, 3), spec(3)), "out of range"),
        ("LayerNormalization", {"stash_type": 7}, (spec(2, 3), spec(3)), "stash_type 1"),
        ("RMSNormalization", {}, (spec(2, 3, dtype=np.int32), spec(3)), "input of type"),
        ("InstanceNormalization", {}, (spec(2, 3, 4), spec(4), spec(3)), r"scale of shape \[3\]"),
        ("InstanceNormalization", {}, (spec(3), spec(3), spec(3)), "rank 2 or more"),
        ("GroupNormalization", {"num_groups": 2}, (spec(2, 3, 4), spec(3), spec(3)), "divide the channels"),
        ("GroupNormalization", {"num_groups": 3}, (spec(2, 6, 4), spec(3), spec(3)), r"scale of shape \[6\]"),
    ],
)
def test_infer_refuses(op: str, attributes: dict[str, Any], specs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(op, attributes).infer(*specs)


@pytest.mark.parametrize("name", ["LayerNormalization", "RMSNormalization", "InstanceNormalization"])
def test_scratch_that_was_counted_otherwise_is_not_taken(name: str) -> None:
    """A plan that an earlier release stored may have counted less; its calls are those of ``compute`` then."""
    op, dtype = build(name, {}), np.dtype(np.float32)
    shapes = [(4, 3, 8), (3,), (3,)] if name == "InstanceNormalization" else [(4, 3, 8), (8,), (8,)]
    inputs = [np.ones(shape, dtype) for shape in shapes[: 2 if name == "RMSNormalization" else 3]]
    out = [np.empty((4, 3, 8), dtype)]
    counts = op.count_scratch([TensorSpec.of(x) for x in inputs], [TensorSpec((4, 3, 8), dtype)])
    scratch = [np.empty(nbytes, np.uint8) for nbytes in counts]
    assert op.prepare(inputs, out, [False] * len(inputs), scratch) is not None
    less = [each[: len(each) // 2] for each in scratch]
    assert op.prepare(inputs, out, [False] * len(inputs), less) is None
