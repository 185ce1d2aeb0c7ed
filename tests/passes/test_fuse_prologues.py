"""The pass fuse_prologues: fusion of products of few rows with what makes their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, parser

import gpuexec as gx
from gpuexec.ir.command import Launch
from gpuexec.ir.graphs import Graph, check
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise import prologue
from gpuexec.ops.elementwise.fused import Fused
from gpuexec.ops.elementwise.prologue import ProductOfRows
from gpuexec.passes import AT_PLAN, run_passes
from gpuexec.planner.template import plan_graph
from tests.ir.graph_builder import GraphBuilder
from tests.model.small_models import CPU
from tests.ops.tolerance import to_bits
from tests.passes.harness import load, operators

SIMULATOR = gx.BackendType.SIMULATOR
HALF = np.dtype(np.float16)
SHAPES = {
    "x": (1, 2, 64), "z": (1, 2, 64), "row": (64,), "w": (64, 64), "v": (64, 24), "many": (1, 40, 64),
    "residual": (1, 2, 64),
}  # fmt: skip
SPECS = {name: TensorSpec(shape, HALF) for name, shape in SHAPES.items()}
CONSTANTS = "<int64[2] flat = {-1, 64}, int64[1] last = {-1}>"
NORM = "n = LayerNormalization (x, row, row)"
GATE = "s = Sigmoid (x) g = Mul (x, s) n = Mul (g, z)"


def text_of(body: str, outputs: str) -> str:
    inputs = ", ".join(f"float16{list(shape)} {name}" for name, shape in SHAPES.items())
    return f"agraph ({inputs}) => ({outputs}) {CONSTANTS} {{ {body} }}"


def fuse(body: str, outputs: str = "float16[1, 2, 64] y", disabled: tuple[str, ...] = ()) -> Graph:
    """Return the graph of a body as it is planned."""
    graph = run_passes(load(text_of(body, outputs)), AT_PLAN, disabled=set(disabled), specs=SPECS)
    check(graph)
    return graph


def list_made(graph: Graph) -> list[tuple[str, str, list[str]]]:
    """Return the steps, the product and the inputs of each product of rows."""
    return [
        (" ".join(name_steps(node.operator)), node.operator.product[0], [v.name for v in node.inputs if v])
        for node in graph.nodes
        if isinstance(node.operator, ProductOfRows)
    ]


def name_steps(operator: ProductOfRows) -> list[str]:
    """Return the operators that make its rows."""
    maker = operator.parts.maker
    before = [maker.of.name] if isinstance(maker, Fused) else []
    return [*before, *(row[0] for row in getattr(maker, "steps", ()))] or [maker.name]


FUSED = {
    "norm": (f"{NORM} y = MatMul (n, w)", "LayerNormalization", "MatMul", ["x", "row", "row", "w"]),
    "chain": (f"{GATE} y = MatMul (n, w)", "Sigmoid Mul Mul", "MatMul", ["x", "z", "w"]),
    "one": ("n = Mul (x, z) y = MatMul (n, w)", "Mul", "MatMul", ["x", "z", "w"]),
    "region": (
        "u = Add (x, z) n = LayerNormalization (u, row, row) r = Relu (n) y = MatMul (r, w)",
        "Add LayerNormalization Relu", "MatMul", ["x", "z", "row", "w"],
    ),
    "epilogues": (
        f"{NORM} r = Relu (n) p = MatMul (r, w) y = Add (p, residual)",
        "LayerNormalization Relu", "gpuexec.FusedMatMul", ["x", "row", "w", "residual"],
    ),
    "view": (
        f"{NORM} f = Reshape (n, flat) t = Gemm (f, w) y = Reshape (t, shape)",
        "LayerNormalization", "Gemm", ["x", "row", "row", "w"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "steps", "product", "inputs"), FUSED.values(), ids=FUSED)
def test_rows_go_into_the_product(body: str, steps: str, product: str, inputs: list[str]) -> None:
    constants = CONSTANTS.replace(">", ", int64[3] shape = {1, 2, 64}>")
    text = text_of(body, "float16[1, 2, 64] y").replace(CONSTANTS, constants)
    graph = run_passes(load(text), AT_PLAN, specs=SPECS)
    check(graph)
    assert list_made(graph) == [(steps, product, inputs)]
    assert [name for name in operators(graph) if name != "Reshape"] == ["gpuexec.ProductOfRows"]
    names = [node.name for node in graph.nodes if isinstance(node.operator, ProductOfRows)]
    assert "+" in names[0]


def test_a_few_products_make_the_same_rows_each() -> None:
    outputs = "float16[1, 2, 64] y, float16[1, 2, 24] u"
    made = list_made(fuse(f"{NORM} y = MatMul (n, w) u = MatMul (n, v)", outputs))
    assert [inputs[-1] for _, _, inputs in made] == ["w", "v"]
    body = " ".join(f"y{k} = MatMul (n, w)" for k in range(4))
    outputs = ", ".join(f"float16[1, 2, 64] y{k}" for k in range(4))
    graph = load(text_of(f"{NORM} {body}", outputs))
    assert list_made(run_passes(graph, [AT_PLAN[-2]], specs=SPECS)) == []


LEFT = {
    "output": (f"{NORM} y = MatMul (n, w)", "float16[1, 2, 64] y, float16[1, 2, 64] n"),
    "other_reader": (f"{NORM} y = MatMul (n, w) u = Neg (n)", "float16[1, 2, 64] y, float16[1, 2, 64] u"),
    "other_place": (f"{NORM} t = Transpose <perm = [0, 2, 1]> (n) y = MatMul (n, t)", "float16[1, 2, 2] y"),
    "batches": (f"{NORM} k = Unsqueeze (w, last) t = Transpose <perm = [2, 0, 1]> (k) y = MatMul (n, t)",
                "float16[1, 2, 64] y"),
    "many_rows": ("n = LayerNormalization (many, row, row) y = MatMul (n, w)", "float16[1, 40, 64] y"),
    "right": ("n = LayerNormalization (w, row, row) y = MatMul (x, n)", "float16[1, 2, 64] y"),
    "nothing": ("y = MatMul (x, w)", "float16[1, 2, 64] y"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "outputs"), LEFT.values(), ids=LEFT)
def test_rows_stay_apart(body: str, outputs: str) -> None:
    assert list_made(fuse(body, outputs)) == []


def test_products_of_float_stay_apart() -> None:
    graph = load("agraph (float[1, 64] x, float[64] row, float[64, 64] w) => (float[1, 64] y)"
                 "{ n = LayerNormalization (x, row, row) y = MatMul (n, w) }")  # fmt: skip
    specs = {name: TensorSpec(shape, np.dtype(np.float32)) for name, shape in
             {"x": (1, 64), "row": (64,), "w": (64, 64)}.items()}  # fmt: skip
    assert list_made(run_passes(graph, AT_PLAN, specs=specs)) == []


def test_the_first_operators_alone_where_they_are_limited() -> None:
    graph = load(text_of(f"{NORM} p = MatMul (n, w) m = LayerNormalization (p, row, row) y = MatMul (m, w)",
                         "float16[1, 2, 64] y"))  # fmt: skip
    for limit in (0, 1, 2):
        assert len(list_made(AT_PLAN[-2].function(graph, SPECS, limit))) == limit


WIDTH = 512  # of which products of few rows take flat tiles
BODY = """n = RMSNormalization (x, row) q = MatMul (n, w) h = Add (q, residual) m = LayerNormalization (h, row, row)
    a = MatMul (m, w) b = MatMul (m, w2) s = Sigmoid (a) g = Mul (a, s) f = Mul (g, b) d = MatMul (f, w)
    y = Add (d, h)"""


def make_decoder(rows: int) -> tuple[bytes, dict[str, Any]]:
    """Return a layer whose products read rows that others make, and its inputs."""
    rng = np.random.default_rng(rows)
    inputs = {name: (rng.normal(size=(1, rows, WIDTH)) / 2).astype(HALF) for name in ("x", "residual")}
    weights = {name: (rng.normal(size=(WIDTH, WIDTH)) / 24).astype(HALF) for name in ("w", "w2")} | {
        "row": np.ones(WIDTH, HALF)
    }
    ports = ", ".join(f"float16[1, r, {WIDTH}] {name}" for name in inputs)
    model = parser.parse_model(
        f'<ir_version: 11, opset_import: ["": 23]> agraph ({ports}) => (float16[1, r, {WIDTH}] y) {{ {BODY} }}'
    )
    model.graph.initializer.extend(
        helper.make_tensor(name, 10, each.shape, each.tobytes(), raw=True) for name, each in weights.items()
    )
    return model.SerializeToString(), inputs


@pytest.mark.parametrize("backend", [CPU, SIMULATOR])
@pytest.mark.parametrize("rows", [1, 3, 8, 9])
def test_models_give_the_same_bits(rows: int, backend: gx.BackendType) -> None:
    data, inputs = make_decoder(rows)
    results = []
    for disabled in ((), ("fuse_prologues",)):
        with gx.Worker(gx.load(data, disabled_passes=disabled), backend=backend) as worker:
            results.append(worker.run(inputs)[0])
    np.testing.assert_array_equal(to_bits(results[0]), to_bits(results[1]))


def test_a_layer_of_one_row_has_a_launch_for_each_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologue, "_is_worth", lambda *_: True)
    data, inputs = make_decoder(1)
    model = gx.load(data)
    specs = {name: TensorSpec(x.shape, x.dtype) for name, x in inputs.items()}
    graph = run_passes(model.graph, AT_PLAN, specs=specs)
    commands = plan_graph(graph, specs, Target.named("sm_90")).plan.segment.commands
    sources = [each.kernel.source for each in commands if isinstance(each, Launch)]
    assert sources.count("mma_rows.cu") == len(sources) == 3, sources


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_products_with_codes_of_up_to_four_rows_make_them(rows: int) -> None:
    builder = GraphBuilder()
    x, residual = (builder.input(name, 1, rows, width, dtype=np.float16) for name, width in (("x", 64), ("r", 8)))
    codes = builder.constant(np.zeros((8, 2, 16), np.uint8))
    attributes = {"K": 64, "N": 8, "block_size": 32, "bits": 4}
    scales = builder.constant(np.ones(16, np.float16))
    made = builder.node(build("Softmax", {}), x)
    product = builder.node(build("com.microsoft.MatMulNBits", attributes), made, codes, scales)
    graph = builder.graph(builder.node(build("Add", {}), product, residual))
    specs = {name: TensorSpec((1, rows, width), np.dtype(np.float16)) for name, width in (("x", 64), ("r", 8))}
    planned = run_passes(graph, AT_PLAN, specs=specs)
    check(planned)
    if rows > 4:
        assert operators(planned) == ["Softmax", "gpuexec.FusedMatMulNBits"]
    else:
        assert list_made(planned) == [("Softmax", "gpuexec.FusedMatMulNBits", ["x", codes.name, scales.name, "r"])]
