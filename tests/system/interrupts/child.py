"""Child process in which Workers are interrupted: one line of JSON before and after each.

python -m tests.system.interrupts.child SETTINGS NUMBER...
"""

from __future__ import annotations

import _thread
import ctypes
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable

import numpy as np

import gpuexec as gx
from tests.system.bad_models.attempt import Outcome
from tests.system.bad_models.pool import Settings
from tests.system.interrupts.endless import ENDLESS, counting, expect, feeds

# The longest time, in seconds, before an interrupt comes; by then every call was made many times.
_LATEST_S = 0.05
CHILD = (sys.executable, "-m", "tests.system.interrupts.child")
_KINDS = {"cpu": gx.BackendType.CPU, "simulator": gx.BackendType.SIMULATOR}


def main(arguments: list[str]) -> None:
    """Interrupt once for each of these numbers."""
    device = Settings.read(arguments[0]).device
    kind, model = _KINDS[device], counting()
    # A shell gives what it starts in the background SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.simplefilter("ignore")
    with gx.Worker(model, backend=kind) as other:
        for number in map(int, arguments[1:]):
            rng = np.random.default_rng(number)
            call = CALLS[rng.integers(len(CALLS))]
            send = SENDERS[rng.integers(len(SENDERS))]
            say({"begin": number, "mutant": f"{number}: {call.__name__} by {send.__name__} on {device}"})
            start = time.perf_counter()
            outcome = attempt(model, kind, call, send, float(rng.uniform(0, _LATEST_S)), other)
            say(
                {
                    "end": number,
                    "seconds": time.perf_counter() - start,
                    "kind": outcome.kind,
                    "error": outcome.error,
                    "message": outcome.message,
                }
            )


def attempt(
    model: gx.Model,
    kind: gx.BackendType,
    call: Callable[[gx.Worker], None],
    send: Callable[[], None],
    delay_s: float,
    other: gx.Worker,
) -> Outcome:
    """Interrupt a Worker that makes one call after the other; say what became of it."""
    worker = gx.Worker(model, backend=kind)
    # One that comes in a callback of a weak reference or in __del__ is lost, as Python has it: another one follows.
    sys.unraisablehook = lambda lost: threading.Timer(delay_s, send).start()
    try:
        check(worker)
        threading.Timer(delay_s, send).start()
        while True:
            call(worker)
    except KeyboardInterrupt:
        pass
    try:
        try:
            check(worker)
            found = Outcome("usable", call.__name__)
        except gx.ClosedError:
            found = Outcome("closed", call.__name__)
        worker.close()
        check(other)
    except BaseException as error:
        return Outcome("bad", type(error).__name__, str(error))
    return found


def check(worker: gx.Worker) -> None:
    """Check that results are right."""
    for trips in (2, 3):
        np.testing.assert_array_equal(worker.run(feeds(trips))[0], expect(trips))


def say(row: dict[str, object]) -> None:
    """Write a line that the parent reads."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def run(worker: gx.Worker) -> None:
    worker.run(feeds(3))


def run_without_end(worker: gx.Worker) -> None:
    worker.run(feeds(ENDLESS))


def schedule(worker: gx.Worker) -> None:
    worker.schedule(feeds(3))
    worker.read_output()


def take_steps(worker: gx.Worker) -> None:
    for _ in worker.schedule_iterable(feeds(2)):
        pass


def flush(worker: gx.Worker) -> None:
    worker.schedule(feeds(20))
    worker.wait_for_completion()


def trim(worker: gx.Worker) -> None:
    worker.schedule(feeds(2))
    worker.trim()


def copy(worker: gx.Worker) -> None:
    worker.schedule(feeds(2))
    worker.copy_output().readback_and_clone()


CALLS = (run, run_without_end, schedule, take_steps, flush, trim, copy)


def signal_process() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_main() -> None:
    _thread.interrupt_main()


def raise_in_thread() -> None:
    """Raise in the main thread at its next instruction."""
    thread = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(KeyboardInterrupt))


SENDERS = (signal_process, interrupt_main, raise_in_thread)


if __name__ == "__main__":
    main(sys.argv[1:])
