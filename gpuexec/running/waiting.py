"""Waiting for all that an engine issued, and what that frees: pinned memory that nobody uses then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gpuexec.errors import GpuexecError
from gpuexec.resources.caller_stream import CallerStream
from gpuexec.resources.entrance import Entrance
from gpuexec.resources.fence import Fence
from gpuexec.running.issuer import Issuer
from gpuexec.running.release import settle_stream
from gpuexec.running.road import Road
from gpuexec.running.stepping import Stepping
from gpuexec.running.storage import Storage


class Waiting:
    """Marks what an engine issued so far.

    Args:
        road: What runs go on.
        issuer: The way there.
        stepping: The run in the middle of its steps.
        storage: The memory it runs in.
        entrance: Where callers enter.
    """

    def __init__(self, road: Road, issuer: Issuer, stepping: Stepping, storage: Storage, entrance: Entrance) -> None:
        self._road, self._issuer, self._stepping = road, issuer, stepping
        self._storage, self._entrance = storage, entrance
        self._backend = road.site.backend

    def mark(self, stream: object = None) -> Fence:
        """Return a fence for all that was issued so far; a stream of the caller's comes after it from now on.

        Raises:
            InputError: It is no stream of the device.
        """
        caller = None if stream is None else CallerStream.of(self._backend, stream)
        mark = self._issuer.mark()
        if caller is not None:
            if not mark.is_issued():
                run = f"run {self._storage.turns.number}"
                self._road.syncs.note_wait(run, "what it has to wait for, on a stream of the caller's")
                mark.wait_issued()
            for event in mark.events:
                caller.follow(event)
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
        if not self._entrance.try_enter():
            return  # whoever is inside needs it
        try:
            bound, has_kernels = self._stepping.bound, self._backend.device.target.has_kernels
            # Without kernels, a run half scheduled works on the block itself.
            is_free = bound is None or (has_kernels and bound.upload is None)
            if is_free and not self._entrance.is_closed and not self._issuer.driver.is_busy():
                settle_stream(self._backend, self._road.stream)
                self._storage.binder.unpin()
        finally:
            self._entrance.leave()
        self._backend.keeper.prune()
        self._backend.staging.trim()
