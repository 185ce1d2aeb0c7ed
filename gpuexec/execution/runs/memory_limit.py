"""Memory limit of a Worker: plans are checked when they are made, allocations when they are asked for.

The first refuses, before anything is compiled or allocated, what could never fit. The second sees to it that a Worker
that grew for one size and then for another stays within the limit: who is refused gives back what earlier sizes took,
and asks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gpuexec.devices.device import MemoryBlock
from gpuexec.errors import InputError, OutOfMemoryError
from gpuexec.execution.resources.exchange_pool import ExchangePool
from gpuexec.execution.resources.frames import Frame
from gpuexec.execution.resources.memory import Allocate, Arena
from gpuexec.execution.resources.weights import Key, Weights
from gpuexec.ir.plan import Plan, Role
from gpuexec.planner.layout import describe_largest

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """Bytes that runs of a plan take together; ``outputs`` and ``inputs`` once for each of ``frames``.

    ``exchange`` is what the plan hands on to the next one of a run; ``weights`` are those of the model that are on the
    device already, and those that the plan brings there.
    """

    arena: int
    outputs: int
    exchange: int
    inputs: int
    weights: int
    state: int
    frames: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.arena + self.exchange + self.weights + self.state + self.frames * (self.outputs + self.inputs)

    def __str__(self) -> str:
        each = f" in each of {self.frames} frames" if self.frames > 1 else ""
        return (
            f"arena {self.arena}, outputs {self.outputs}{each}, inputs {self.inputs}{each}, between plans"
            f" {self.exchange}, weights {self.weights}, state {self.state}"
        )


class Holder(Protocol):
    """Anything that holds device memory."""

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""


class MemoryLimit:
    """Limit on the bytes that a Worker or Method holds on its device.

    Args:
        max_bytes: All together: arena, frames, what passes between plans, weights, state. What several Workers share
            counts for each; freed memory that the device keeps to use again counts for none.
        weights: The model's.
        frames: How many the Worker has.
        state_nbytes: What memories take at their largest, where that is known.

    Raises:
        InputError: ``max_bytes`` is below 1.
    """

    def __init__(self, max_bytes: int, weights: Weights, frames: int, state_nbytes: int = 0) -> None:
        if not isinstance(max_bytes, int):
            raise InputError(f"max_bytes must be a whole number, got {max_bytes!r}.")
        if max_bytes < 1:
            raise InputError(f"max_bytes must be at least 1, got {max_bytes}.")
        self.max_bytes = max_bytes
        self._weights, self._frame_count, self._state_nbytes = weights, frames, state_nbytes
        self._held: list[Holder] = []
        # Weights of plans that were let through, which may not be on the device yet.
        self._expected: dict[Key, int] = {}

    def watch(self, arena: Arena, frames: Sequence[Frame], *others: Holder) -> None:
        """Count the bytes of these holders."""
        self._held += [arena, *frames, *others]

    def meter(self, allocate: Allocate) -> Allocate:
        """Return an allocator that refuses to go beyond the limit."""

        def allocate_within(nbytes: int) -> MemoryBlock:
            self.admit(nbytes)
            return allocate(nbytes)

        return allocate_within

    def admit(self, nbytes: int) -> None:
        """Check that there is room for bytes beside those that are held.

        Raises:
            OutOfMemoryError: There is not; the message has both numbers.
        """
        missing = self._weights.count_missing(self._expected)
        held = sum(each.nbytes for each in self._held) + self._weights.nbytes + missing
        if held + nbytes > self.max_bytes:
            raise OutOfMemoryError(
                f"max_bytes={self.max_bytes} has no room for {nbytes} bytes more: {held} are held already."
            )

    def forget_plans(self) -> None:
        """Expect no weights any more, until plans are let through anew."""
        self._expected.clear()

    def check(
        self,
        plan: Plan,
        constants: Mapping[str, Array],
        results: AbstractSet[str],
        input_nbytes: int = 0,
        beside: tuple[Plan, Mapping[str, Array]] | None = None,
    ) -> None:
        """Check that runs of a plan can stay within the limit, and expect them from now on.

        Args:
            plan: What is to run.
            constants: Content of its weights, by name.
            results: Which of its outputs are the model's.
            input_nbytes: Inputs of a run that come from the host.
            beside: A plan that runs in turns with it, in the same arena, and its weights.

        Raises:
            OutOfMemoryError: They can't; tells what is needed, what is allowed, and the node of the largest buffer.
        """
        sizes = self._weights.measure(plan.buffers, constants)
        if beside is not None:
            sizes = {**sizes, **self._weights.measure(beside[0].buffers, beside[1])}
        needs = self._measure(plan, sizes, results, input_nbytes)
        if beside is not None:
            other = self._measure(beside[0], sizes, results, input_nbytes)
            needs = replace(
                needs,
                arena=max(needs.arena, other.arena),
                outputs=max(needs.outputs, other.outputs),
                exchange=max(needs.exchange, other.exchange),
            )
        if needs.total <= self.max_bytes:
            self._expected.update(sizes)
            return
        segment = plan.segment
        text, node, value = describe_largest(plan.buffers, segment.commands, segment.origins)
        raise OutOfMemoryError(
            f"The plan needs {needs.total} bytes ({needs}), and max_bytes allows {self.max_bytes}; the largest buffer"
            f" is {text}. Run smaller shapes, in fewer frames, or allow more.",
            node=node,
            value=value,
        )

    def _measure(
        self, plan: Plan, sizes: Mapping[Key, int], results: AbstractSet[str], input_nbytes: int
    ) -> PlanMemory:
        outputs = exchange = 0
        for port in plan.outputs:
            if port.buffer is not None:
                nbytes = plan.buffers[port.buffer].nbytes
                outputs += max(nbytes, 1) if port.name in results else 0
                exchange += 0 if port.name in results else ExchangePool.round_up(nbytes)
        return PlanMemory(
            arena=max(plan.layout.nbytes, 1) + plan.counters_nbytes,
            outputs=outputs,
            exchange=exchange,
            inputs=input_nbytes,
            weights=self._weights.nbytes + self._weights.count_missing(sizes),
            state=self._state_nbytes or sum(buffer.nbytes for buffer in plan.buffers if buffer.role is Role.STATE),
            frames=self._frame_count,
        )
