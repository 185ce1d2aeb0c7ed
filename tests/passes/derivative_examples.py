"""Operators to differentiate: one or more examples of every rule, and of all parts."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

import gpuexec as gx
from tests.passes.gradients import Array, differences, gradient, make, node, run, sample


@dataclass(frozen=True)
class Example:
    """Nodes that make ``y0`` of the inputs, all of which are differentiated by, and of constants."""

    id: str
    nodes: list[onnx.NodeProto]
    inputs: dict[str, Array]
    constants: dict[str, Any] = field(default_factory=dict)
    opset: int = 24

    def weigh(self) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
        """Return nodes that make ``y`` of ``y0``, so that its elements don't count alike, and all constants."""
        constants = {**self.constants, "weight": sample(*self.shape, seed=9)}
        return [*self.nodes, node("Mul", "y0 weight", "y")], constants

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of ``y0``."""
        (y0,) = run(make(self.nodes, self.inputs, ["y0"], self.constants, self.opset), self.inputs)
        return y0.shape

    @functools.cached_property
    def differences(self) -> list[Array]:
        """Derivatives by the inputs, by differences."""
        nodes, constants = self.weigh()
        return differences(make(nodes, self.inputs, ["y"], constants, self.opset), self.inputs, self.inputs)

    def differentiate(self, backend: gx.BackendType, dtype: Any = np.float64) -> list[Array]:
        """Return the slopes by the inputs, computed in a type."""
        nodes, constants = self.weigh()
        inputs, constants = cast(self.inputs, dtype), cast(constants, dtype)
        slopes = [f"slope_{key}" for key in inputs]
        nodes.append(gradient(" ".join(inputs), " ".join(slopes), xs=list(inputs), y="y"))
        return run(make(nodes, inputs, slopes, constants, self.opset), inputs, backend)

    def check(self, backend: gx.BackendType) -> None:
        """Compare slopes with differences."""
        for key, got, expected in zip(self.inputs, self.differentiate(backend), self.differences, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=2e-7, err_msg=key)

    def check_twice(self, backend: gx.BackendType) -> None:
        """Compare the slopes of the slopes by the first input with differences of these."""
        names, first = list(self.inputs), next(iter(self.inputs))
        nodes, constants = self.weigh()
        constants["again"] = sample(*self.inputs[first].shape, seed=8)
        nodes += [
            gradient(" ".join(names), "slope", "once", xs=names, y="y"),
            node("Mul", "slope again", "z"),
        ]
        slopes = [f"slope_{key}" for key in names]
        whole = [*nodes, gradient(" ".join(names), " ".join(slopes), "twice", xs=names, y="z")]
        found = run(make(whole, self.inputs, slopes, constants, self.opset), self.inputs, backend)
        forward = make(nodes, self.inputs, ["z"], constants, self.opset)
        for key, got, expected in zip(names, found, differences(forward, self.inputs, names), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6, err_msg=key)


def cast(arrays: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """Return arrays with the doubles among them in another type."""
    return {key: x.astype(dtype) if np.asarray(x).dtype == np.float64 else x for key, x in arrays.items()}


A, B, ROW, SQUARE, CUBE = sample(3, 4), sample(3, 4, seed=1), sample(4), sample(4, 4), sample(2, 3, 4)
SIGNED = A - 1
LAST, FIRST = np.array([-1]), np.array([0])


def one(op: str, x: Array = A, id: str = "", domain: str = "", opset: int = 24, **more: Any) -> Example:
    """An operator of one input; arrays and ``_`` among the rest are further, constant inputs in their order."""
    constants = {key: value for key, value in more.items() if isinstance(value, (np.ndarray, np.generic))}
    absent = [key for key, value in more.items() if value is None]
    rest = ["_" if key in absent else key for key in more if key in constants or key in absent]
    attributes = {key: value for key, value in more.items() if key not in constants and key not in absent}
    made = node(op, " ".join(["a", *rest]), "y0", domain, **attributes)
    return Example(id or op, [made], {"a": x}, constants, opset)


def several(op: str, *xs: Array, id: str = "", opset: int = 24, domain: str = "", **attributes: Any) -> Example:
    """An operator by all of whose inputs is differentiated."""
    inputs = dict(zip("abcdefg", xs, strict=False))
    made = node(op, " ".join(inputs), "y0", domain, **attributes)
    return Example(id or op, [made], inputs, opset=opset)


def gemm(turns_a: int, turns_b: int) -> Example:
    a, b = (sample(4, 3) if turns_a else A), (sample(5, 4) if turns_b else sample(4, 5))
    attributes = {"transA": turns_a, "transB": turns_b, "alpha": 0.5, "beta": 2.0}
    return several("Gemm", a, b, sample(5), id=f"Gemm{turns_a}{turns_b}", **attributes)


CURVES = [
    *(one(op) for op in ("Identity", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Tan", "Softplus")),
    *(one(op, SIGNED) for op in ("Abs", "Tanh", "Sigmoid", "Erf", "Relu", "Softsign", "Sinh", "Cosh", "Mish")),
    *(one(op, SIGNED) for op in ("Asin", "Acos", "Atan", "Asinh", "Atanh")),
    one("Acosh", A + 1),
    one("ThresholdedRelu", alpha=1.0),
    *(one(op, SIGNED * 2, alpha=0.7) for op in ("LeakyRelu", "Elu", "Celu", "Swish")),
    one("Selu", SIGNED * 2, alpha=1.5, gamma=0.7),
    one("HardSigmoid", SIGNED * 4, alpha=0.3, beta=0.4),
    one("HardSwish", SIGNED * 8),
    *(one("Gelu", SIGNED * 3, id=f"Gelu_{how}", approximate=how) for how in ("none", "tanh")),
    one("Celu", np.array([-800.0, 800.0]), id="Celu_far"),
    one("Elu", np.array([-800.0, 800.0]), id="Elu_far"),
]
PAIRS = [
    *(several(op, x, y, id=f"{op}{x.shape}{y.shape}") for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min")
      for x, y in ((A, B), (A, ROW), (sample(3, 1, seed=3), A))),
    *(several(op, A, ROW, sample(3, 1), id=f"{op}3") for op in ("Sum", "Mean", "Max", "Min")),
    several("PRelu", SIGNED, ROW),
    one("Pow", SIGNED, id="Pow_even", exponent=np.int64(2)),
    one("Pow", np.array([0.0, 2.0]), id="Pow_0", exponent=np.array([0.0, 3.0])),
    Example("Pow_of_0", [node("Pow", "x a", "y0")], {"a": np.array([1.5, 2.0])}, {"x": np.array([0.0, 3.0])}),
    Example("Where", [node("Greater", "a b", "c"), node("Where", "c a b", "y0")], {"a": A, "b": ROW}),
    Example("Clip", [node("Clip", "a low high", "y0")], {"a": A, "low": np.array(0.8), "high": np.array(1.2)}),
    Example("Clip_low", [node("Clip", "a low", "y0")], {"a": A, "low": np.array(0.9)}),
    Example("Clip_high", [node("Clip", "a _ high", "y0")], {"a": A, "high": np.array(0.9)}),
    Example("Clip_crossed", [node("Clip", "a low high", "y0")], {"a": A, "low": np.array(1.7), "high": np.array(0.9)}),
    Example("square", [node("Mul", "a a", "y0")], {"a": A}),
]  # fmt: skip
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSum",
              "ReduceLogSumExp", "ReduceSumSquare")  # fmt: skip
FOLDS = [
    *(one(op, SIGNED if op == "ReduceL1" else CUBE, id=f"{op}{keeps}", axes=LAST, keepdims=keeps)
      for op in REDUCTIONS for keeps in (0, 1)),
    *(one(op, id=f"{op}_all", keepdims=0) for op in REDUCTIONS),
    *(one(op, id=f"{op}_none", keepdims=0, noop_with_empty_axes=1) for op in ("ReduceSum", "ReduceMax")),
    one("ReduceSum", CUBE, id="ReduceSum_outer", axes=np.array([0, 2]), keepdims=0),
    *(one(op, CUBE, id=f"{op}{axis}", axis=axis) for op in ("Softmax", "LogSoftmax") for axis in (1, -1)),
    *(one(op, CUBE, id=f"{op}_flat", opset=11, axis=1) for op in ("Softmax", "LogSoftmax")),
    *(one("CumSum", id=f"CumSum{flags}", axis=np.int64(1), exclusive=flags & 1, reverse=flags >> 1)
      for flags in range(4)),
    *(one(op, sample(2, 3, 4, 2)) for op in ("GlobalAveragePool", "GlobalMaxPool")),
]  # fmt: skip
LABELS = np.array([[1, 2], [0, 1]])


def loss(op: str, reduction: str, has_weights: bool, **attributes: Any) -> Example:
    inputs = {"a": sample(2, 3, 2) - 1, **({"w": sample(3)} if has_weights else {})}
    names = "a labels w" if has_weights else "a labels"
    made = node(op, names, "y0", reduction=reduction, **attributes)
    title = f"{op}_{reduction}{'_weights' * has_weights}{'_ignore' * bool(attributes)}"
    return Example(title, [made], inputs, {"labels": LABELS})


LOSSES = [
    loss(op, reduction, has_weights, **attributes)
    for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
    for reduction, has_weights, attributes in (
        ("none", False, {}), ("sum", True, {}), ("mean", True, {}), ("mean", False, {"ignore_index": 1}))
]  # fmt: skip
PRODUCTS = [
    several("MatMul", A, SQUARE),
    several("MatMul", CUBE, sample(4, 5), id="MatMul_stretched"),
    several("MatMul", sample(2, 1, 3, 4), sample(3, 4, 2), id="MatMul_both_stretched"),
    several("MatMul", ROW, SQUARE, id="MatMul_row"),
    several("MatMul", A, ROW, id="MatMul_column"),
    several("MatMul", CUBE, ROW, id="MatMul_columns"),
    several("MatMul", ROW, sample(2, 4, 3), id="MatMul_rows"),
    several("MatMul", ROW, sample(4, seed=1), id="MatMul_vectors"),
    *(gemm(a, b) for a in (0, 1) for b in (0, 1)),
    several("Einsum", A, sample(4, 2), id="Einsum_product", equation="ij,jk->ik"),
    several("Einsum", A, sample(4, 2), id="Einsum_implicit", equation="ij, jk"),
    several("Einsum", A, B, id="Einsum_dot", equation="ij,ij->"),
    several("Einsum", A, ROW, id="Einsum_lonely", equation="ij,k->i"),
    several("Einsum", CUBE, sample(4, 5), id="Einsum_dots", equation="...ij,jk->...ik"),
    several("Einsum", CUBE, sample(1, 4, 2), id="Einsum_stretched", equation="...ij,...jk->...ki"),
    several("Einsum", CUBE, id="Einsum_turned", equation="ijk->kij"),
    several("Einsum", A, sample(4, 2), sample(2, 3), id="Einsum_three", equation="ij,jk,kl->il"),
]


def conv(id: str, x: Array, w: Array, op: str = "Conv", has_bias: bool = True, **attributes: Any) -> Example:
    count = w.shape[0] if op == "Conv" else w.shape[1] * attributes.get("group", 1)
    return several(op, x, w, *([sample(count)] if has_bias else []), id=f"{op}_{id}", **attributes)


CONVOLUTIONS = [
    conv("plain", sample(2, 2, 5), sample(3, 2, 3), has_bias=False),
    conv("bias", sample(1, 2, 4, 5), sample(3, 2, 2, 3)),
    conv("pads", sample(1, 2, 5), sample(2, 2, 3), pads=[2, 1]),
    conv("strides", sample(2, 1, 6, 5), sample(2, 1, 2, 2), strides=[2, 3], pads=[1, 0, 0, 1]),
    conv("dilated", sample(1, 1, 8), sample(1, 1, 3), dilations=[2], strides=[2], pads=[1, 2]),
    conv("groups", sample(2, 4, 5), sample(6, 2, 2), group=2, strides=[2], kernel_shape=[2]),
    conv("depthwise", sample(2, 3, 4, 4), sample(3, 1, 2, 2), group=3),
    conv("valid", sample(1, 1, 5), sample(1, 1, 2), auto_pad="VALID", strides=[2]),
    conv("plain", sample(2, 2, 4), sample(2, 3, 3), "ConvTranspose", has_bias=False),
    conv("strides", sample(1, 2, 3, 3), sample(2, 2, 3, 2), "ConvTranspose", strides=[2, 3], pads=[1, 0, 0, 1]),
    conv("groups", sample(2, 4, 3), sample(4, 2, 2), "ConvTranspose", group=2, dilations=[2]),
    conv("more", sample(1, 1, 3), sample(1, 2, 3), "ConvTranspose", strides=[2], output_padding=[1]),
]
POOLS = [
    one("AveragePool", sample(2, 3, 5, 4), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    one("AveragePool", sample(1, 2, 7), id="AveragePool_padded", kernel_shape=[3], pads=[2, 1], count_include_pad=1),
    one("AveragePool", sample(1, 2, 7), id="AveragePool_dilated", kernel_shape=[2], dilations=[3], auto_pad="VALID"),
]
IMAGE = sample(1, 4, 2, 2)
MOVES = [
    one("Reshape", shape=np.array([2, 6])),
    one("Flatten", CUBE, axis=2),
    one("Unsqueeze", axes=LAST),
    one("Squeeze", sample(3, 1), axes=LAST),
    one("Transpose", CUBE, perm=[2, 0, 1]),
    one("Transpose", CUBE, id="reversed"),
    one("Expand", sample(3, 1), shape=np.array([2, 3, 4])),
    *(Example(f"Concat{axis}", [node("Concat", "a b a", "y0", axis=axis)], {"a": A, "b": B}) for axis in (0, 1, -1)),
    Example("Split", [node("Split", "a", "p q", axis=1, num_outputs=2), node("Exp", "q", "r"),
                      node("Mul", "p r", "y0")], {"a": A}),
    Example("Split_one", [node("Split", "a sizes", "p q", axis=-1), node("Exp", "q", "y0")], {"a": A},
            {"sizes": np.array([3, 1])}),
    one("Slice", CUBE, starts=np.array([2, -1]), ends=np.array([0, -9]), axes=np.array([1, 2]),
        steps=np.array([-1, -2])),
    one("Slice", CUBE, id="Slice_short", starts=np.array([1]), ends=np.array([9])),
    *(one("Gather", CUBE, id=f"Gather{axis}", at=np.array([[0, 1], [1, -2]]), axis=axis) for axis in (0, 1, -1)),
    one("Gather", CUBE, id="Gather_number", at=np.array(1), axis=1),
    one("GatherElements", at=np.array([[0, 0, 3, -1]]), axis=1),
    one("GatherND", CUBE, at=np.array([[[0], [1]], [[2], [2]]]), batch_dims=1),
    one("Tile", repeats=np.array([2, 3])),
    one("Pad", pads=np.array([1, 0, -1, 2])),
    one("Pad", id="Pad_axes", pads=np.array([1, 2]), value=None, axes=LAST),
    *(one("Pad", id=f"Pad_{mode}", pads=np.array([2, 1, 0, 2]), mode=mode) for mode in ("reflect", "edge", "wrap")),
    one("Resize", sample(1, 1, 3, 4), roi=None, scales=np.array([1, 1, 2, 0.6], np.float32)),
    one("Resize", sample(1, 1, 3, 4), id="Resize_sizes", roi=None, scales=None, sizes=np.array([5, 4]), axes=[2, 3],
        nearest_mode="floor", coordinate_transformation_mode="asymmetric"),
    one("DepthToSpace", IMAGE, blocksize=2),
    one("SpaceToDepth", IMAGE, blocksize=2),
    one("ReverseSequence", lens=np.array([1, 3, 2, 1])),
    *(one("Trilu", id=f"Trilu{upper}", k=np.int64(1), upper=upper) for upper in (0, 1)),
    one("MaxPool", sample(1, 2, 5, 4), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], storage_order=1),
    Example("ScatterElements", [node("ScatterElements", "a at b", "y0", axis=1)], {"a": A, "b": sample(3, 2)},
            {"at": np.array([[0, 1], [3, -2], [0, 2]])}),
    Example("ScatterElements_add", [node("ScatterElements", "a at b", "y0", axis=1, reduction="add")],
            {"a": A, "b": sample(3, 2)}, {"at": np.array([[0, 0], [3, -1], [0, 2]])}),
    *(Example(f"ScatterND_{how}", [node("ScatterND", "a at b", "y0", reduction=how)], {"a": A, "b": sample(2, 4)},
              {"at": np.array([[2], [0]])}) for how in ("none", "add")),
    one("Dropout"),
    Example("CastLike", [node("CastLike", "a b", "c"), node("Mul", "c b", "y0")], {"a": A, "b": B}),
    Example("step", [node("Cast", "a", "s", to=7), node("Cast", "s", "t", to=11), node("Mul", "t a", "y0")],
            {"a": A * 3}),
    Example("steps", [node("Floor", "b", "s"), node("ArgMax", "a", "i", axis=1), node("Cast", "i", "j", to=11),
                      node("Mul", "s a", "t"), node("Add", "t j", "y0")], {"a": A, "b": A * 3}),
]  # fmt: skip
CHANNELS = [sample(4, seed=seed) for seed in range(4)]
NORMS = [
    several("LayerNormalization", CUBE, ROW, CHANNELS[1]),
    several("LayerNormalization", CUBE, sample(3, 4), id="LayerNormalization1", axis=1, epsilon=0.1),
    several("RMSNormalization", CUBE, ROW),
    several("InstanceNormalization", sample(2, 4, 3, 2), *CHANNELS[:2]),
    several("GroupNormalization", sample(2, 4, 3), *CHANNELS[:2], num_groups=2),
    several("BatchNormalization", sample(2, 4, 3), *CHANNELS),
    several("BatchNormalization", A, *CHANNELS, id="BatchNormalization_flat"),
    several("BiasGelu", A, ROW, domain="com.microsoft"),
]
EXAMPLES = [*CURVES, *PAIRS, *FOLDS, *LOSSES, *PRODUCTS, *CONVOLUTIONS, *POOLS, *MOVES, *NORMS]
