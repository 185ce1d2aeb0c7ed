"""Calls that depend on the content of small inputs, such as pads and sizes, and are made anew where that changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gpuexec.ir.operator import Array, Operator, PreparedCalls
from gpuexec.ir.prepared_calls import compute_into

_MOST_BYTES = 1024  # of an input whose content is compared in each run


def prepare_by_content(
    operator: Operator,
    inputs: Sequence[Array | None],
    out: Sequence[Array | None],
    constant: Sequence[bool],
    scratch: Sequence[Array],
    places: Sequence[int],
) -> PreparedCalls | None:
    """Return a call that prepares an operator when it meets content of inputs that it has not just met.

    Args:
        operator: What is prepared, as if these inputs were constant.
        inputs: As of `Operator.prepare`, as are the next three.
        out: Outputs.
        constant: Which inputs never change.
        scratch: Scratch.
        places: Positions of the inputs whose content it takes.

    Returns:
        The call; None where these inputs are constant, absent or large, and so need or allow none.
    """
    read = [inputs[place] for place in places if place < len(inputs) and not constant[place]]
    small = [x for x in read if x is not None]
    if not small or any(x.nbytes > _MOST_BYTES for x in small):
        return None
    known = [is_known or place in places for place, is_known in enumerate(constant)]

    def make() -> PreparedCalls:
        calls = operator.prepare(inputs, out, known, scratch)
        return [partial(compute_into, operator, inputs, out)] if calls is None else calls

    return [_ByContent(small, make).run]


class _ByContent:
    """Calls made for the content of some arrays."""

    __slots__ = ("_arrays", "_calls", "_content", "_make")

    def __init__(self, arrays: Sequence[Array], make: Callable[[], PreparedCalls]) -> None:
        self._arrays, self._make = arrays, make
        self._content: list[bytes] = []
        self._calls: PreparedCalls = ()

    def run(self) -> None:
        """Make the calls for what the arrays hold now."""
        content = [x.tobytes() for x in self._arrays]
        if content != self._content:
            self._content = []
            self._calls = self._make()
            self._content = content
        for call in self._calls:
            call()
