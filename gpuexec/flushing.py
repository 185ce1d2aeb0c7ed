"""What waits for all that was issued, of whatever runs an engine."""

from __future__ import annotations

from gpuexec.engine import Engine
from gpuexec.resources.fence import Fence


class Flushing:
    """Waits for an engine when asked to, from a thread or a loop."""

    _engine: Engine

    def flush_schedule(self, blocking: bool = False, *, stream: object = None) -> None:
        """Hand everything issued so far to the device; with ``blocking`` wait for it, and give staging back.

        Args:
            blocking: Wait; then the device's pinned blocks that nobody uses are freed, that of the inputs too, which
                stay set.
            stream: A stream of yours: what you put on it afterwards comes after all that was issued so far.

        Raises:
            GpuexecError: Waiting, and the last run failed.
        """
        waiting = self._engine.waiting
        with self._engine.entering():
            # Work is the device's from the moment it is issued: there is nothing to hand over that could be marked.
            mark = waiting.mark(stream) if blocking or stream is not None else Fence.of()
        if blocking:
            with waiting.releasing_staging():
                mark.synchronize()

    async def flush_schedule_async(self) -> None:
        """Wait for everything issued so far without blocking the loop."""
        waiting = self._engine.waiting
        with self._engine.entering():
            mark = waiting.mark()
        with waiting.releasing_staging():
            await mark.wait(self._engine.backend.completion)

    def wait_for_completion(self) -> None:
        """Wait for everything issued so far, between steps too."""
        self.flush_schedule(blocking=True)

    async def wait_for_completion_async(self) -> None:
        """Wait for everything issued so far without blocking the loop."""
        await self.flush_schedule_async()
