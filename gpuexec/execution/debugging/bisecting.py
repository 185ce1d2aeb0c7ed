"""Bisection of a wrong result: the pass, or else the layer, whose outputs differ from another engine's.

    bisect(source, inputs) -> Verdict

Passes are tried as growing prefixes of their list, AT_LOAD and then AT_PLAN: the outputs are right without them and off
with all of them, so halving finds a pass with which they turn. Of a pass that fuses operators, the first so many that
it makes are tried in the same way, which finds one of them. Else both models run with all values kept, and the first
value that turned is named. Where outputs are off without any pass, each layer is compared with what the engine makes of
the same inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend, BackendLike, BackendType, find_backend
from gpuexec.errors import InputError
from gpuexec.execution.debugging.observing import name_inputs, observe, run_plainly
from gpuexec.execution.debugging.references import EngineReference, History, keep_all
from gpuexec.execution.inspection.gaps import ATOL, Gap, gap_of
from gpuexec.execution.results.given import Inputs
from gpuexec.importer.load import ImportedModel, load_graph
from gpuexec.importer.oracle import run_oracle
from gpuexec.importer.read import Source
from gpuexec.ir.graphs import Graph, Node, Value, walk
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.model.model import Model
from gpuexec.ops.elementwise.fused import Fused
from gpuexec.ops.elementwise.prologue import ProductOfRows
from gpuexec.passes import AT_LOAD, AT_PLAN, GENERATING, Pass, run_passes
from gpuexec.passes.add_random_key import find_keys
from gpuexec.planner.classes import DeclaredDims
from gpuexec.system.records import Record

Array = np.ndarray[Any, Any]
# An output is out of tolerance where an error exceeds this share of its largest magnitude, plus ATOL.
RTOL = 1e-3


@dataclass(frozen=True, slots=True)
class Trial:
    """A run with some passes: their names, and the worst output's gap; None where it can't run.

    ``fused`` is how many operators the last pass made, where that was limited.
    """

    passes: tuple[str, ...]
    gap: Gap | None
    output: str
    failure: str = ""
    fused: int | None = None

    @property
    def is_off(self) -> bool:
        """True if an output was out of tolerance, or there was none."""
        return self.gap is None or not self.gap.is_close

    def __str__(self) -> str:
        which = f"{len(self.passes)} passes" + (f", the last {self.passes[-1]}" if self.passes else "")
        which += "" if self.fused is None else f" of the first {self.fused} operators"
        if self.gap is None:
            return f"{which}: can't run ({self.failure})"
        return f"{which}: {'OFF' if self.is_off else 'ok'}, {self.output} {self.gap.share:.3g} of the tolerance"


@dataclass(frozen=True, slots=True)
class Blame:
    """The fault: a node and its value, with its gap; and the nodes that a pass added (+) or removed (-).

    Where a pass fuses operators, the node is what it makes of ``steps``, the names of their operators.
    """

    node: str = ""
    operator: str = ""
    value: str = ""
    gap: Gap | None = None
    changed: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.steps:
            return f"{self.operator} {self.node!r} ({', '.join(self.steps)})"
        text = f"{self.operator} {self.node!r}, value {self.value!r}" if self.node else "no value by itself"
        return text if self.gap is None else f"{text}: {self.gap}"


@dataclass(frozen=True, slots=True)
class Verdict(Record):
    """The result of a bisection.

    Attributes:
        kind: ``"close"``: outputs agree. ``"pass"``: a pass turns them. ``"layer"``: a layer is off by itself.
            ``"unexplained"``: outputs are off without passes, and no layer is.
        engine, backend: The reference engine, and the backend under test.
        trials: The trials, in order.
        culprit: The pass, where it is one.
        blame: The first node that turned, or is off; where nothing is, the layer that is furthest off.
        unchecked: Layers that the engine can't run by themselves.

    Example:
        >>> verdict = gx.bisect("digits.onnx", x, backend="cpu")
        >>> verdict.kind
        'close'
    """

    kind: str
    engine: str
    backend: str
    trials: tuple[Trial, ...]
    culprit: str = ""
    blame: Blame = Blame()
    unchecked: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the trials, the finding and advice as lines of text."""
        heading = [f"{self.backend} against {self.engine}", *(f"  {trial}" for trial in self.trials)]
        if self.kind == "close":
            return [*heading, "verdict: the outputs agree; there is nothing to look for."]
        if self.kind == "pass" and self.blame.steps:
            return [
                *heading,
                f"verdict: pass {self.culprit} changes the result.",
                f"  first operator that it fuses and that does: {self.blame}",
                f"go on: explain --source {self.blame.node!r} prints its kernel; load(...,"
                f" disabled_passes=[{self.culprit!r}]) runs without it.",
            ]
        if self.kind == "pass":
            changed = ", ".join(self.blame.changed[:8]) or "no nodes of the outer graph"
            return [
                *heading,
                f"verdict: pass {self.culprit} changes the result.",
                f"  first value that changes: {self.blame}",
                f"  nodes added (+) or removed (-): {changed}",
                f"go on: load(..., disabled_passes=[{self.culprit!r}]) runs without it.",
            ]
        unchecked = f" ({len(self.unchecked)} layers were not checked: {', '.join(self.unchecked[:5])})"
        rest = unchecked if self.unchecked else ""
        if self.kind == "layer":
            return [
                *heading,
                f"verdict: the passes are correct; this layer is off, from the same inputs{rest}:",
                f"  {self.blame}",
                "go on: Worker(model, compare_with=BackendType.CPU) tells whether its kernel is at fault.",
            ]
        return [
            *heading,
            f"verdict: the passes are correct, and no layer is off by itself{rest}.",
            f"  furthest off: {self.blame}",
            "go on: verify --gap shows how errors add up along the chain.",
        ]


_NOBODY = Blame()


def bisect(
    source: Source,
    inputs: Inputs,
    *,
    backend: BackendLike = BackendType.AUTO,
    engine: str | None = None,
    dims: DeclaredDims | None = None,
    at_load: Sequence[Pass] = AT_LOAD,
    at_plan: Sequence[Pass] = AT_PLAN,
    rtol: float = RTOL,
    atol: float = ATOL,
) -> Verdict:
    """Find the pass or layer that makes a model's outputs differ from another engine's.

    Args:
        source: A path, bytes or a ModelProto.
        inputs: As for `gpuexec.Worker.schedule`, of the host.
        backend: Where it runs.
        engine: ``"onnxruntime"`` or ``"reference"``; None: the first that is installed and runs it.
        dims: As for `gpuexec.load`.
        at_load: The passes to try first.
        at_plan: Those to try after them, once the specs of inputs are known.
        rtol: The share of an output's largest magnitude that an error may be.
        atol: Absolute tolerance added to it.

    Raises:
        ModelError: No other engine runs the model.
        InputError: An input does not fit, or the model draws random numbers.

    Example:
        >>> print(gx.bisect("digits.onnx", x, backend="cpu").lines()[-1])
        verdict: the outputs agree; there is nothing to look for.
    """
    info = load_graph(source)
    declared = dict(dims or {})
    model = Model(info, info.graph, declared)
    if find_keys(model.graph):
        raise InputError("The model draws random numbers, which another engine draws otherwise: nothing to bisect by.")
    feeds = name_inputs(model, inputs)
    name, expected = run_oracle(source, feeds, engine)
    tested = _TestedModel(info, declared, find_backend(backend, None)[0], feeds, (*at_load, *at_plan), len(at_load))
    search = _Search(tested, name, expected, rtol, atol)
    count = len(search.passes)
    if not search.attempt(count).is_off:
        return search.end("close")
    low = search.find_base()
    if low is None:
        return search.blame_layer()
    high = count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if search.attempt(middle).is_off else (middle, high)
    return search.blame_pass(high)


@dataclass(slots=True)
class _LimitedPass:
    """A pass that fuses operators, made to fuse no more of them than allowed in all graphs together; None: all."""

    function: Callable[..., Graph]
    allowed: int | None = None
    made: list[Node] = field(default_factory=list)

    def __call__(self, graph: Graph, specs: Mapping[str, TensorSpec], **asked: Target | None) -> Graph:
        before = set(map(id, graph.nodes))
        limit = None if self.allowed is None else self.allowed - len(self.made)
        after = self.function(graph, specs, limit=limit, **asked)
        self.made += [node for node in after.nodes if id(node) not in before]
        return after


@dataclass(frozen=True, slots=True)
class _TestedModel:
    """The model under test: as it was read, on a backend, with the first so many passes."""

    info: ImportedModel
    dims: DeclaredDims
    backend: Backend
    feeds: Mapping[str, Array]
    passes: tuple[Pass, ...]
    at_load: int

    def make(self, count: int, limited: _LimitedPass | None = None) -> Model:
        """Return the model with the first passes, the last of which may be limited."""
        graph = run_passes(self.info.graph, self.passes[: min(count, self.at_load)])
        model = Model(self.info, graph, self.dims)
        passes = list(self.passes[self.at_load : count])
        if limited is not None:
            passes[-1] = replace(passes[-1], function=limited)
        model._plan_passes = passes
        return model


def measure_output(expected: Array, got: Array, rtol: float = RTOL, atol: float = ATOL) -> Gap:
    """Return the gap of an output, with a tolerance relative to its largest magnitude."""
    if expected.shape != got.shape:
        return _FAR
    with np.errstate(all="ignore"):
        magnitude = np.abs(expected.astype(np.float64))
    scale = float(np.max(magnitude, initial=0.0, where=np.isfinite(magnitude)))
    return gap_of(expected, got, rtol=0.0, atol=rtol * scale + atol)


class _Search:
    """State of one bisection: expected outputs, and trials so far."""

    def __init__(
        self, tested: _TestedModel, engine: str, expected: Mapping[str, Array], rtol: float, atol: float
    ) -> None:
        self._tested, self._engine, self._expected = tested, engine, expected
        self._feeds, self._backend, self.passes = tested.feeds, tested.backend, tested.passes
        self._rtol, self._atol = rtol, atol
        self._trials: list[Trial] = []

    def attempt(self, count: int, limited: _LimitedPass | None = None) -> Trial:
        """Run with the first passes, and compare the outputs."""
        names = tuple([each.name for each in self.passes[:count]])
        fused = None if limited is None else limited.allowed
        try:
            outputs = run_plainly(self._tested.make(count, limited), self._feeds, self._backend)
        except Exception as error:  # any error that a wrong pass causes is the result of the trial
            trial = Trial(names, None, "", f"{type(error).__name__}: {error}", fused)
        else:
            gaps = {name: self._measure(self._expected[name], array) for name, array in outputs.items()}
            worst = max(gaps, key=lambda name: gaps[name].share)
            trial = Trial(names, gaps[worst], worst, fused=fused)
        self._trials.append(trial)
        return trial

    def find_base(self) -> int | None:
        """Return the fewest passes that run and give right outputs; None where the fewest that run give wrong ones.

        Some models need a pass to run at all: sizes that depend on data are taken apart by one.
        """
        for count in range(len(self.passes)):
            trial = self.attempt(count)
            if trial.gap is not None:
                return None if trial.is_off else count
        return None

    def blame_pass(self, count: int) -> Verdict:
        """Find what the last of the first passes fused, or else the first value that it changed."""
        culprit = self.passes[count - 1].name
        if culprit in GENERATING:
            return self.end("pass", culprit=culprit, blame=self._find_fused(count))
        if any(trial.gap is None for trial in self._trials if len(trial.passes) == count):
            return self.end("pass", culprit=culprit)
        before, after = self._tested.make(count - 1), self._tested.make(count)
        right, wrong = (keep_all(model, self._feeds, self._backend) for model in (before, after))
        made = {
            value.name: node
            for graph in walk(after.graph)
            for node in graph.nodes
            for value in node.outputs
            if value is not None
        }
        old, new = ({f"{node}" for graph in walk(model.graph) for node in graph.nodes} for model in (before, after))
        blame = Blame(
            changed=(*(f"+ {node}" for node in sorted(new - old)), *(f"- {node}" for node in sorted(old - new)))
        )
        for name, gap in self._list_gaps(right, wrong):
            if not gap.is_close:
                node = made.get(name)
                operator = "" if node is None else node.operator.name
                blame = replace(blame, node=name if node is None else node.name, operator=operator, value=name, gap=gap)
                break
        return self.end("pass", culprit=culprit, blame=blame)

    def _find_fused(self, count: int) -> Blame:
        """Return the operator of the last of the first passes with which outputs turn."""
        function = self.passes[count - 1].function
        whole = _LimitedPass(function)
        self.attempt(count, whole)
        if not whole.made:
            return Blame()  # it fails before it makes one
        low, high = 0, len(whole.made)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.attempt(count, _LimitedPass(function, middle)).is_off else (middle, high)
        node = whole.made[high - 1]
        return Blame(node.name, node.operator.name, steps=_name_steps(node.operator))

    def blame_layer(self) -> Verdict:
        """Find the first layer that is wrong for its own inputs, with the fewest passes that run."""
        count = len(next((trial.passes for trial in reversed(self._trials) if trial.gap is not None), ()))
        reference = EngineReference(self._tested.info.graph, self._engine)
        found: list[Blame] = []
        unchecked: list[str] = []

        def look(node: Node, arrays: Mapping[Value, Array]) -> None:
            expected = reference.compute(node, arrays)
            if expected is None:
                unchecked.append(f"{node}")
                return
            for value, wanted in zip(node.outputs, expected, strict=True):
                if value is not None and wanted is not None:
                    gap = self._measure(wanted, arrays[value])
                    found.append(Blame(node.name, node.operator.name, value.name, gap))

        observe(self._tested.make(count), self._feeds, self._backend, look)
        first = next((each for each in found if each.gap is not None and not each.gap.is_close), None)
        if first is not None:
            return self.end("layer", blame=first, unchecked=tuple(unchecked))
        furthest = max(found, key=lambda each: each.gap.share if each.gap else 0.0, default=Blame())
        return self.end("unexplained", blame=furthest, unchecked=tuple(unchecked))

    def end(self, kind: str, *, culprit: str = "", blame: Blame = _NOBODY, unchecked: tuple[str, ...] = ()) -> Verdict:
        """Return the verdict."""
        return Verdict(kind, self._engine, self._backend.device.name, tuple(self._trials), culprit, blame, unchecked)

    def _list_gaps(self, right: History, wrong: History) -> list[tuple[str, Gap]]:
        """Return the gaps of values that both runs made, in the order of the second."""
        return [
            (name, self._measure(expected, got))
            for name, arrays in wrong.items()
            for expected, got in zip(right.get(name, ()), arrays, strict=False)
        ]

    def _measure(self, expected: Array, got: Array) -> Gap:
        return measure_output(expected, got, self._rtol, self._atol)


# The gap of arrays of different shapes.
_FAR = Gap(0, math.inf, math.inf, math.inf, math.inf, -math.inf, math.inf, math.inf, 0)


def _name_steps(operator: Operator) -> tuple[str, ...]:
    """Return the names of the operators that one is made of, in the order of its steps."""
    if isinstance(operator, ProductOfRows):
        return (*_name_steps(operator.parts.maker), *_name_steps(operator.parts.product))
    before: tuple[str, ...] = (operator.of.name,) if isinstance(operator, Fused) else ()
    return (*before, *(row[0] for row in getattr(operator, "steps", ()))) or (operator.name,)
