"""Program: one or more methods in one piece, immutable, shared by Methods on any thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from gpuexec.devices.backend import Backend, BackendLike, BackendType, check_backend, find_backend
from gpuexec.devices.device import Device
from gpuexec.errors import InputError
from gpuexec.execution.profiling.profiler import Profiler, check_profiler
from gpuexec.execution.resources.weights import weights_of
from gpuexec.execution.results.arenas import make_bytes
from gpuexec.execution.runs.memory_limit import MemoryLimit
from gpuexec.execution.state.state import State
from gpuexec.importer.read import Source
from gpuexec.model.editing.weight_replacement import WeightSource, find_weights, read_weights
from gpuexec.model.loading import load
from gpuexec.model.model import Model, choose_precisions, exchange_weights
from gpuexec.program.building import build_contents, check_named
from gpuexec.program.cases import Case
from gpuexec.program.container import read_contents, write_contents
from gpuexec.program.contents import Bound, Contents, Verification
from gpuexec.program.fetching import open_loader
from gpuexec.program.memory_manager import HierarchicalAllocator, MemoryManager
from gpuexec.program.method import Method
from gpuexec.program.method_memory import MethodMemory
from gpuexec.program.method_meta import (
    ACTIVATIONS,
    INPUTS,
    OUTPUTS,
    PURPOSES,
    STAGING,
    STATE,
    MethodMeta,
    allocate_buffers,
)
from gpuexec.program.method_plan import MethodPlan, plan_method
from gpuexec.system.phases import phase
from gpuexec.system.pickling import not_picklable
from gpuexec.system.progress import ProgressCallback, check_progress_callback

MethodShapes = Mapping[str, Sequence[Bound | None]]


@not_picklable("Send what Program.save wrote, and load that there.")
class Program:
    """Methods by name, and what was made for them beforehand. `build` makes one, `load` reads one.

    Args:
        contents: What it holds.
        backend: Where Methods run unless `load_method` says otherwise; AUTO takes the GPU when one works.

    Example:
        >>> program = gx.Program.build({"forward": model}, shapes={"forward": {"image": ((1, 8), 1, 8, 8)}})
        >>> program.save("digits.gxp")
        >>> gx.Program.load("digits.gxp").method_names
        ('forward',)
    """

    def __init__(self, contents: Contents, backend: BackendLike = BackendType.AUTO) -> None:
        self._contents, self._default = contents, check_backend(backend)
        # What the weights may be mapped from.
        self._loader: object | None = None
        # Plans by name of the method, and blocks that Methods share; both by device, which is kept, so that no other
        # can have its id.
        self._plans: dict[tuple[str, int], tuple[Device, MethodPlan]] = {}
        self._arenas: dict[int, tuple[Device, HierarchicalAllocator]] = {}
        self._lock = threading.Lock()

    @staticmethod
    def build(
        models: Mapping[str, Model | Source],
        *,
        shapes: Mapping[str, MethodShapes] | None = None,
        architectures: Sequence[str] = (),
        cases: Mapping[str, Iterable[Case]] | None = None,
        backend: BackendLike = BackendType.AUTO,
        precision: str | None = None,
        keep: Collection[str] = (),
        fuse_rounding: bool | None = None,
    ) -> Program:
        """Make a program of models.

        Args:
            models: By name of the method; what is no Model is loaded.
            shapes: For each method the shapes of its inputs by name: an extent fixes an axis, a range (low, high)
                bounds it. What is left out is as the model declares it.
            architectures: GPUs to compile for, such as ``"sm_90"``, so that it starts there without a compiler.
            cases: Inputs, and what should come of them, to verify it by.
            backend: Where Methods run unless `load_method` says otherwise.
            precision: What products and convolutions are computed in, as for `Worker`; the program keeps it.
            keep: Names of nodes that stay in float, or patterns of them; of each method those that it has.
            fuse_rounding: Whether roundings within fused kernels are left out, as for `Worker`; the program keeps it.

        Raises:
            ModelError: A model is broken.
            InputError: A shape contradicts its model, or names what is not there; or there is no such precision.
        """
        check_named("models", models)
        check_backend(backend)
        loaded = {name: item if isinstance(item, Model) else load(item) for name, item in models.items()}
        loaded = choose_precisions(loaded, precision, keep, fuse_rounding)
        contents = build_contents(loaded, shapes=shapes, architectures=architectures, cases=cases)
        return Program(contents, backend)

    @staticmethod
    @phase("load program")
    def load(
        source: object,
        verification: Verification = Verification.FULL,
        *,
        backend: BackendLike = BackendType.AUTO,
    ) -> Program:
        """Read a program.

        Args:
            source: A DataLoader, which stays the program's, or a path, bytes, or a binary file.
            verification: How much of it is checked before anything is believed.
            backend: Where Methods run unless `load_method` says otherwise.

        Raises:
            ModelError: It is no program, or damaged, or of a newer format.
            AccessError: It can't be read.
        """
        check_backend(backend)
        loader, is_own = open_loader(source)
        try:
            contents = read_contents(loader, verification)
        except BaseException:
            if is_own:
                loader.close()
            raise
        program = Program(contents, backend)
        program._loader = loader
        return program

    @phase("save program")
    def save(self, target: str | os.PathLike[str] | BinaryIO) -> None:
        """Write the program to a file, to be loaded anywhere.

        Raises:
            InputError: Something in it can't be stored; names it.
        """
        write_contents(self._contents, target)

    def __repr__(self) -> str:
        return f"Program({', '.join(self.method_names)})"

    @property
    def contents(self) -> Contents:
        """Contents of the program, as data."""
        return self._contents

    @property
    def method_names(self) -> tuple[str, ...]:
        """The names of the methods, in order."""
        return tuple(self._contents.methods)

    def method_meta(
        self,
        name: str,
        *,
        backend: BackendLike | None = None,
        planned_inputs: bool = True,
        planned_outputs: bool = True,
    ) -> MethodMeta:
        """Describe a method before it is loaded, as it would be loaded with the same options.

        Args:
            name: Of the method.
            backend: Where it shall run; None: the program's.
            planned_inputs: Whether inputs get planned memory.
            planned_outputs: Whether outputs do.

        Raises:
            InputError: There is no such method, or its bounds do not fit together.
        """
        chosen = self._open(backend)
        options = {"planned_inputs": planned_inputs, "planned_outputs": planned_outputs}
        return MethodMeta(name, self._find(name), self._plan(name, chosen), chosen, **options)

    def weight_names(self, name: str) -> tuple[str, ...]:
        """Return what the weights of a method are called.

        Raises:
            InputError: There is no such method.
        """
        return tuple(find_weights(self._find(name).info.graph))

    def with_weights(self, weights: WeightSource) -> Program:
        """Return a program with other content for some of its weights, in every method that has them.

        All else is shared, plans and code too. It has no cases, which were made with the weights before.

        Args:
            weights: As for `Model.with_weights`.

        Raises:
            InputError: No method has a weight of that name, or its type or shape is another; nothing was done.
        """
        arrays = read_weights(weights)
        methods = {}
        for name, method in self._contents.methods.items():
            known = find_weights(method.model.info.graph)
            wanted = {key: array for key, array in arrays.items() if key in known}
            methods[name] = (
                replace(method, model=exchange_weights(method.model, wanted), cases=()) if wanted else method
            )
        lost = [key for key in arrays if all(key not in self.weight_names(name) for name in self.method_names)]
        if lost:
            raise InputError(f"No method has a weight {lost[0]!r}; see weight_names.", value=lost[0])
        changed = Program(replace(self._contents, methods=methods), self._default)
        changed._loader = self._loader
        return changed

    def load_method(
        self,
        name: str,
        memory: MemoryManager | None = None,
        *,
        backend: BackendLike | None = None,
        stream: object = None,
        planned_inputs: bool = True,
        planned_outputs: bool = True,
        share_arenas: bool = False,
        state: State | None = None,
        max_bytes: int | None = None,
        profiler: Profiler | None = None,
        progress: ProgressCallback | None = None,
    ) -> Method:
        """Load a method: always a new one. What can fail before it runs fails now.

        Args:
            name: Of the method.
            memory: Whose memory it uses; None: its own.
            backend: Where it runs; None: on the program's backend.
            stream: A stream of the caller's to run on.
            planned_inputs: Inputs get memory of the plan; otherwise the ``method_allocator`` gives what host arrays
                take, and device arrays are used where they lie either way.
            planned_outputs: Outputs do; otherwise the ``method_allocator`` gives it, or `Method.set_output`.
            share_arenas: Its temporaries and outputs lie in the same memory as those of all Methods of this program
                loaded so: less memory, but a run of one makes the outputs of the others stale.
            state: What its memories go on from, of another Method; None: a state of its own.
            max_bytes: The most it may hold on its device, memory of the user's and shared weights counted. What its
                bounds tell is refused now, what only a run knows in the run, which leaves the Method usable.
            profiler: Records all its runs, whatever profiler the context has.
            progress: Called with a `Progress` after each piece of the weights that is uploaded, here or in a run.

        Raises:
            InputError: There is no such method; or the memory does not fit, and the message has both numbers; or
                ``profiler`` or ``progress`` is none.
            UnsupportedError: Operators that nothing here can run; lists all.
            OutOfMemoryError: There is no room, or ``max_bytes`` allows too little; the message has both numbers.
        """
        if memory is not None and not isinstance(memory, MemoryManager):
            raise InputError(
                f"memory must be a MemoryManager, got a {type(memory).__name__}; write"
                " MemoryManager(planned_memory=HierarchicalAllocator(arenas))."
            )
        check_profiler(profiler)
        check_progress_callback(progress)
        chosen = self._open(backend)
        model, plan = self._find(name), self._plan(name, chosen)
        # Without memory of the user's, outputs grow and may be taken along like a Worker's.
        planned = None if memory is None else memory.planned_memory
        if share_arenas:
            if planned is not None:
                raise InputError(
                    "share_arenas=True shares memory of the program's; Methods over one HierarchicalAllocator share it"
                    " as it is."
                )
            planned = self._open_arenas(name, chosen)
        meta = self.method_meta(name, backend=chosen, planned_inputs=planned_inputs, planned_outputs=planned_outputs)
        is_whole = memory is not None and memory.planned_memory is not None
        limit = None
        if max_bytes is not None:
            state_nbytes = sum(need.held_nbytes for need in plan.memories)
            limit = MemoryLimit(max_bytes, weights_of(model, chosen), 1, state_nbytes)
        held = MethodMemory(meta, plan.bounds, planned, memory, is_whole, limit)
        method = Method(model, meta, plan, chosen, held, stream, profiler, progress)
        if state is not None:
            try:
                method.state = state
            except BaseException:
                method.close()
                raise
        return method

    def _find(self, name: str) -> Model:
        found = self._contents.methods.get(name)
        if found is None:
            raise InputError(f"The program has no method {name!r}; it has {', '.join(self.method_names)}.")
        return found.model

    def _open(self, backend: BackendLike | None) -> Backend:
        wanted = self._default if backend is None else backend
        return find_backend(wanted, None)[0]

    def _plan(self, name: str, backend: Backend) -> MethodPlan:
        """Return the plan of a method on a device, made once."""
        model, device = self._find(name), backend.device
        key = (name, id(device))
        with self._lock:
            found = self._plans.get(key)
        if found is None:
            made = device, plan_method(model, device.target)
            with self._lock:
                found = self._plans.setdefault(key, made)
        return found[1]

    def _open_arenas(self, name: str, backend: Backend) -> HierarchicalAllocator:
        """Return blocks for one more Method: shared ones, and its own for inputs, state and staging."""
        metas = {each: self.method_meta(each, backend=backend) for each in self.method_names}
        key = id(backend.device)
        with self._lock:
            if key not in self._arenas:
                self._arenas[key] = backend.device, HierarchicalAllocator(_share_buffers(backend, metas.values()))
            _, shared = self._arenas[key]
        own = metas[name].memory_planned_buffers
        blocks: list[Any] = list(shared._buffers)
        for index in (INPUTS, STATE, STAGING):
            if index < len(own):
                blocks[index] = allocate_buffers(backend, own[index : index + 1])[0]
        allocator = HierarchicalAllocator(blocks)
        allocator._shared_use, allocator._shares_inputs = shared._shared_use, False
        return allocator


def _share_buffers(backend: Backend, metas: Iterable[MethodMeta]) -> list[object]:
    """Return blocks for the temporaries and outputs of any of these methods, all of one device; None for the rest."""
    rows = [meta.memory_planned_buffers for meta in metas]
    blocks: list[object] = [None] * max(map(len, rows))
    for index in (ACTIVATIONS, OUTPUTS):
        if index < len(blocks):
            nbytes = max(row[index].nbytes for row in rows if index < len(row))
            blocks[index] = make_bytes(backend, nbytes, PURPOSES[index])
    return blocks
