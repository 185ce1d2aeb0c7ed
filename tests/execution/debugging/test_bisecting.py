"""Bisection: it names the pass or layer at fault, or says that there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.parser
import pytest

import gpuexec as gx
from gpuexec.execution.debugging import bisecting
from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import Operator, Tolerance, build, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.elementwise_unary import Relu, Tanh  # type: ignore[attr-defined]
from gpuexec.ops.elementwise.prologue import ProductOfRows
from gpuexec.ops.elementwise.region import Region
from gpuexec.passes import AT_LOAD, AT_PLAN, Pass
from tests.execution.debugging.models import X, parse, wrong_pass, wrong_plan_pass, wrong_tanh
from tests.model.small_models import CPU, DOMAIN
from tests.model.staged_models import MODELS as STAGED
from tests.model.staged_models import inputs

Array = np.ndarray[Any, Any]
SIMULATOR = gx.BackendType.SIMULATOR
# Of each model of several plans, one operator is among these.
OTHERS = {
    name: build(other, {}) for name, other in {"Relu": "Neg", "Sign": "Neg", "Greater": "Less", "Abs": "Neg"}.items()
}


@operator("OwnTanh", DOMAIN)
@dataclass(frozen=True, slots=True)
class OwnTanh(Operator):
    """The hyperbolic tangent, by NumPy."""

    tolerance: ClassVar[Tolerance] = Tolerance.ROUNDING

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Any = None) -> tuple[Array, ...]:
        return (np.tanh(x),)


on_both = pytest.mark.parametrize("backend", [CPU, SIMULATOR])


@on_both
@pytest.mark.parametrize("engine", ["onnxruntime", "reference"])
def test_nothing_is_looked_for_where_outputs_agree(backend: gx.BackendType, engine: str) -> None:
    verdict = gx.bisect(parse(), X, backend=backend, engine=engine)
    assert (verdict.kind, verdict.engine, len(verdict.trials)) == ("close", engine, 1)
    assert "nothing to look for" in verdict.lines()[-1]


@on_both
@pytest.mark.parametrize("place", range(len(AT_LOAD) + 1))
def test_a_wrong_pass_is_found_wherever_it_stands(backend: gx.BackendType, place: int) -> None:
    passes = [*AT_LOAD[:place], wrong_pass(), *AT_LOAD[place:]]
    verdict = gx.bisect(parse(), X, backend=backend, at_load=passes)
    assert (verdict.kind, verdict.culprit) == ("pass", "relax")
    blame = verdict.blame
    assert (blame.node, blame.operator, blame.value) == ("tanh", "Relu", "b")
    assert blame.gap is not None and not blame.gap.is_close
    assert blame.changed == ("+ Relu 'tanh'", "- Tanh 'tanh'")
    assert len(verdict.trials) <= 2 + len(passes).bit_length() + 1
    text = "\n".join(verdict.lines())
    assert "pass relax changes the result" in text
    assert "disabled_passes=['relax']" in text


@on_both
def test_a_wrong_pass_of_planning_is_found(backend: gx.BackendType) -> None:
    verdict = gx.bisect(parse(), X, backend=backend, at_plan=[wrong_plan_pass(), *AT_PLAN])
    assert (verdict.kind, verdict.culprit) == ("pass", "relax_late")
    assert verdict.blame.value == "b"


def test_a_pass_that_breaks_the_graph_is_found_too() -> None:
    def drop(graph: Graph) -> Graph:
        """Leave out the first node."""
        return Graph(graph.inputs, graph.outputs, graph.nodes[1:], graph.constants, graph.name)

    verdict = gx.bisect(parse(), X, backend=CPU, at_load=[*AT_LOAD[:2], Pass("drop", drop), *AT_LOAD[2:]])
    assert (verdict.kind, verdict.culprit) == ("pass", "drop")
    assert any("pass drop broke the graph" in trial.failure for trial in verdict.trials)


@pytest.mark.parametrize("engine", ["onnxruntime", "reference"])
def test_a_wrong_kernel_is_found_and_passes_are_innocent(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with wrong_tanh(monkeypatch):
        verdict = gx.bisect(parse(), X, backend=SIMULATOR, engine=engine)
    assert (verdict.kind, verdict.culprit) == ("layer", "")
    assert (verdict.blame.node, verdict.blame.operator, verdict.blame.value) == ("tanh", "Tanh", "b")
    text = "\n".join(verdict.lines())
    assert "passes are correct" in text
    assert "Tanh 'tanh'" in text


def test_where_neither_is_off_the_layer_furthest_off_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # Outputs of a model and of its file differ: nothing that is run can be blamed.
    real = bisecting.run_oracle

    def lie(*arguments: object) -> object:
        engine, outputs = real(*arguments)  # type: ignore[arg-type]
        return engine, {name: array + 1 for name, array in outputs.items()}

    monkeypatch.setattr(bisecting, "run_oracle", lie)
    verdict = gx.bisect(parse(), X, backend=CPU)
    assert verdict.kind == "unexplained"
    assert verdict.blame.gap is not None and verdict.blame.gap.is_close
    assert "verify --gap" in verdict.lines()[-1]


def test_passes_that_a_model_needs_to_run_at_all_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, *inputs: object) -> None:
        raise gx.InputError("not as it is")

    def repair(graph: Graph) -> Graph:
        """Take an operator for Tanh that runs."""
        nodes = [replace(n, operator=OwnTanh()) if isinstance(n.operator, Tanh) else n for n in graph.nodes]
        return replace(graph, nodes=tuple(nodes))

    def relax(graph: Graph) -> Graph:
        """Take Relu for it."""
        nodes = [replace(n, operator=Relu()) if isinstance(n.operator, OwnTanh) else n for n in graph.nodes]
        return replace(graph, nodes=tuple(nodes))

    monkeypatch.setattr(Tanh, "infer", refuse)
    passes = [AT_LOAD[0], Pass("repair", repair), *AT_LOAD[1:3], Pass("relax", relax), *AT_LOAD[3:]]
    verdict = gx.bisect(parse(), X, backend=CPU, at_load=passes)
    assert (verdict.kind, verdict.culprit, verdict.blame.value) == ("pass", "relax", "b")
    assert [trial.gap is None for trial in verdict.trials[:4]] == [False, True, True, False]
    assert "can't run (InputError: " in str(verdict.trials[1])


@on_both
@pytest.mark.parametrize("name", ["read", "computed k", "if", "loop"])
def test_models_of_several_plans_are_bisected(name: str, backend: gx.BackendType) -> None:
    def swap(graph: Graph) -> Graph:
        """Take each of these operators for another."""
        nodes = [replace(node, operator=OTHERS.get(node.operator.name, node.operator)) for node in graph.nodes]
        return replace(graph, nodes=tuple(nodes))

    model, x = STAGED[name].parse(), inputs(1)
    assert gx.bisect(model, x, backend=backend).kind == "close"
    verdict = gx.bisect(model, x, backend=backend, at_load=[*AT_LOAD, Pass("swap", swap)])
    assert (verdict.kind, verdict.culprit) == ("pass", "swap")


CHAINS = """
<ir_version: 10, opset_import: ["": 21]>
agraph (float[4, 4] x) => (float[4, 4] y)
<float[4, 4] w = {0.5, -1, 2, 0.25, 1, 3, -2, 1, 0.5, 0, 1, 1, -1, 2, 0.5, -0.5}, int64 rows = {0}> {
  [neg] a = Neg (x)
  [exp] b = Exp (a)
  [sum] c = CumSum (b, rows)
  [add] d = Add (c, c)
  [tanh] e = Tanh (d)
  [product] f = MatMul (e, w)
  [sigmoid] g = Sigmoid (f)
  [scale] h = Mul (g, w)
  [second] i = MatMul (h, w)
  [relu] y = Relu (i)
}
"""


@pytest.mark.parametrize(
    ("culprit", "step", "steps"),
    [("fuse_regions", "Tanh", ("Add", "Tanh")), ("fuse_epilogues", "Sigmoid", ("MatMul", "Sigmoid", "Mul"))],
)
def test_the_operator_that_a_fusing_pass_makes_wrong_is_named(
    culprit: str, step: str, steps: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Region.compute

    def compute(self: Region, *inputs: Array, **options: Any) -> Any:
        (y, *others) = real(self, *inputs, **options)
        if step in [row[0] for row in self.steps]:
            y += 1
        return (y, *others)

    monkeypatch.setattr(Region, "compute", compute)
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    verdict = gx.bisect(onnx.parser.parse_model(CHAINS), x, backend=CPU)
    assert (verdict.kind, verdict.culprit, verdict.blame.steps) == ("pass", culprit, steps)
    assert [trial.fused for trial in verdict.trials if trial.fused is not None] == [1]
    text = "\n".join(verdict.lines())
    assert f"fuses and that does: {verdict.blame.operator} {verdict.blame.node!r} ({', '.join(steps)})" in text
    assert f"{culprit} of the first 1 operators: " in text
    assert f"explain --source {verdict.blame.node!r} prints its kernel" in text


def test_a_product_that_makes_wrong_rows_is_named_with_all_that_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ProductOfRows.compute

    def compute(self: ProductOfRows, *inputs: Array, **options: Any) -> Any:
        return tuple([None if y is None else y + 1 for y in real(self, *inputs, **options)])

    monkeypatch.setattr(ProductOfRows, "compute", compute)
    text = """<ir_version: 10, opset_import: ["": 21]> agraph (float16[1, 8] x, float16[8] s, float16[8, 8] w) =>
        (float16[1, 8] y) { a = LayerNormalization (x, s, s) b = Neg (a) c = MatMul (b, w) d = Relu (c)
        y = Add (d, x) }"""
    inputs = {name: np.ones(shape, np.float16) for name, shape in {"x": (1, 8), "s": (8,), "w": (8, 8)}.items()}
    verdict = gx.bisect(onnx.parser.parse_model(text), inputs, backend=CPU)
    steps = ("LayerNormalization", "Neg", "MatMul", "Relu", "Add")
    assert (verdict.kind, verdict.culprit, verdict.blame.steps) == ("pass", "fuse_prologues", steps)


def test_a_fusing_pass_that_fails_before_it_makes_an_operator_is_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: Graph, specs: object, limit: int | None = None) -> Graph:
        """Fail."""
        raise RuntimeError("no")

    passes = [replace(each, function=fail) if each.name == "fuse_regions" else each for each in AT_PLAN]
    verdict = gx.bisect(onnx.parser.parse_model(CHAINS), np.zeros((4, 4), np.float32), backend=CPU, at_plan=passes)
    assert (verdict.kind, verdict.culprit, verdict.blame.steps) == ("pass", "fuse_regions", ())
