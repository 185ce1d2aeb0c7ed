"""Symbolic variants of the plans of one graph: traced when sizes keep changing, and asked before a size is planned."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from gpuexec.errors import GpuexecError
from gpuexec.ir.graphs import Graph
from gpuexec.ir.size_layout import SizedVariant
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.symbolic_int import UntraceableError
from gpuexec.planner.analyse import SizedContentError
from gpuexec.planner.symbolic_variant import SymbolicVariant, share_layout
from gpuexec.planner.template import Template

Shapes = tuple[tuple[int, ...], ...]
_Axis = tuple[str, int]
_Range = tuple[int, int]
# Sizes that a plan is specialised for before it is traced.
_SIZES_BEFORE = 3
# After each trace that served no other size, so many more sizes are planned one by one before the next.
_LONGEST_PAUSE = 16
_TRACES_KEPT = 32
# Traces in a row that hold for one size alone, after which a plan is traced no more.
_MOST_FAILURES = 3
_SHAPE = attrgetter("shape")

_log = logging.getLogger("gpuexec")


# Ranges of extents, by axis, in which sizes have a plan of the same class; None: another plan than that asked for.
FindClass = Callable[[Mapping[str, TensorSpec]], Mapping[_Axis, _Range] | None]


@dataclass(slots=True, eq=False)
class _Trace:
    """A symbolic variant, and what was found last.

    Attributes:
        symbolic: The variant.
        names: Of the graph's inputs.
        positions: Of each variable: (input, axis).
        classes: Ranges of the variables in which sizes are known to belong to the plan.
        uses: Other sizes than the traced one that it was found for.
    """

    symbolic: SymbolicVariant
    names: tuple[str, ...]
    positions: tuple[tuple[int, int], ...]
    extents: tuple[int, ...]
    classes: list[tuple[_Range, ...]] = field(default_factory=list)
    uses: int = 0
    found: SizedVariant | None = None

    def find(self, shapes: Shapes, find_class: FindClass) -> SizedVariant | None:
        """Return the variant for inputs of these shapes; None where it does not hold for them."""
        found = self.find_any(shapes)
        return found if found is not None and self._belongs(self.extents, found, find_class) else None

    def find_any(self, shapes: Shapes) -> SizedVariant | None:
        """Return the variant for inputs of these shapes, whatever class they belong to."""
        extents = tuple([shapes[place][axis] for place, axis in self.positions])
        if extents != self.extents or self.found is None:
            self.extents, self.found = extents, self.symbolic.find(extents)
            self.uses += self.found is not None
        found = self.found
        if found is None or tuple(map(_SHAPE, found.inputs)) != shapes:
            return None
        return found

    def _belongs(self, extents: Sequence[int], found: SizedVariant, find_class: FindClass) -> bool:
        """Return whether sizes belong to the plan's class, and not to that of another one."""
        for ranges in self.classes:
            for extent, (low, high) in zip(extents, ranges, strict=True):
                if not low <= extent <= high:
                    break
            else:
                return True
        classes = find_class(dict(zip(self.names, found.inputs, strict=True)))
        if classes is None:
            return False
        limits = []
        for group in self.symbolic.groups:
            limits.append(_intersect([classes[axis] for axis in group if axis in classes]))
        self.classes.append(tuple(limits))
        return True


@dataclass(slots=True, eq=False)
class SizeTraces:
    """Traces of one template.

    Attributes:
        template: Whose sizes they are.
        refused: Why the template is traced no more; empty: it is.
        growing: Names of values that the host knows and that grow with the sizes, for which a trace can't be made.
    """

    template: Template
    refused: str = ""
    growing: frozenset[str] = frozenset()
    _met: deque[Shapes] = field(default_factory=lambda: deque(maxlen=_SIZES_BEFORE))
    _traces: list[_Trace] = field(default_factory=list)
    _failures: int = 0
    # Sizes to be met before the next trace, and how many it will be after that, if it serves none.
    _wait: int = 0
    _pause: int = 1

    def find(self, shapes: Shapes, find_class: FindClass) -> SizedVariant | None:
        """Return the variant for inputs of these shapes; None: no trace holds for them."""
        for number, trace in enumerate(self._traces):
            found = trace.find(shapes, find_class)
            if found is not None:
                if number:
                    self._traces.insert(0, self._traces.pop(number))
                return found
        return None

    def learn(self, graph: Graph, specs: Mapping[str, TensorSpec], shapes: Shapes) -> None:
        """Note a size that the template was specialised for; trace it where sizes keep changing.

        Args:
            graph: Whose inputs they are.
            specs: Of the inputs, by name.
            shapes: Of the inputs, in order.
        """
        self._met.append(shapes)
        self._wait -= 1
        if self.refused or len(self._met) < _SIZES_BEFORE or self._wait > 0:
            return
        # What holds was not asked before the class of the size was known.
        if any(trace.find_any(shapes) is not None for trace in self._traces):
            return
        groups = _group_axes(graph, self._met)
        if not groups:
            return
        if self._traces and not self._traces[0].uses:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        else:
            self._pause = 1
        self._wait = self._pause
        try:
            symbolic = self.template.trace(specs, groups)
        except SizedContentError as error:
            self.growing, self.refused = error.values, str(error)
            return
        except (GpuexecError, UntraceableError, TypeError, ValueError) as error:
            self._fail(str(error))
            return
        if symbolic.tied:
            self._fail("its extents are needed as digits by " + ", ".join(symbolic.tied))
            return
        self._failures = 0
        places = {value.name: place for place, value in enumerate(graph.inputs)}
        positions = tuple([(places[group[0][0]], group[0][1]) for group in groups])
        extents = tuple([shapes[place][axis] for place, axis in positions])
        self._traces.insert(0, _Trace(symbolic, tuple(places), positions, extents))
        del self._traces[_TRACES_KEPT:]
        # What was found is of the layout before.
        share_layout([trace.symbolic for trace in self._traces])
        for trace in self._traces:
            trace.found = None

    def _fail(self, why: str) -> None:
        self._failures += 1
        if self._failures >= _MOST_FAILURES:
            self.refused = why
            _log.info("sizes of %s are planned one by one: %s", self.template.graph.name, why)


def _group_axes(graph: Graph, met: Sequence[Shapes]) -> list[list[_Axis]]:
    """Return the axes whose extents changed between sizes, those together that were equal in all of them."""
    groups: dict[tuple[int, ...], list[_Axis]] = {}
    for place, value in enumerate(graph.inputs):
        for axis, extents in enumerate(zip(*[shapes[place] for shapes in met], strict=True)):
            if any(extent != extents[0] for extent in extents):
                groups.setdefault(extents, []).append((value.name, axis))
    return list(groups.values())


def _intersect(ranges: Sequence[_Range]) -> _Range:
    return max([low for low, _ in ranges], default=0), min([high for _, high in ranges], default=sys.maxsize)
