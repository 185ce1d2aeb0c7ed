"""Bisection verdicts: steps tried, finding, and advice."""

from __future__ import annotations

from dataclasses import dataclass

from gpuexec.execution.inspection.gaps import Gap


@dataclass(frozen=True, slots=True)
class Trial:
    """A run with some passes: their names, and the worst output's gap; None where it can't run."""

    passes: tuple[str, ...]
    gap: Gap | None
    output: str
    failure: str = ""

    @property
    def is_off(self) -> bool:
        """True if an output was out of tolerance, or there was none."""
        return self.gap is None or not self.gap.is_close

    def __str__(self) -> str:
        which = f"{len(self.passes)} passes" + (f", the last {self.passes[-1]}" if self.passes else "")
        if self.gap is None:
            return f"{which}: can't run ({self.failure})"
        return f"{which}: {'OFF' if self.is_off else 'ok'}, {self.output} {self.gap.share:.3g} of the tolerance"


@dataclass(frozen=True, slots=True)
class Blame:
    """The fault: a node and its value, with its gap; and the nodes that a pass added (+) or removed (-)."""

    node: str = ""
    operator: str = ""
    value: str = ""
    gap: Gap | None = None
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.operator} {self.node!r}, value {self.value!r}" if self.node else "no value by itself"
        return text if self.gap is None else f"{text}: {self.gap}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a bisection.

    Attributes:
        kind: ``"close"``: outputs agree. ``"pass"``: a pass turns them. ``"layer"``: a layer is off by itself.
            ``"unexplained"``: outputs are off without passes, and no layer is.
        engine, backend: The reference engine, and the backend under test.
        trials: The trials, in order.
        culprit: The pass, where it is one.
        blame: The first node that turned, or is off; where nothing is, the layer that is furthest off.
        unchecked: Layers that the engine can't run by themselves.
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
