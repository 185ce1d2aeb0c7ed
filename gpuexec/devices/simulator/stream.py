"""Streams and events of the simulator, on worker threads.

Work that no stream or wait orders runs in any order.
"""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Sequence

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.device import ByteArray, Event, Function, TimedEvent
from gpuexec.devices.latch import Latch
from gpuexec.devices.simulator.commands import make_copy, make_fill, make_launch
from gpuexec.devices.simulator.context import SimulatorContext
from gpuexec.devices.simulator.module import SimulatorFunction
from gpuexec.devices.simulator.operations import GENERATIONS, Operation, begin_early
from gpuexec.devices.simulator.stream_thread import StreamThread
from gpuexec.devices.simulator.timeline import Clock
from gpuexec.ir.command import LaunchConfig

_UNREAD = 0xEE


class SimulatorEvent:
    """An event. Each record makes a new point in a stream's work; a wait is for the last point made before it."""

    def __init__(self, context: SimulatorContext) -> None:
        self._context = context
        self.point: Latch | None = None
        # Clock of the point; set after it, so that a reader of a mark finds its point or a later one.
        self.mark: Clock = {}

    def make_point(self) -> Latch:
        """Return the point of a new record, not reached yet."""
        return Latch()

    def is_done(self) -> bool:
        """Return whether the work recorded is done; never waits.

        Raises:
            DeviceLostError: A command failed.
        """
        mark, point = self.mark, self.point
        done = point is None or point.is_set()
        self._context.check_alive()
        if done:
            self._context.ordering.see(mark)
        return done

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Wait until done; False when the time ran out.

        Raises:
            DeviceLostError: A command failed.
        """
        mark, point = self.mark, self.point
        done = point is None or point.wait(timeout_s)
        self._context.check_alive()
        if done:
            self._context.ordering.see(mark)
        return done


class SimulatorTimedEvent(SimulatorEvent):
    """An event that notes the time when its stream's thread reached it."""

    def make_point(self) -> Latch:
        """Return a point that notes the time when it is reached."""
        return _TimedPoint()

    def elapsed_ms(self, since: TimedEvent) -> float:
        """Return the time from ``since`` to this event."""
        assert isinstance(since, SimulatorTimedEvent)
        start, end = since.point, self.point
        assert isinstance(start, _TimedPoint) and isinstance(end, _TimedPoint)
        return (end.reached_s - start.reached_s) * 1e3


class _TimedPoint(Latch):
    __slots__ = ("reached_s",)

    def __init__(self) -> None:
        super().__init__()
        self.reached_s = 0.0

    def set(self) -> None:
        self.reached_s = time.perf_counter()
        super().set()


class SimulatorStream:
    """Work in order, done by a thread of its own.

    Args:
        context: Of the device, whose faults end it.
        seed: Of the random delays before commands.
        delay_s: The longest delay; 0: none.
    """

    def __init__(self, context: SimulatorContext, seed: int, delay_s: float) -> None:
        self.context = context
        self.handle = id(self)
        self._chain: list[Operation] = []  # the last launches, each dependent on the one before; empty after other work
        self._timeline = context.ordering.open_timeline()
        self.thread = StreamThread(context.lose, context.is_alive, random.Random(seed), delay_s)
        # A stream without references ends its thread, without waiting. Not at exit: the thread is a daemon.
        weakref.finalize(self, self.thread.stop).atexit = False

    def begin_run(self) -> None:
        """Do nothing: a fault is the device's, whichever run it came about in."""

    def launch(self, function: Function, config: LaunchConfig, arguments: PackedArguments) -> None:
        """Launch a kernel; arguments are copied at the call.

        Raises:
            KernelError: The launch does not fit the kernel's signature or the device.
        """
        assert isinstance(function, SimulatorFunction)
        launch = make_launch(self.context, function, config, arguments)
        self.issue(launch)
        self._chain = [launch]

    def launch_dependent(self, function: Function, config: LaunchConfig, arguments: PackedArguments) -> None:
        """Launch a kernel that begins before the launches issued just before it are complete, as far as any GPU might.

        Raises:
            KernelError: As `launch`.
        """
        assert isinstance(function, SimulatorFunction)
        launch = make_launch(self.context, function, config, arguments)
        before = self._chain[-GENERATIONS:]
        self.issue(begin_early(launch, before) if before else launch)
        self._chain = [*before, launch]

    def copy_to_device(self, address: int, source: ByteArray) -> None:
        """Copy host bytes to the device. Pinned sources are read when the copy runs, others at the call."""
        host = source if self.context.is_pinned(source.ctypes.data, source.nbytes) else source.copy()
        self.issue(make_copy(self.context, address, host.ctypes.data, host.nbytes, (address,), host))

    def copy_to_host(self, destination: ByteArray, address: int) -> None:
        """Copy device bytes to host memory, which is full of 0xEE until the copy has run."""
        copy = make_copy(self.context, destination.ctypes.data, address, destination.nbytes, (address,), destination)
        destination[...] = _UNREAD
        self.issue(copy)

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Copy between device addresses."""
        self.issue(make_copy(self.context, destination, source, nbytes, (destination, source)))

    def fill(self, address: int, pattern: bytes, count: int) -> None:
        """Write ``pattern`` (1, 2, 4 or 8 bytes) ``count`` times."""
        self.issue(make_fill(self.context, address, pattern, count))

    def issue(self, operation: Operation) -> None:
        """Put an operation on the stream; an error in it ends the device.

        Raises:
            DeviceLostError: A command failed before.
            OrderError: It uses bytes that another operation uses, and nothing orders the two.
        """
        self.context.check_alive()
        self._chain = []
        self.context.ordering.add(self._timeline, operation)
        self.thread.put(operation)

    def issue_graph(self, nodes: Sequence[Operation], order: Sequence[int], before: Sequence[int]) -> None:
        """Put the operations of a graph on the stream.

        Args:
            nodes: The operations.
            order: Their positions, in the order they will run.
            before: For each, the nodes it must come after, as bits.

        Raises:
            DeviceLostError: A command failed before.
            OrderError: As `issue`; nothing is on the stream.
        """
        self.context.check_alive()
        self._chain = []
        self.context.ordering.add_graph(self._timeline, nodes, order, before)
        for position in order:
            self.thread.put(nodes[position])

    def mark(self) -> Clock:
        """Return the mark of all work issued so far."""
        return self.context.ordering.mark(self._timeline)

    def record(self, event: Event) -> None:
        """Let the event stand for all work issued so far."""
        assert isinstance(event, SimulatorEvent)
        self.context.check_alive()
        mark = self.mark()
        self._chain = []
        event.point = self.thread.mark(event.make_point())
        event.mark = mark

    def wait(self, event: Event) -> None:
        """Let later work of this stream wait for the event's last record; the caller does not wait."""
        assert isinstance(event, SimulatorEvent)
        self.context.check_alive()
        mark, point = event.mark, event.point
        self.context.ordering.wait(self._timeline, mark)
        self._chain = []
        if point is not None and not point.is_set():
            self.thread.put(point.wait)

    def hold(self) -> threading.Event:
        """Hold back work issued later until the returned event is set: a test's alternative to sleeping."""
        self.context.check_alive()
        return self.thread.hold()

    def is_done(self) -> bool:
        """Return whether all work issued is done; never waits."""
        mark = self.mark()
        done = self.thread.is_done()
        self.context.check_alive()
        if done:
            self.context.ordering.see(mark)
        return done

    def is_capturing(self) -> bool:
        """Return False: streams of the simulator are not captured."""
        return False

    def synchronize(self) -> None:
        """Wait for all work issued.

        Raises:
            DeviceLostError: A command failed.
        """
        self.context.check_alive()
        mark = self.mark()
        self.thread.mark().wait()
        self.context.check_alive()
        self.context.ordering.see(mark)

    def close(self) -> None:
        """Finish the work issued and end the thread. A second call does nothing."""
        mark = self.mark()
        self.thread.stop()
        self.thread.join()
        self.context.ordering.see(mark)
