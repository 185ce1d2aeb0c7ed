"""Waits for all that an engine issued; pinned memory that nobody uses is freed afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gpuexec.errors import GpuexecError
from gpuexec.execution.resources.caller_stream import CallerStream
from gpuexec.execution.resources.exclusive_caller import ExclusiveCaller
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.release import settle_stream
from gpuexec.execution.runs.stepping import Stepping
from gpuexec.execution.runs.storage import Storage
from gpuexec.execution.runs.submitter import Submitter


class Waiting:
    """Fences and waits for the work an engine issued so far.

    Args:
        context: What runs go on.
        submitter: The way there.
        stepping: The run in the middle of its steps.
        storage: The memory it runs in.
        exclusive: Where callers enter.
    """

    def __init__(
        self,
        context: ExecutionContext,
        submitter: Submitter,
        stepping: Stepping,
        storage: Storage,
        exclusive: ExclusiveCaller,
    ) -> None:
        self._context, self._submitter, self._stepping = context, submitter, stepping
        self._storage, self._exclusive = storage, exclusive
        self._backend = context.planning.backend

    def mark(self, stream: object = None) -> Fence:
        """Return a fence for all that was issued so far; a stream of the caller's comes after it from now on.

        Raises:
            InputError: It is no stream of the device.
        """
        caller = None if stream is None else CallerStream.of(self._backend, stream)
        mark = self._submitter.mark()
        if caller is not None:
            if not mark.is_issued():
                run = f"run {self._storage.run_counter.number}"
                self._context.syncs.note_wait(run, "what it has to wait for, on a stream of the caller's")
                mark.wait_issued()
            for event in mark.events:
                caller.order_after(event)
        return mark

    @contextlib.contextmanager
    def releasing_staging(self) -> Iterator[None]:
        """Wait for what was issued, in the context; then pinned memory that nobody uses is freed, however it ended."""
        try:
            yield
        except GpuexecError:
            self._release_staging()
            raise
        self._release_staging()

    def _release_staging(self) -> None:
        """Free pinned memory that nobody uses, that of inputs which stay set too; the caller has waited."""
        if not self._exclusive.try_enter():
            return  # whoever is inside needs it
        try:
            prepared, has_kernels = self._stepping.prepared, self._backend.device.target.has_kernels
            # Without kernels, a run half scheduled works on the block itself.
            is_free = prepared is None or (has_kernels and prepared.upload is None)
            if is_free and not self._exclusive.is_closed and not self._submitter.driver.is_busy():
                settle_stream(self._backend, self._context.stream)
                self._storage.binder.unpin()
        finally:
            self._exclusive.leave()
        self._backend.deferred_free.prune()
        self._backend.staging.trim()
