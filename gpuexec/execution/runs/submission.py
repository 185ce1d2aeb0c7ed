"""Submission of one plan's commands: whole, by layer, or one command at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuexec.devices.device import Device, Recording, Region, Stream
from gpuexec.errors import GpuexecError, locate
from gpuexec.execution.runs.comparing import Comparison


class Submission:
    """The commands of a plan on their way to a stream.

    Args:
        origins: The node that each command stems from.
        is_synchronous: Finish each command before the next, so that the one that fails is known.
        comparison: Compares the nodes whose commands are done.
        takes_launches: Never put the commands on the stream as one graph.
    """

    def __init__(
        self,
        device: Device,
        stream: Stream,
        recording: Recording,
        bindings: Mapping[int, Region],
        origins: Sequence[str],
        *,
        is_synchronous: bool = False,
        comparison: Comparison | None = None,
        takes_launches: bool = False,
    ) -> None:
        self._device, self._stream = device, stream
        self._recording, self._bindings, self._origins = recording, bindings, origins
        self._is_synchronous, self._comparison = is_synchronous, comparison
        self._takes_launches = takes_launches
        self._done = 0

    @property
    def layers(self) -> list[tuple[str, int]]:
        """Commands in a row that stem from one node: the node, and where they end."""
        return [
            (origin, end)
            for end, origin in enumerate(self._origins, 1)
            if end == len(self._origins) or self._origins[end] != origin
        ]

    def advance(self, last: int) -> None:
        """Issue the commands up to ``last``, which is left out.

        Raises:
            GpuexecError: A command failed that was waited for; names the node.
            MismatchError: A node gave something else than what it is compared with.
        """
        first, self._done = self._done, last
        if not self._is_synchronous:
            end = None if last == len(self._origins) and not self._takes_launches else last
            self._recording.submit(self._stream, self._bindings, first, end)
            return
        for index in range(first, last):
            self._finish(index)
            if self._comparison is not None:
                self._comparison.advance(index + 1)

    def finish(self) -> None:
        """Finish: compare values that no command makes, too.

        Raises:
            MismatchError: As `advance`.
        """
        if self._comparison is not None:
            self._comparison.advance(len(self._origins))

    def _finish(self, index: int) -> None:
        """Issue one command and wait for its end."""
        self._recording.submit(self._stream, self._bindings, index, index + 1)
        event = self._device.create_event()
        self._stream.record(event)
        try:
            event.synchronize()
        except GpuexecError as error:
            origin = self._origins[index]
            raise (error if origin in error.message else locate(error, origin, origin)) from None
