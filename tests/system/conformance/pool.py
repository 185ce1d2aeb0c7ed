"""Process pool for cases, which may crash or take too long."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")


@dataclass(slots=True)
class _Judge:
    """A process, and which item it has had since when; ``deadline`` is of the monotonic clock."""

    process: BaseProcess
    connection: Connection
    index: int = -1
    deadline: float = 0.0

    def give(self, index: int, limit_s: float) -> None:
        self.index, self.deadline = index, time.monotonic() + limit_s
        self.connection.send(index)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def judge_all(
    items: Sequence[Item],
    judge: Callable[[Item], Found],
    jobs: int,
    limit_s: float,
    fail: Callable[[str], Found],
) -> Iterator[tuple[Item, Found]]:
    """Yield each item with its verdict, in the order they come in.

    The processes are forks of this one: what is imported stays imported, and items need not be picklable. This process
    should have no threads.

    Args:
        items: What to judge.
        judge: Called in another process.
        jobs: How many processes.
        limit_s: How long one item may take; beyond that its process is killed.
        fail: Makes the verdict, of the reason, where ``judge`` dies, raises or is killed.
    """
    was_frozen = gc.get_freeze_count() > 0
    gc.freeze()  # no collection touches, and so copies, the pages that processes share
    left = iter(range(len(items)))
    judges: list[_Judge] = []
    try:
        while True:
            for index in left if len(judges) < jobs else ():
                judges.append(_start(items, judge, fail))
                judges[-1].give(index, limit_s)
                if len(judges) == jobs:
                    break
            if not judges:
                return
            patience_s = max(0.0, min(each.deadline for each in judges) - time.monotonic())
            ready = wait([each.connection for each in judges], patience_s)
            for each in list(judges):
                is_late = time.monotonic() >= each.deadline
                if each.connection not in ready and not is_late:
                    continue
                verdict, is_alive = (
                    _receive(each, fail)
                    if each.connection in ready
                    else (fail(f"hang: no answer in {limit_s:g} s"), False)
                )
                yield items[each.index], verdict
                following = next(left, None) if is_alive else None
                if following is not None:
                    each.give(following, limit_s)
                else:
                    judges.remove(each)
                    each.end()
    finally:
        for each in judges:
            each.end()
        if not was_frozen:  # what whoever calls has frozen stays so
            gc.unfreeze()


def _start(items: Sequence[Item], judge: Callable[[Item], Found], fail: Callable[[str], Found]) -> _Judge:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(items, judge, fail, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Judge(process, ours)


def _serve(
    items: Sequence[Item], judge: Callable[[Item], Found], fail: Callable[[str], Found], connection: Connection
) -> None:
    while True:
        try:
            index = connection.recv()
        except EOFError:
            return
        try:
            verdict = judge(items[index])
        except Exception as error:  # one item may not end the process
            verdict = fail(f"{type(error).__name__}: {error}")
        connection.send(verdict)


def _receive(judge: _Judge, fail: Callable[[str], Found]) -> tuple[Found, bool]:
    """Return the verdict, and whether the process still lives."""
    try:
        return judge.connection.recv(), True
    except (EOFError, ConnectionError):
        judge.process.join()
    code = judge.process.exitcode or 0
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return fail(f"crash: the process ended with {how}"), False
