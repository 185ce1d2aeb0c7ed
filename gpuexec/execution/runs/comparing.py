"""Layer-by-layer comparison with NumPy: finds the first node whose result is wrong.

Both computations of a node take the same inputs, those that the backend under test has, read back; so errors don't add
up, and the first node that differs is the one at fault. For this every value of a plan is an output of it, with memory
of its own, and the host waits for each node: a mode for finding faults, not for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Stream, begin_host_read
from gpuexec.errors import GpuexecError, MismatchError, locate
from gpuexec.execution.inspection.exposing import Exposed
from gpuexec.execution.runs.closeness import find_difference
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.ir.apply import compute_arrays
from gpuexec.ir.command import Command
from gpuexec.ir.graphs import Node, Value
from gpuexec.ir.plan import Plan
from gpuexec.ir.spec import TensorSpec
from gpuexec.system.mapped import read_content

Array = np.ndarray[Any, Any]
# Is given a node, and its inputs and outputs by value, once it is done.
Observe = Callable[[Node, Mapping[Value, Array]], None]


class Comparer:
    """Compares what nodes made on a device with what `compute` makes of the same inputs.

    Attributes:
        compared: How many nodes were compared so far.
    """

    def __init__(self, backend: Backend, stream: Stream) -> None:
        self._backend, self._stream = backend, stream
        self.compared = 0

    def compare(self, node: Node, arrays: Mapping[Value, Array]) -> None:
        """Compare the outputs of a node.

        Args:
            node: What was computed.
            arrays: Its inputs, and the outputs it made, by value.

        Raises:
            MismatchError: One differs by more than the operator's tolerance.
        """
        inputs = [None if value is None else read_content(arrays[value]) for value in node.inputs]
        try:
            expected = compute_arrays(node.operator, inputs)
            for position, value in enumerate(node.outputs):
                if value is not None:
                    self._compare_output(node, inputs, position, expected[position], arrays[value])
        except MismatchError:
            raise
        except GpuexecError as error:
            raise locate(error, node, node.name) from None
        self.compared += 1

    def fetch(self, location: ValueLocation) -> Array:
        """Return what a value is on the device, once the work issued so far is done; where it never was, the host's."""
        region, nbytes = location.region, location.spec.nbytes
        if region is None:
            assert location.array is not None, "a value is nowhere"
            return location.array
        raw = np.empty(nbytes, np.uint8)
        if nbytes and not self._backend.device.target.has_kernels:
            self._synchronize()
            source = region.memory.array
            assert source is not None
            raw[...] = source[region.offset : region.offset + nbytes]
        elif nbytes:
            block = self._backend.staging.take(nbytes)
            assert block.array is not None
            self._stream.copy_to_host(block.array[:nbytes], region.address)
            self._synchronize()
            begin_host_read(block, nbytes)
            raw[...] = block.array[:nbytes]
            self._backend.staging.give_back(block)
        return raw.view(location.spec.dtype).reshape(location.spec.shape)

    def _synchronize(self) -> None:
        event = self._backend.device.create_event()
        self._stream.record(event)
        event.synchronize()

    def _compare_output(
        self, node: Node, inputs: Sequence[Array | None], position: int, expected: Array | None, got: Array
    ) -> None:
        value = node.outputs[position]
        assert value is not None and expected is not None, f"{node} computes no output {position}"
        spec, given = TensorSpec(expected.shape, expected.dtype), TensorSpec(got.shape, got.dtype)
        where = f"{node}: output {value.name!r} on {self._backend.device.name} differs from NumPy's"
        if spec != given:
            raise MismatchError(
                f"{where}: expected {spec}, got {given}.",
                operator=node.operator.name,
                expected=str(spec),
                got=str(given),
                node=node.name,
                value=value.name,
            )
        found = find_difference(node.operator, inputs, position, expected, got)
        if found is not None:
            raise MismatchError(
                f"{where}, from the same inputs: expected {found.expected!r} at {list(found.index)} of {spec}, got"
                f" {found.got!r}, an error of {found.error:.3g} where {found.allowed:.3g} is allowed"
                f" ({node.operator.tolerance.name}); {found.count} of {spec.size} elements are wrong.",
                operator=node.operator.name,
                index=found.index,
                expected=found.expected,
                got=found.got,
                error=found.error,
                node=node.name,
                value=value.name,
            )


class Observer(Comparer):
    """Hands each node with its arrays to a function, in place of comparing it."""

    def __init__(self, backend: Backend, stream: Stream, observe: Observe) -> None:
        super().__init__(backend, stream)
        self._observe = observe

    def compare(self, node: Node, arrays: Mapping[Value, Array]) -> None:
        """Call the function."""
        self._observe(node, arrays)


class Comparison:
    """The comparison of one plan's nodes, in their order, as its commands are issued.

    Args:
        exposed: What was planned, all values as outputs; who only looks at values is not compared.
        plan: Its plan.
        commands: The plan's commands.
        locations: Where inputs and outputs of the graph are.
    """

    def __init__(
        self,
        comparer: Comparer,
        exposed: Exposed,
        plan: Plan,
        commands: Sequence[Command],
        locations: Mapping[Value, ValueLocation],
    ) -> None:
        graph = exposed.graph
        self._comparer, self._locations = comparer, locations
        self._arrays: dict[Value, Array] = dict(graph.constants)
        last = {slot.buffer: index for index, command in enumerate(commands) for slot in command.writes_to()}
        ready = {
            value: -1 if port.buffer is None else last.get(port.buffer, -1)
            for value, port in zip(graph.outputs, plan.outputs, strict=True)
        }
        # Each node with the last command that writes any of its outputs.
        self._waiting = [
            (node, max((ready[value] for value in node.outputs if value is not None), default=-1))
            for node in reversed(exposed.nodes)
        ]

    def advance(self, count: int) -> None:
        """Compare the nodes that are done once the first ``count`` commands are.

        Raises:
            MismatchError: One differs.
        """
        while self._waiting and self._waiting[-1][1] < count:
            node, _ = self._waiting.pop()
            for value in (*node.inputs, *node.outputs):
                if value is not None and value not in self._arrays:
                    self._arrays[value] = self._comparer.fetch(self._locations[value])
            self._comparer.compare(node, self._arrays)
