"""The pass fuse_rounding: half and bfloat16 pass between the steps of fused operators as they are computed."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.ops.elementwise.fused import Fused
from gpuexec.ops.elementwise.region import Region
from gpuexec.passes.fuse_rounding import fuse_rounding
from tests.model.small_models import CPU
from tests.passes.harness import load, operators

SIMULATOR = gx.BackendType.SIMULATOR
# Each product needs more bits than half and bfloat16 have.
STEPS = "a = Mul (x, x) b = Mul (a, a) y = Add (b, x)"


def make_chain(dtype: str, steps: str = STEPS) -> bytes:
    text = f'<ir_version: 10, opset_import: ["": 22]> agraph ({dtype}[4, 6] x) => ({dtype}[4, 6] y) {{ {steps} }}'
    return parser.parse_model(text).SerializeToString()


def make_values(dtype: type) -> np.ndarray:
    return np.random.default_rng(0).uniform(1, 2, (4, 6)).astype(dtype)


@pytest.mark.parametrize("backend", [CPU, SIMULATOR])
@pytest.mark.parametrize(("name", "dtype"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_steps_are_rounded_once_where_it_is_asked_for(backend: gx.BackendType, name: str, dtype: type) -> None:
    x = make_values(dtype)
    wide = x.astype(np.float32)
    squared = x * x
    once, each = (wide * wide * (wide * wide) + wide).astype(dtype), squared * squared + x
    assert not np.array_equal(once, each)
    for fuses, expected in ((True, once), (False, each), (None, each)):
        with gx.Worker(make_chain(name), backend=backend, fuse_rounding=fuses) as worker:
            np.testing.assert_array_equal(worker.run(x)[0], expected)


@pytest.mark.parametrize("backend", [CPU, SIMULATOR])
def test_what_a_step_gives_out_is_rounded_and_read_as_it_was_computed(backend: gx.BackendType) -> None:
    text = """<ir_version: 10, opset_import: ["": 22]> agraph (float16[4, 6] x) => (float16[4, 6] y, float16[4, 6] a)
        { a = Mul (x, x) y = Mul (a, a) }"""
    x = make_values(np.float16)
    wide = x.astype(np.float32)
    with gx.Worker(parser.parse_model(text).SerializeToString(), backend=backend, fuse_rounding=True) as worker:
        y, a = worker.run(x)
    np.testing.assert_array_equal(a, x * x)
    np.testing.assert_array_equal(y, (wide * wide * (wide * wide)).astype(np.float16))


def test_sums_of_a_kernel_are_not_rounded_in_front_of_its_steps() -> None:
    text = """<ir_version: 10, opset_import: ["": 22]> agraph (float16[4, 6] x, float16[6, 5] w) => (float16[4, 5] y)
        { a = MatMul (x, w) y = Mul (a, a) }"""
    generator = np.random.default_rng(1)
    x, w = (generator.integers(50, 99, shape).astype(np.float16) / np.float16(64) for shape in ((4, 6), (6, 5)))
    sums = x.astype(np.float32) @ w.astype(np.float32)  # exact: products have 14 bits
    data = parser.parse_model(text).SerializeToString()
    for fuses, expected in ((True, sums * sums), (False, sums.astype(np.float16).astype(np.float32) ** 2)):
        with gx.Worker(data, backend=SIMULATOR, fuse_rounding=fuses) as worker:
            np.testing.assert_array_equal(worker.run((x, w))[0], expected.astype(np.float16))


def test_casts_to_integers_stay() -> None:
    steps = "a = Mul (x, x) i = Cast <to = 6> (a) b = Cast <to = 10> (i) y = Mul (b, x)"
    x = make_values(np.float16)
    expected = np.trunc(x.astype(np.float32) ** 2) * x.astype(np.float32)
    with gx.Worker(make_chain("float16", steps), backend=CPU, fuse_rounding=True) as worker:
        np.testing.assert_array_equal(worker.run(x)[0], expected.astype(np.float16))


def test_only_fused_operators_change() -> None:
    text = "agraph (float16[4, 6] x) => (float16[4, 6] y) { a = Neg (x) y = Relu (a) }"
    graph = fuse_rounding(load(text))
    assert operators(graph) == ["Neg", "Relu"]
    assert not any(isinstance(node.operator, (Fused, Region)) for node in graph.nodes)


def test_program_keeps_it(tmp_path: Path) -> None:
    x = make_values(np.float16)
    wide = x.astype(np.float32)
    program = gx.Program.build({"forward": make_chain("float16")}, backend=CPU, fuse_rounding=True)
    program.save(tmp_path / "chain.gxp")
    loaded = gx.Program.load(tmp_path / "chain.gxp", backend=CPU)
    assert loaded.contents.methods["forward"].model.precision.fuse_rounding
    with loaded.load_method("forward") as method:
        method.execute((x,))
        y = method.get_output(0).readback_and_clone()
    np.testing.assert_array_equal(y, (wide * wide * (wide * wide) + wide).astype(np.float16))


def test_something_else_is_refused() -> None:
    with pytest.raises(gx.InputError, match="fuse_rounding takes True or False, got 'yes'"):
        gx.Worker(make_chain("float16"), backend=CPU, fuse_rounding="yes")  # type: ignore[arg-type]
