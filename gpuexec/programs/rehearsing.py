"""A method followed part by part without its device, so that the kernels of later parts are known beforehand.

A run plans a part when it gets there, since what it plans follows from content. Here NumPy computes what the device
would, the cuts and plans are those of a run (`gpuexec.running.part`), and nothing is recorded. The choice of a kernel
depends on dtypes, ranks and attributes, never on extents, so following a method once tells the kernels of all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from gpuexec.command import Kernel
from gpuexec.containers import make_blank
from gpuexec.errors import GpuexecError, UnsupportedError
from gpuexec.graphs import Array
from gpuexec.model import Model
from gpuexec.planner.analyse import HOST_WORK_LIMIT
from gpuexec.programs.following import Env, Follower, Known, Memo
from gpuexec.programs.turning import Ifs
from gpuexec.resources.memory import Arena
from gpuexec.resources.weights import Weights
from gpuexec.running.part import Part
from gpuexec.running.site import Site
from gpuexec.runtime.backend import Backend, BackendType
from gpuexec.runtime.tracer import TracerDevice
from gpuexec.spec import TensorSpec, is_host_object
from gpuexec.starts import find_starts
from gpuexec.target import Target


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What was found out: the kernels of all parts, and in whole sentences what could not be reached, and why."""

    kernels: tuple[Kernel, ...]
    gaps: tuple[str, ...]


def rehearse(model: Model, target: Target, cases: Sequence[Mapping[str, Array]], memo: Memo | None = None) -> Rehearsal:
    """Follow a model for a target, with inputs on the host and on the device, through every branch of its Ifs.

    Args:
        model: What to follow.
        target: With kernels.
        cases: Inputs by name; each is followed.
        memo: What was computed for another target.

    Raises:
        UnsupportedError: Operators that nothing here can run; lists all.
    """
    return _Rehearser(model, target, cases, memo or Memo()).run()


def make_array(shape: tuple[int, ...], dtype: np.dtype[Any], random: np.random.Generator) -> Array:
    """Return normal floats; 0 and 1 where the type is none of floats; empty strings and containers."""
    if is_host_object(dtype):
        return make_blank(shape, dtype)
    if dtype.kind in "iub":
        return random.integers(0, 2, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


class _Rehearser:
    def __init__(self, model: Model, target: Target, cases: Sequence[Mapping[str, Array]], memo: Memo) -> None:
        device = TracerDevice(target.name, is_writing=False)
        backend = Backend(device, BackendType.GPU_COMPUTE, "nothing runs on it")
        self._model, self._memo = model, memo
        # What is light work for the host is the device's where tensors are larger.
        self._sites = [
            Site(model, backend, Weights(backend).enter(), Arena(backend), host_work=limit)
            for limit in (HOST_WORK_LIMIT, -1)
        ]
        self._cases = cases
        self._ifs = Ifs(model.graph)
        self._seen: set[tuple[int, bool]] = set()
        self._gaps: dict[str, None] = {}

    def run(self) -> Rehearsal:
        """Follow everything."""
        known: set[tuple[int, bool]] = set()
        left: list[tuple[frozenset[int], tuple[int, bool] | None]] = [(frozenset(), None)]
        while left:
            turned, wanted = left.pop(0)
            if wanted in known:
                continue
            self._seen = set()
            error = self._follow_cases(turned)
            if error is not None:
                self._note(error, wanted)
            if wanted is not None:
                known.add(wanted)
            known |= self._seen
            left += [(turned | {each}, (each, not side)) for each, side in sorted(self._seen)]
        reached = {each for each, _ in known}
        missed = [self._ifs.name(number) for number in self._ifs.numbers if number not in reached]
        if missed:
            names = ", ".join(missed[:5]) + (f" and {len(missed) - 5} more" if len(missed) > 5 else "")
            self._gaps[f"The kernels of {names} are not in the file: nothing led there."] = None
        plans = [plan for site in self._sites for plan in site.plans]
        kernels = dict.fromkeys(kernel for plan in plans for kernel in plan.kernels())
        return Rehearsal(tuple(kernels), tuple(self._gaps))

    def _note(self, error: GpuexecError, wanted: tuple[int, bool] | None) -> None:
        what, advice = "of some parts", " Compile with a case of inputs that fit."
        if wanted is not None:
            advice = ""
            branch = "then_branch" if wanted[1] else "else_branch"
            what = f"that {branch} of {self._ifs.name(wanted[0])} leads to"
        self._gaps[f"Kernels {what} are not in the file: {error}{advice}"] = None

    def _follow_cases(self, turned: frozenset[int]) -> GpuexecError | None:
        """Follow the graph with some Ifs turned, for each case; return what the last one that failed raised."""
        graph = self._ifs.turn(turned)
        failure = None
        for site in self._sites:
            part, follower = Part(graph, site, grows=True), Follower(site, self._memo)
            for inputs, is_on_host in product(self._cases, (False, True)):
                try:
                    follower.follow(part, self._place(inputs, is_on_host))
                except UnsupportedError:
                    raise
                except GpuexecError as error:
                    failure = error
            self._seen.update((self._ifs.number(node), side) for node, side in follower.branches)
            self._gaps.update(follower.gaps)
        return failure

    def _place(self, inputs: Mapping[str, Array], is_on_host: bool) -> Env:
        """Return the inputs of the graph; memories hold nothing yet, and never lie on the host."""
        model = self._model
        specs = {name: TensorSpec.of(array) for name, array in inputs.items()}
        starts = find_starts(model.graph, model.memories, model.dims, specs) if model.memories else {}
        given = {value: inputs[value.name] for value in model.graph.inputs if value.name in inputs}
        env = {value: Known(array, is_on_host or is_host_object(array.dtype)) for value, array in given.items()}
        for value in model.graph.inputs:
            if value not in env:
                env[value] = Known(np.zeros(starts[value.name].shape, starts[value.name].dtype))
        return env
