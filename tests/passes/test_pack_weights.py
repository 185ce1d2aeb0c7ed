"""Packed 4-bit weights: kept in blocks where a product reads them, else widened at load."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import gpuexec as gx

Array = np.ndarray[Any, Any]
BACKENDS = (gx.BackendType.CPU, gx.BackendType.SIMULATOR, gx.BackendType.SIMULATOR_PIXEL)
PACKED = ["com.microsoft.MatMulNBits"]
MATMUL = helper.make_node("MatMul", ["x", "v"], ["y"], name="m")
TURN = helper.make_node("Transpose", ["t"], ["v"], perm=[1, 0])


def widen(made: str, axis: int = 0, block: int = 32, zero: bool = True, **attributes: int) -> onnx.NodeProto:
    names = ["w", "s", "z"] if zero else ["w", "s"]
    return helper.make_node("DequantizeLinear", names, [made], axis=axis, block_size=block, **attributes)


def weights(
    inner: int, columns: int, block: int, kind: Any = ml_dtypes.int4, dtype: Any = np.float32
) -> dict[str, Array]:
    """Return a weight ``[inner, columns]`` with scales and zero points of its blocks along the first axis."""
    rng = np.random.default_rng([inner, columns, block])
    low, high = (-8, 8) if kind is ml_dtypes.int4 else (0, 16)
    blocks = -(-inner // block)
    w, z = (rng.integers(low, high, (rows, columns)).astype(kind) for rows in (inner, blocks))
    return {"w": w, "s": rng.uniform(0.01, 0.1, (blocks, columns)).astype(dtype), "z": z}


def make(nodes: list[onnx.NodeProto], held: dict[str, Array], outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    used = {name for node in nodes for name in node.input}
    code = helper.np_dtype_to_tensor_dtype(held["s"].dtype)
    ports = [helper.make_tensor_value_info(name, code, None) for name in outputs]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items() if name in used]
    x = helper.make_tensor_value_info("x", code, ["batch", "rows", "inner"])
    graph = helper.make_graph(nodes, "g", [x], ports, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def turned(held: dict[str, Array]) -> dict[str, Array]:
    return {name: np.ascontiguousarray(array.T) for name, array in held.items()}


def product(x: Array, held: dict[str, Array], block: int, has_zero: bool) -> Array:
    """Return the product in doubles."""
    inner = held["w"].shape[0]
    scale, zero = (np.repeat(held[name].astype(np.float64), block, axis=0)[:inner] for name in ("s", "z"))
    return x.astype(np.float64) @ ((held["w"].astype(np.float64) - zero * has_zero) * scale)


CASES = {
    "signed": (64, 10, 32, ml_dtypes.int4, np.float32, True),
    "unsigned": (64, 10, 32, ml_dtypes.uint4, np.float32, True),
    "signed, no zero points": (64, 10, 16, ml_dtypes.int4, np.float32, False),
    "unsigned, no zero points": (48, 10, 16, ml_dtypes.uint4, np.float32, False),
    "half": (64, 10, 32, ml_dtypes.uint4, np.float16, True),
    "last block cut": (70, 3, 32, ml_dtypes.int4, np.float32, True),
    "one block": (256, 3, 256, ml_dtypes.uint4, np.float32, True),
}


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("is_turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize(("inner", "columns", "block", "kind", "dtype", "has_zero"), CASES.values(), ids=CASES)
def test_a_product_reads_the_packed_weight(
    inner: int,
    columns: int,
    block: int,
    kind: Any,
    dtype: Any,
    has_zero: bool,
    is_turned: bool,
    backend: gx.BackendType,
) -> None:
    held = weights(inner, columns, block, kind, dtype)
    nodes = [widen("t", 1, block, has_zero), TURN] if is_turned else [widen("v", 0, block, has_zero)]
    model = gx.load(make([*nodes, MATMUL], turned(held) if is_turned else held))
    assert [node.operator.name for node in model.graph.nodes] == PACKED
    assert sum(array.nbytes for array in model.graph.constants.values()) < held["w"].size
    x = np.random.default_rng(1).standard_normal((2, 3, inner)).astype(dtype)
    expected = product(x, held, block, has_zero)
    with gx.Worker(model, backend=backend) as worker:
        got = worker.run({"x": x})[0]
        assert not worker.report().host_calls
    assert (got.dtype, got.shape) == (x.dtype, expected.shape)
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(got, expected, rtol=eps * 8, atol=eps * inner)


SMALL = weights(64, 10, 32)
WIDENED: dict[str, tuple[list[onnx.NodeProto], dict[str, Array], tuple[str, ...]]] = {
    "blocks along the columns": ([widen("v", 1), MATMUL], turned(weights(64, 64, 32)), ("y",)),
    "turned blocks along the inner extent": ([widen("t", 0), TURN, MATMUL], SMALL | weights(64, 64, 32), ("y",)),
    "of 8 bits": ([widen("v"), MATMUL], {**SMALL, **{n: SMALL[n].astype(np.int8) for n in "wz"}}, ("y",)),
    "small blocks": ([widen("v", 0, 8), MATMUL], weights(64, 10, 8), ("y",)),
    "an output too": ([widen("v"), MATMUL], SMALL, ("y", "v")),
    "another reader": ([widen("v"), MATMUL, helper.make_node("Neg", ["v"], ["u"])], SMALL, ("y", "u")),
    "the left side": ([widen("l"), helper.make_node("MatMul", ["l", "x"], ["y"])], SMALL, ("y",)),
}


@pytest.mark.parametrize(("nodes", "held", "outputs"), WIDENED.values(), ids=WIDENED)
def test_other_weights_are_widened(
    nodes: list[onnx.NodeProto], held: dict[str, Array], outputs: tuple[str, ...]
) -> None:
    names = [node.operator.name for node in gx.load(make(nodes, held, outputs)).graph.nodes]
    assert PACKED[0] not in names


def test_two_products_share_a_packed_weight() -> None:
    rows = ((["y", "w2"], ["u"]), (["u", "v"], ["o"]))
    nodes = [widen("v"), MATMUL, *(helper.make_node("MatMul", *row) for row in rows)]
    held = {**SMALL, "w2": np.ones((10, 64), np.float32)}
    graph = gx.load(make(nodes, held, ("o",))).graph
    packed = [node for node in graph.nodes if node.operator.name in PACKED]
    assert len(packed) == 2 and packed[0].inputs[1:] == packed[1].inputs[1:]


def test_a_saved_model_says_it_as_it_was_read(tmp_path: Any) -> None:
    model = gx.load(make([widen("v"), MATMUL], SMALL))
    model.save(tmp_path / "saved.onnx")
    saved = onnx.load(tmp_path / "saved.onnx")
    assert [node.op_type for node in saved.graph.node] == ["DequantizeLinear", "MatMul"]
    gx.Program.build({"forward": model}, shapes={"forward": {"x": (1, 1, 64)}}).save(tmp_path / "saved.gxp")
    x = np.random.default_rng(2).standard_normal((1, 1, 64)).astype(np.float32)
    with gx.Module(tmp_path / "saved.gxp", backend=gx.BackendType.CPU) as module:
        np.testing.assert_allclose(module.forward(x)[0], product(x, SMALL, 32, True), rtol=1e-5, atol=1e-5)
