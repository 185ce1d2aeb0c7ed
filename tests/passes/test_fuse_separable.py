"""The pass fuse_separable: fusion of depthwise convolutions with those of one tap behind them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.ir.command import Launch
from gpuexec.ir.graphs import Graph, check
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes.fuse_epilogues import fuse_epilogues
from gpuexec.passes.fuse_rounding import fuse_rounding
from gpuexec.passes.fuse_separable import fuse_separable
from gpuexec.program.container import read_contents
from gpuexec.program.data_loader import FileDataLoader
from tests.devices.cuda_wheels import needs_cuda_wheels
from tests.model.small_models import CPU
from tests.ops.tolerance import to_bits
from tests.passes.harness import check_computed, load

NAME = "gpuexec.SeparableConv"
HALF = np.dtype(np.float16)
SPECS = {"x": TensorSpec((2, 8, 5, 6), HALF), "d": TensorSpec((8, 1, 3, 3), HALF), "k": TensorSpec((16, 8, 1, 1), HALF)}
WHOLE = "p = Conv <group = 8, pads = [1, 1, 1, 1]> (x, d) a = Relu (p) c = Conv (a, k) y = Sigmoid (c)"
Y = "float16[n, c, h, w] y"


def text_of(body: str, outputs: str = Y, kernel: str = "float16[outs, 8, 1, 1] k") -> str:
    return f"agraph (float16[n, 8, h, w] x, float16[8, 1, 3, 3] d, {kernel}) => ({outputs}) {{ {body} }}"


def fuse(text: str | Graph, **specs: TensorSpec) -> Graph:
    given, before = SPECS | specs, load(text) if isinstance(text, str) else text
    graph = fuse_separable(fuse_epilogues(before, given), given)
    check(graph)
    return graph


def names(graph: Graph) -> list[str]:
    return [node.operator.name for node in graph.nodes]


def test_pairs_become_one_node_named_by_both() -> None:
    (node,) = fuse(text_of(WHOLE)).nodes
    assert node.operator.name == NAME
    assert [name for name, _, _ in node.operator.steps] == ["gpuexec.FusedConv"] * 2  # type: ignore[attr-defined]
    assert [value.name for value in node.inputs if value is not None] == ["x", "d", "k"]
    assert "+" in node.name and node.outputs[0].name == "y"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "body",
    [
        WHOLE.replace("Sigmoid", "Relu"),
        "p = Conv <group = 8, strides = [2, 2]> (x, d) y = Conv (p, k)",
        "p = Conv <group = 8> (x, d) q = Conv <group = 8, pads = [1, 1, 1, 1]> (x, d) c = Conv (p, k) e = Conv (q, k) "
        "f = Shape (c) y = Resize (e, , , f)",
    ],
)
def test_results_stay(body: str) -> None:
    rng = np.random.default_rng(0)
    feeds = {name: rng.integers(-2, 3, spec.shape).astype(HALF) for name, spec in SPECS.items()}
    before = load(text_of(body))
    after = fuse(before)
    assert NAME in names(after)
    check_computed(before, after, **feeds)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("p = Conv <group = 8> (x, d) y = Conv (p, k)", f"{Y}, float16[n, c, h, w] p"),
        ("p = Conv <group = 8> (x, d) c = Conv (p, k) s = ReduceMax (p) y = Add (c, s)", Y),
        ("p = Conv <group = 8> (x, d) y = Conv <strides = [2, 2]> (p, k)", Y),
        ("p = Conv <group = 8> (x, d) y = Conv <pads = [1, 1, 1, 1]> (p, k)", Y),
        ("p = Conv <group = 8> (x, d) y = Relu (p)", Y),
        ("p = Conv (x, k) y = Conv (x, k)", Y),
    ],
    ids=["given out", "read beside", "strides", "pads", "no second", "not depthwise"],
)
def test_others_stay_apart(body: str, outputs: str) -> None:
    assert NAME not in names(fuse(text_of(body, outputs)))


def test_floats_and_odd_channels_stay_apart() -> None:
    text = text_of(WHOLE)
    floats = {name: TensorSpec(spec.shape, np.dtype(np.float32)) for name, spec in SPECS.items()}
    graph = load(text.replace("float16", "float"))
    assert fuse_separable(graph, floats) is graph
    odd = text.replace("8", "6").replace("float1616", "float16").replace("float166", "float16")
    shapes = {"x": (2, 6, 5, 6), "d": (6, 1, 3, 3), "k": (16, 6, 1, 1)}
    assert NAME not in names(fuse(odd, **{name: TensorSpec(shape, HALF) for name, shape in shapes.items()}))


def test_roundings_between_steps_are_left_out_within() -> None:
    (node,) = fuse_rounding(fuse(text_of(WHOLE))).nodes
    rows = [dict(attributes) for _, attributes, _ in node.operator.steps]  # type: ignore[attr-defined]
    assert [row["rounds"] for row in rows] == [False, False]


def make(disabled: Sequence[str] = ()) -> gx.Model:
    text = f'<ir_version: 10, opset_import: ["": 18]> {text_of(WHOLE)}'
    return gx.load(parser.parse_model(text), disabled_passes=disabled)


def feeds(batch: int, height: int, outs: int = 24) -> dict[str, Any]:
    rng = np.random.default_rng(batch)
    shapes = {"x": (batch, 8, height, 6), "d": (8, 1, 3, 3), "k": (outs, 8, 1, 1)}
    return {name: rng.standard_normal(shape).astype(HALF) for name, shape in shapes.items()}


def list_separable(worker: gx.Worker) -> list[str]:
    """Return the kernels of both convolutions in a worker's plans."""
    kernels = [kernel for plan in worker.plans for kernel in plan.kernels()]
    return [each.expression for each in kernels if each.source == "conv_separable.cu"]


@pytest.mark.parametrize("outs", [24, 8], ids=["many", "transposed"])
@pytest.mark.parametrize("backend", [CPU, gx.BackendType.SIMULATOR])
def test_bits_stay_at_all_sizes(backend: gx.BackendType, outs: int) -> None:
    with (
        gx.Worker(make(), backend=backend) as fused,
        gx.Worker(make(["fuse_separable"]), backend=backend) as apart,
    ):
        for batch, height in ((1, 5), (3, 5), (2, 40), (4, 1), (1, 5), *((2, 33 + more) for more in range(6))):
            got, expected = (each.run(feeds(batch, height, outs))[0] for each in (fused, apart))
            np.testing.assert_array_equal(to_bits(np.asarray(got)), to_bits(np.asarray(expected)))
        if backend is not CPU:
            assert list_separable(fused)
            assert not list_separable(apart)


@needs_cuda_wheels
def test_programs_hold_the_launch(tmp_path: Path) -> None:
    shapes = {name: array.shape for name, array in feeds(2, 6).items()}
    program = gx.Program.build({"forward": make()}, shapes={"forward": shapes}, architectures=["sm_90"])
    program.save(tmp_path / "separable.gxp")
    loaded = gx.Program.load(tmp_path / "separable.gxp", backend=gx.BackendType.SIMULATOR)
    given = feeds(2, 6)
    with (
        loaded.load_method("forward") as method,
        gx.Worker(make(["fuse_separable"]), backend=gx.BackendType.SIMULATOR) as apart,
    ):
        method.execute([given[name] for name in ("x", "d", "k")])
        got, expected = method.get_outputs()[0].readback_and_clone(), apart.run(given)[0]
    np.testing.assert_array_equal(to_bits(np.asarray(got)), to_bits(np.asarray(expected)))
    stored = read_contents(FileDataLoader(tmp_path / "separable.gxp")).methods["forward"]
    kernels = [kernel.source for plans in stored.plans.values() for plan in plans for kernel in plan.kernels()]
    assert "conv_separable.cu" in kernels and "conv_depthwise_last.cu" not in kernels


def test_the_command_is_named_by_both_nodes() -> None:
    with gx.Worker(make(), backend=gx.BackendType.SIMULATOR) as worker:
        worker.run(feeds(1, 5))
        (plan,) = worker.plans
    origins = [
        origin
        for command, origin in zip(plan.segment.commands, plan.segment.origins, strict=True)
        if isinstance(command, Launch) and command.kernel.source == "conv_separable.cu"
    ]
    (node,) = fuse(text_of(WHOLE), **{name: TensorSpec(a.shape, HALF) for name, a in feeds(1, 5).items()}).nodes
    assert origins == [node.name] and node.name.count("+") == 3
