"""One attempt with a bad program: it is refused by an error of the package, or loads, plans and runs."""

from __future__ import annotations

import io
import warnings

import numpy as np

import gpuexec as gx
from gpuexec.program.container import read_contents, write_contents
from gpuexec.program.contents import StoredMethod
from gpuexec.program.data_loader import BufferDataLoader
from tests.system.bad_models.attempt import LONGEST_WORK_S, Outcome
from tests.system.bad_programs.mutant import Mutant

_LONGEST_MESSAGE = 3000
_LONGEST_RUN_S = 2.0
_LARGEST_RUN_BYTES = 32 << 20


def attempt(mutant: Mutant, good: bytes, device: str = "cpu") -> Outcome:
    """Read a program in full and with the least checks, plan and run its methods; say what became of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of arithmetic with weights that may be anything
        try:
            return _attempt(mutant, good, gx.BackendType(device))
        except BaseException as error:
            return judge(error)


def judge(error: BaseException) -> Outcome:
    """Say of an error whether it is a good one: ours, with a message that can be read."""
    kind, text = type(error).__name__, str(error)
    if not isinstance(error, gx.GpuexecError):
        return Outcome("bad", kind, text[:600])
    if not text or len(text) > _LONGEST_MESSAGE:
        return Outcome("bad", "message", f"{kind} of {len(text)} characters: {text[:600]}")
    return Outcome("refused", kind, text)


def _attempt(mutant: Mutant, good: bytes, device: gx.BackendType) -> Outcome:
    contents = read_contents(BufferDataLoader(mutant.content))
    if mutant.keeps_hashes:
        # What was changed can't have mattered: what was read must be the good program.
        file = io.BytesIO()
        write_contents(contents, file)
        if file.getvalue() != good:
            return Outcome("bad", "altered", "it was read as something else than what was written")
        return Outcome("ran")
    minimal = read_contents(BufferDataLoader(mutant.content), gx.Verification.MINIMAL)
    if list(minimal.methods) != list(contents.methods):
        return Outcome("bad", "minimal", "read otherwise with the least checks")
    outcomes = [_run(method, device) for method in contents.methods.values()]
    refused = [each for each in outcomes if each.kind != "ran"]
    return refused[0] if refused else Outcome("ran")


def _run(method: StoredMethod, device: gx.BackendType) -> Outcome:
    """Run the cases on a device; what a changed graph can't do it must say."""
    kind = "ran"
    with gx.Worker(method.model, backend=device) as worker:
        for case in method.cases:
            try:
                worker.prepare(dict(case.inputs))
                if sum(buffer.nbytes for plan in worker.plans for buffer in plan.buffers) > _LARGEST_RUN_BYTES:
                    kind = "planned"
                    continue
                run = worker.schedule(dict(case.inputs))
                if not run.wait(_LONGEST_RUN_S):
                    if run.cancel():
                        kind = "given up"
                        continue
                    if not run.wait(LONGEST_WORK_S):  # all of it is on the stream
                        return Outcome("bad", "cancel", "a run without end goes on")
                for name in run.outputs:
                    np.asarray(worker.read_output(name))
            except gx.GpuexecError as error:
                found = judge(error)
                if found.is_bad:
                    return found
                kind = "refused in use"
    return Outcome(kind)
