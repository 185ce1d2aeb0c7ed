"""Inference of free dimensions in a traced program, by trials with several sizes.

Free dimensions are tried with several sizes: what is equal each time is an extent, what equals a named dimension's
size each time is that dimension, and the rest is free. Two sizes are large and distinguish dimensions; what they refuse
is refused. The third is 1 and finds what is cut to a fixed size from less; where an operator does not take it, it is
guessed what of the result may be cut. The fourth is huge and finds what is cut from more; what it refuses is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.graphs import Array, Node, Value
from gpuexec.ir.spec import Dim, TensorSpec
from gpuexec.planner.analyse import ShapeInference

# Large sizes are multiples of this, so that they can be divided, by primes of their own.
_UNIT = 240
# The last is a multiple of this too, above the sizes that programs cut to.
_HUGE_UNIT = _UNIT << 16
_SMALL, _HUGE = 2, 3  # the walks whose free dimensions are 1, and beyond all that is usual

Sizes = tuple[int, int, int, int]
Declared = tuple[np.dtype[Any], tuple[Dim, ...] | None]


class Trials:
    """Walks over the nodes of a program and of the bodies in it, one for each size that free dimensions are tried with.

    Values of all of them have their specs here; a value without any is one that only a run knows more of.
    """

    def __init__(self) -> None:
        self._named: dict[str, Sizes] = {}
        self._primes = (n for n in count(11) if all(n % d for d in range(2, int(n**0.5) + 1)))
        self._producers: dict[Value, Node] = {}
        self._given: tuple[dict[Value, TensorSpec], ...] = ({}, {}, {}, {})
        self._walks = tuple(ShapeInference(self._producers, {}, given) for given in self._given)

    def add_input(self, value: Value, dtype: np.dtype[Any], dims: tuple[Dim, ...]) -> None:
        """Add an input: of the program, or one of a body, without further knowledge."""
        self._give(value, self._make_specs(dtype, dims))

    def add_constant(self, value: Value, content: Array) -> None:
        """Add a value of known content."""
        self._set_specs(value, [TensorSpec.of(content)] * len(self._walks))

    def add_stand_in(self, value: Value, array: Value, dims: Declared, changed: Sequence[bool], skipped: int) -> None:
        """Enter a body's input that begins as an array without some axes in front; ``changed`` extents may differ."""
        dtype, axes = dims
        assert axes is not None
        specs = []
        for fresh, old in zip(self._make_specs(dtype, axes), self._specs_of(array), strict=True):
            before = fresh.shape if old is None else old.shape[skipped:]
            rows = zip(changed, fresh.shape, before, strict=True)
            specs.append(fresh.with_shape(tuple(now if is_changed else was for is_changed, now, was in rows)))
        self._give(value, specs)

    def add_capture(self, value: Value, array: Value) -> None:
        """Enter a body's input that is a value from around it, whose content it shares."""
        for walk, given in zip(self._walks, self._given, strict=True):
            spec = walk.analysis.specs.get(array)
            if spec is not None:
                walk.analysis.specs[value] = spec
                given[value] = TensorSpec(spec.shape, spec.dtype)

    def add_node(self, node: Node) -> None:
        """Add a node as the producer of its values, for content that is asked for later."""
        self._producers.update({value: node for value in node.outputs if value is not None})

    def infer(self, node: Node) -> None:
        """Infer a node; outputs known only at run time, or that follow from such, get no specs.

        Raises:
            InputError: The inputs don't fit the operator.
        """
        for number, walk in enumerate(self._walks):
            if any(value is not None and value not in walk.analysis.specs for value in node.inputs):
                continue
            try:
                walk.visit(node)
            except InputError as error:
                for value in node.outputs:
                    walk.analysis.specs.pop(value, None)  # type: ignore[arg-type]
                if isinstance(error, NeedsHostValue) or number == _HUGE:
                    continue
                if number != _SMALL:
                    raise self._explain(error) from error
                self._guess_small(node)

    def spec_of(self, value: Value) -> Declared | None:
        """Return dtype and dims of a value; None where they are not known."""
        first, second, *extreme = self._specs_of(value)
        if first is None or second is None:
            return None
        shapes = [None if spec is None else spec.shape for spec in extreme]
        dims: list[Dim] = []
        for axis, pair in enumerate(zip(first.shape, second.shape, strict=True)):
            found = (*pair, *(None if shape is None else shape[axis] for shape in shapes))
            dims.append(self._recognize(found))
        return first.dtype, tuple(dims)

    def _recognize(self, found: tuple[int | None, ...]) -> Dim:
        """Return the dim that these trial sizes identify, None where they are unknown or identify none."""
        fixed = found[0]
        for name, sizes in ((fixed, (fixed,) * len(found)), *self._named.items()):
            if all(size is None or size == wanted for size, wanted in zip(found, sizes, strict=True)):
                return name
        return None

    def declare(self, value: Value, declared: Declared) -> Declared:
        """Declare a value's spec without inferring; free extents are as large as any of their name."""
        if declared[1] is not None:
            self._set_specs(value, self._make_specs(declared[0], declared[1]))
        return declared

    def content_of(self, value: Value) -> Array | None:
        """Return the content of a value where it is the same whatever the free dimensions are, else None."""
        specs = self._specs_of(value)
        if specs[_HUGE] is None:
            specs.pop()
        contents = [None if spec is None else spec.value for spec in specs]
        known = [each.array for each in contents if each is not None]
        if len(known) < len(contents) or any(
            each is not known[0] and (each.shape, each.tobytes()) != (known[0].shape, known[0].tobytes())
            for each in known
        ):
            return None
        return known[0]

    def _give(self, value: Value, specs: Sequence[TensorSpec]) -> None:
        for given, spec in zip(self._given, specs, strict=True):
            given[value] = spec
        self._set_specs(value, specs)

    def _specs_of(self, value: Value) -> list[TensorSpec | None]:
        return [walk.analysis.specs.get(value) for walk in self._walks]

    def _guess_small(self, node: Node) -> None:
        """Guess an operator's result for small extents that it does not take: what may be cut stays so."""
        doubtful = set()
        for each in node.inputs:
            first, second, small, _ = self._specs_of(each) if each is not None else (None,) * 4
            if first is not None and second is not None and small is not None:
                axes = zip(first.shape, second.shape, small.shape, strict=True)
                doubtful |= {one for one, other, small_extent in axes if one == other != small_extent}
        for each in node.outputs:
            first, second, *_ = self._specs_of(each) if each is not None else (None,) * 4
            if each is not None and first is not None and second is not None:
                pairs = zip(first.shape, second.shape, strict=True)
                shape = tuple(1 if one != other or one in doubtful else one for one, other in pairs)
                self._walks[_SMALL].analysis.specs[each] = first.with_shape(shape)

    def _make_specs(self, dtype: np.dtype[Any], dims: tuple[Dim, ...]) -> list[TensorSpec]:
        pairs = [self._size(dim) for dim in dims]
        return [TensorSpec(tuple(pair[which] for pair in pairs), dtype) for which in range(len(self._walks))]

    def _size(self, dim: Dim) -> Sizes:
        if isinstance(dim, int):
            return dim, dim, dim, dim
        if dim is not None and dim in self._named:
            return self._named[dim]
        first, second = next(self._primes), next(self._primes)
        sizes = (_UNIT * first, _UNIT * second, 1, _HUGE_UNIT * first)
        if dim is not None:
            self._named[dim] = sizes
        return sizes

    def _set_specs(self, value: Value, specs: Sequence[TensorSpec]) -> None:
        for walk, spec in zip(self._walks, specs, strict=True):
            walk.analysis.specs[value] = spec

    def _explain(self, error: InputError) -> InputError:
        tried = ", ".join(f"{name} = {sizes[0]}" for name, sizes in self._named.items())
        note = f" (Free dimensions are tried with {tried}.)" if tried else ""
        return InputError(f"{error.message}{note}", node=error.node, value=error.value)
