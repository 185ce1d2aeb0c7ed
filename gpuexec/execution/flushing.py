"""Flushing: waits for all that was issued, from a thread or an event loop."""

from __future__ import annotations

from gpuexec.execution.engine import Engine


class Flushing:
    """Waits for an engine when asked to, from a thread, a loop or a stream."""

    _engine: Engine

    def wait_for_completion(self) -> None:
        """Wait for everything issued so far, between steps too, and give staging back.

        The device's pinned blocks that nobody uses are freed, that of the inputs too, which stay set.

        Raises:
            GpuexecError: The last run failed.
        """
        waiting = self._engine.waiting
        with self._engine.entering():
            mark = waiting.mark()
        with waiting.releasing_staging():
            mark.synchronize()

    async def wait_for_completion_async(self) -> None:
        """Wait as `wait_for_completion` does, without blocking the loop."""
        waiting = self._engine.waiting
        with self._engine.entering():
            mark = waiting.mark()
        with waiting.releasing_staging():
            await mark.wait(self._engine.backend.completion)

    def order_before(self, stream: object) -> None:
        """Have a stream of yours wait for everything issued so far; return at once.

        Args:
            stream: Of CuPy, torch, the device, a handle, anything with ``__cuda_stream__``: what you put on it
                afterwards comes after all that was issued so far.

        Raises:
            InputError: ``stream`` is none.
        """
        with self._engine.entering():
            self._engine.waiting.mark(stream)
