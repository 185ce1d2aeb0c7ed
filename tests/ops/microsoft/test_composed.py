"""Composite operators of com.microsoft: activations, convolutions, products, normalizations, embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from gpuexec.errors import InputError, ModelError
from gpuexec.importer.load import load_graph
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.microsoft.activation import ACTIVATIONS
from gpuexec.ops.microsoft.renamed import SAME
from gpuexec.passes import AT_LOAD, run_passes
from tests.ops.microsoft.composed import DOMAIN, Array, Composed, expect, make_model, run_composed
from tests.ops.microsoft.references import group_norm, softmax
from tests.ops.microsoft.samples import HALF, NARROW, SINGLE, flags, ints, sample

DOUBLE = np.dtype(np.float64)
_PARAMETERS = {
    "LeakyRelu": [0.2],
    "HardSigmoid": [0.3, 0.4],
    "Elu": [0.7],
    "Selu": [1.5, 1.1],
    "ThresholdedRelu": [0.4],
}


def gelu_cases() -> list[Composed]:
    cases = []
    for dtype in NARROW:
        x, bias = sample(2, 3, 8, dtype=dtype), sample(8, dtype=dtype, seed=1)
        cases += [
            Composed(f"Gelu-{dtype}", "Gelu", (x,)),
            Composed(f"QuickGelu-{dtype}", "QuickGelu", (x,)),
            Composed(f"BiasGelu-{dtype}", "BiasGelu", (x, bias)),
            Composed(f"FastGelu-{dtype}", "FastGelu", (x,)),
            Composed(f"FastGelu-bias-{dtype}", "FastGelu", (x, bias)),
        ]
    return [*cases, Composed("QuickGelu-alpha", "QuickGelu", (sample(5),), {"alpha": 0.5})]


def sum_cases() -> list[Composed]:
    x, bias, skip = sample(2, 3, 8), sample(8, seed=1), sample(2, 3, 8, seed=2)
    total = x + bias
    left, right = total[..., :4], np.array(total[..., 4:], np.float64)
    erf = np.array([__import__("math").erf(v) for v in (right / np.sqrt(2)).ravel()]).reshape(right.shape)
    wide = sample(2, 3, 4, 5)
    by_row, by_head = sample(2, 1, 1, 5, seed=3), sample(1, 3, 4, 5, seed=4)
    return [
        Composed("BiasAdd", "BiasAdd", (x, bias, skip), expected=(x + bias + skip,)),
        Composed("BiasDropout", "BiasDropout", (x, bias, skip), expected=(x + bias + skip,)),
        Composed(
            "BiasDropout-mask",
            "BiasDropout",
            (x, bias, None),
            outputs=(True, True),
            expected=(total, np.ones(x.shape, np.bool_)),
        ),
        Composed(
            "BiasSplitGelu",
            "BiasSplitGelu",
            (x, bias),
            expected=((left * (0.5 * right * (1 + erf))).astype(np.float32),),
        ),
        Composed(
            "BiasSoftmax-inner",
            "BiasSoftmax",
            (wide, by_row),
            {"axis": 3, "is_inner_broadcast": 1},
            expected=(softmax(wide + by_row, (3,)),),
        ),
        Composed(
            "BiasSoftmax-outer",
            "BiasSoftmax",
            (wide, by_head),
            {"axis": 2, "is_inner_broadcast": 0},
            expected=(softmax(wide + by_head, (2, 3)),),
        ),
    ]


def conv_cases() -> list[Composed]:
    x, w, bias, z = sample(1, 4, 7, 7), sample(6, 2, 3, 3, seed=1), sample(6, seed=2), sample(1, 6, 5, 5, seed=3)
    cases = [
        Composed(f"FusedConv-{name}", "FusedConv", (x, w, bias), {"group": 2, "activation": name, **params}, (1, 2))
        for name in ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid")
        for params in ({"activation_params": _PARAMETERS[name]} if name in _PARAMETERS else {},)
    ]
    doubles = (x.astype(DOUBLE), w.astype(DOUBLE))
    clip = {"group": 2, "activation": "Clip", "activation_params": [-0.5, 2.0]}
    cases += [
        Composed("FusedConv-Clip", "FusedConv", (x, w, bias), clip, const=(1,)),
        Composed("FusedConv-sum", "FusedConv", (x, w, bias, z), {"group": 2, "activation": "Relu"}),
        Composed("FusedConv-plain", "FusedConv", (x, w), {"group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        Composed("FusedConv-double", "FusedConv", doubles, {"group": 2}, expected=(_convolve(*doubles),)),
        Composed("FusedConv-1d", "FusedConv", (sample(2, 3, 9), sample(4, 3, 3)), {"activation": "Relu"}),
    ]
    first = _run("FusedConv", (x, w, bias, z), {"group": 2, "activation": "Relu"})
    last: tuple[Array, ...] = tuple(np.ascontiguousarray(np.moveaxis(each, 1, -1)) for each in (x, z, first))
    plain = np.moveaxis(_run("FusedConv", (x, w, bias), {"group": 2}), 1, -1)
    return [
        *cases,
        Composed("NhwcConv", "NhwcConv", (last[0], w, bias), {"group": 2}, expected=(plain,)),
        Composed(
            "NhwcFusedConv",
            "NhwcFusedConv",
            (last[0], w, bias, last[1]),
            {"group": 2, "activation": "Relu"},
            expected=(last[2],),
        ),
        Composed(
            "NhwcMaxPool",
            "NhwcMaxPool",
            (np.random.default_rng(0).integers(0, 256, (2, 6, 5, 3)).astype(np.uint8),),
            {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
        ),
    ]


def _run(op: str, inputs: tuple[Array, ...], attributes: dict[str, Any]) -> Array:
    return expect(Composed("", op, inputs, attributes))[0]


def _convolve(x: Array, w: Array) -> Array:
    case = Composed("", "Conv", (x, w), {"group": 2}, domain="")
    return np.asarray(ReferenceEvaluator(make_model(case, None)).run(None, {"x0": x, "x1": w})[0])


def product_cases() -> list[Composed]:
    a, b, c = sample(5, 7), sample(7, 4, seed=1), sample(4, seed=2)
    cases = [
        Composed(f"FusedGemm-{name}", "FusedGemm", (a, b, c), {"activation": name, **params})
        for name in ("Relu", "Tanh", "LeakyRelu", "Softplus", "Elu")
        for params in ({"activation_alpha": _PARAMETERS[name][0]} if name in _PARAMETERS else {},)
    ]
    turned = {"activation": "Relu", "transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
    product = np.maximum(1.5 * (a @ b), 0)
    return [
        *cases,
        Composed("FusedGemm-turned", "FusedGemm", (a.T.copy(), b.T.copy(), c), turned),
        Composed("FusedGemm-no-c", "FusedGemm", (a, b), {"activation": "Sigmoid"}),
        Composed(
            "FusedMatMulActivation",
            "FusedMatMulActivation",
            (a, b),
            {"activation": "Relu", "alpha": 1.5},
            expected=(product,),
        ),
        Composed(
            "FusedMatMulActivation-Softmax",
            "FusedMatMulActivation",
            (a, b),
            {"activation": "Softmax", "activation_axis": 0},
            expected=(softmax(a @ b, (0,)),),
        ),
        Composed("TransposeMatMul", "TransposeMatMul", (sample(2, 7, 5), b[None]), {"transA": 1, "alpha": 2.0}),
        Composed("GemmFastGelu", "GemmFastGelu", (a, b, c), expected=(_run("FastGelu", (a @ b, c), {}),)),
        Composed("GemmFastGelu-no-bias", "GemmFastGelu", (a, b), expected=(_run("FastGelu", (a @ b,), {}),)),
    ]


def norm_cases() -> list[Composed]:
    cases = []
    for dtype, kind in ((SINGLE, SINGLE), (HALF, SINGLE), (HALF, HALF)):
        x = sample(2, 3, 4, 8, dtype=dtype)
        gamma, beta = sample(8, dtype=kind, seed=1), sample(8, dtype=kind, seed=2)
        skip, bias = sample(2, 8, dtype=dtype, seed=3), sample(8, dtype=dtype, seed=4)
        total = (x + skip[:, None, None] + bias).astype(dtype)
        first, attributes = np.ascontiguousarray(np.moveaxis(x, -1, 1)), {"groups": 2, "epsilon": 0.01}
        turned = np.moveaxis(group_norm(np.moveaxis(first, 1, -1), gamma, beta, 2, 0.01, False), -1, 1)
        cases += [
            Composed(
                f"GroupNorm-{dtype}-{kind}",
                "GroupNorm",
                (x, gamma, beta),
                {**attributes, "activation": 1},
                expected=(group_norm(x, gamma, beta, 2, 0.01, True),),
            ),
            Composed(
                f"GroupNorm-first-{dtype}-{kind}",
                "GroupNorm",
                (first, gamma, beta),
                {**attributes, "activation": 0, "channels_last": 0},
                expected=(turned,),
            ),
            Composed(
                f"SkipGroupNorm-{dtype}-{kind}",
                "SkipGroupNorm",
                (x, gamma, beta, skip, bias),
                {**attributes, "activation": 0},
                outputs=(True, True),
                expected=(group_norm(total, gamma, beta, 2, 0.01, False), total),
            ),
        ]
    x, scale = sample(3, 2, 40), sample(40, seed=1)
    root = {"domain": "", "attributes": {"epsilon": 0.02}}
    return [
        *cases,
        Composed("SimplifiedLayerNormalization", "SimplifiedLayerNormalization", (x, scale), **root),
        Composed(
            "SimplifiedLayerNormalization-statistics",
            "SimplifiedLayerNormalization",
            (x, scale),
            outputs=(True, True),
            **root,
        ),
    ]


def embedding_cases() -> list[Composed]:
    words, segments = ints([1, 5, 3], [0, 2, 9]), ints([0, 0, 1], [1, 0, 1])
    tables = (sample(10, 8), sample(6, 8, seed=1), sample(2, 8, seed=2), sample(8, seed=3), sample(8, seed=4))
    mask, positions = ints([1, 1, 0], [0, 1, 1]), ints([3, 2, 1], [5, 0, 4])
    name, three = "EmbedLayerNormalization", (True, True, True)
    word, position, _, gamma, beta = tables
    return [
        Composed("embed", name, (words, segments, *tables), outputs=(True, True)),
        Composed("embed-mask", name, (words, segments, *tables, mask), outputs=three),
        Composed("embed-positions", name, (words, segments, *tables, mask, positions), {"epsilon": 0.1}, outputs=three),
        Composed("embed-no-segments", name, (words, None, word, position, None, gamma, beta), outputs=(True, True)),
    ]


def renamed_cases() -> list[Composed]:
    x = sample(4, 5)
    grid = np.clip(sample(1, 3, 3, 2), -1, 1)
    return [
        Composed("Trilu", "Trilu", (x, np.array(1, np.int64)), {"upper": 0}),
        Composed("ExpandDims", "ExpandDims", (x, np.array(-2, np.int32)), const=(1,)),
        Composed("Range", "Range", (np.array(1, np.int64), np.array(6, np.int64)), const=(0, 1)),
        Composed("Range-step", "Range", tuple(np.array([n], np.float32) for n in (0, 2, 0.5)), const=(0, 1, 2)),
        Composed("Pad", "Pad", (x, np.array([[1, 0, 2, 3]]), sample(1)), const=(1,)),
        Composed("Pad-edge", "Pad", (x, np.array([1, 0, 2, 3])), {"mode": "edge"}, const=(1,)),
        Composed("GatherND", "GatherND", (x, np.array([[0, 1], [3, 4]], np.int64))),
        Composed("GridSample", "GridSample", (sample(1, 2, 4, 4), grid), {"mode": "bilinear", "align_corners": 1}),
        Composed("GridSample-cubic", "GridSample", (sample(1, 2, 4, 4), grid), {"mode": "bicubic"}),
        Composed("SampleOp", "SampleOp", (x,), expected=(x,)),
    ]


CASES = [
    *gelu_cases(),
    *sum_cases(),
    *conv_cases(),
    *product_cases(),
    *norm_cases(),
    *embedding_cases(),
    *renamed_cases(),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_composed(case: Composed) -> None:
    run_composed(case)


def test_activation_goes_into_the_convolution() -> None:
    case = next(case for case in CASES if case.id == "FusedConv-Clip")
    graph = run_passes(load_graph(make_model(case, case.inputs[:1]).SerializeToString()).graph, AT_LOAD)
    assert [node.operator.name for node in graph.nodes] == ["Conv", "Clip"]


def test_unique_comes_in_order_of_first_occurrence() -> None:
    import gpuexec as gx

    x = np.array([2, 1, 1, 3, 4, 3], np.float32)
    index = np.array([0], np.int64)
    case = Composed("Unique", "Unique", (x,), outputs=(True, True, True))
    with gx.Worker(gx.load(make_model(case, (x, index, index)).SerializeToString())) as worker:
        outputs = worker.run([x])
    for got, wanted in zip(
        outputs,
        ([2, 1, 3, 4], [0, 1, 1, 2, 3, 2], [1, 2, 2, 1]),
        strict=True,
    ):
        np.testing.assert_array_equal(got, wanted)


WRONG = [
    ("FusedConv", {"activation": "Nonsense"}, "activation to be one of"),
    ("FusedConv", {"activation": "Clip", "activation_params": [1.0]}, "2 parameters of Clip"),
    ("FusedConv", {"activation": "Relu", "activation_params": [1.0]}, "0 parameters of Relu"),
    ("FusedGemm", {"activation": "Nonsense"}, "activation to be one of"),
    ("GroupNorm", {"activation": 2, "groups": 1}, "activation 0 or 1"),
    ("GroupNorm", {"activation": 0}, "lacks its required attribute groups"),
    ("RotaryEmbedding", {"scale": 2.0}, "scale 1"),
    ("RotaryEmbedding", {"rotary_embedding_dim": 4}, "num_heads with rotary_embedding_dim"),
    ("Attention", {"num_heads": 2, "qkv_hidden_sizes": [4, 4]}, "three qkv_hidden_sizes"),
    ("MultiHeadAttention", {}, "lacks its required attribute num_heads"),
    ("GroupQueryAttention", {"num_heads": 2, "kv_num_heads": 1, "k_quant_type": "PER_TENSOR"}, "k_quant_type 'NONE'"),
    ("GroupQueryAttention", {"num_heads": 2, "kv_num_heads": 1, "sliding_window_cache": 1}, "sliding_window_cache 0"),
    ("GroupQueryAttention", {"num_heads": 2, "kv_num_heads": 1, "causal": 0, "local_window_size": 2}, "with causal 0"),
    ("GroupQueryAttention", {"num_heads": 2, "kv_num_heads": 1, "qk_output": 3}, "qk_output 0, 1 or 2"),
]


@pytest.mark.parametrize(("name", "attributes", "words"), WRONG)
def test_wrong_attributes_are_refused(name: str, attributes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        build(f"{DOMAIN}.{name}", attributes)


def test_wrong_inputs_are_refused_with_the_node() -> None:
    x = sample(1, 4, 4, 8)
    parameters = sample(8)
    case = Composed(
        "", "SkipGroupNorm", (x, parameters, parameters, x), {"activation": 0, "groups": 2, "channels_last": 0}
    )
    graph = load_graph(make_model(case, (x,)).SerializeToString()).graph
    with pytest.raises(InputError, match=r"'node'.*channels_last 1"):
        run_passes(graph, AT_LOAD)
    many = Composed("", "BiasAdd", (x, x, x, x), {})
    with pytest.raises(ModelError, match="BiasAdd 'node' takes at most 3 inputs and 1 outputs, got 4 and 1"):
        load_graph(make_model(many, (x,)).SerializeToString())
    with pytest.raises(InputError, match="at most 3 inputs, got 4"):
        build("com.microsoft.BiasAdd", {}).infer(*[TensorSpec.of(x)] * 4)


def test_unknown_attributes_are_refused_with_the_node() -> None:
    case = Composed("", "BiasGelu", (sample(2, 3), sample(3)), {"what": 1})
    with pytest.raises(ModelError, match=r"BiasGelu.*no attribute what.*node"):
        load_graph(make_model(case, (sample(2, 3),)).SerializeToString())


def test_names_of_tables_are_operators() -> None:
    for name in (*ACTIVATIONS, *SAME.values()):
        build(name, {})
    assert flags(2, 3).dtype == np.int32
