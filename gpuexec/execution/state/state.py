"""State: what a model's memories hold between runs.

Content never changes once a run left it: a later run leaves other content, in other bytes or in the room behind. So
snapshots and forks are further holders of the same content; nothing is copied before two of them go on from it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region
from gpuexec.errors import GpuexecError, InputError, StateError, abridge
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.results.exchange import import_cuda, import_dlpack
from gpuexec.execution.results.given import ArrayLike
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.state.carried import Carried, StateEntry, overlay, read_content, skip
from gpuexec.execution.state.kept_rows import Sequences, crop, gather
from gpuexec.execution.state.seeds import begin_keys, check_seed
from gpuexec.importer.output_selection import shorten
from gpuexec.ir.spec import TensorSpec, convert_numbers
from gpuexec.model.editing.named_data import safetensors_dtype
from gpuexec.model.initial_state import find_initial_specs
from gpuexec.model.model import Model
from gpuexec.model.state_spec import Memory, check_held, make_memory_table, with_extents
from gpuexec.system.atomic_file import write_file
from gpuexec.system.html import make_fragment, make_paragraph
from gpuexec.system.mapped import read_file
from gpuexec.system.phases import phase
from gpuexec.system.pickling import not_picklable

Array = np.ndarray[Any, Any]


@not_picklable("Send what State.save wrote, and load that there.")
@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Contents of the memories of a state at one time; made by `State.snapshot`.

    Example:
        >>> from examples.networks import build_decoder
        >>> decoder = gx.load(build_decoder()).bind_state("auto", capacity=16)
        >>> with gx.Worker(decoder, backend="cpu") as worker:
        ...     before = worker.state.snapshot()
        ...     _ = worker.run(np.array([[3]]))
        ...     worker.state.restore(before)
        ...     worker.state.length
        0
    """

    _entry: StateEntry | None = field(repr=False)
    memories: tuple[Memory, ...]
    backend: Backend


@not_picklable("Send what State.save wrote, and load that there; State.fork copies on the device.")
class State:
    """Contents of the memories of a model on one device. A Worker reads its state and leaves its results there.

    A run's results become the state once the run is wholly on its stream; one that fails or is given up changes
    nothing. A state belongs to one caller at a time, as a Worker does.

    Contents: `get`, `set`, `reset`, `seed`. Rows and sequences: `length`, `crop`, `slide`, `reorder`, `join`, `starts`,
    `mask`, `positions`. Copies: `snapshot` and `restore`, `fork`. Files: `save`, `load`.

    Example:
        >>> from examples.networks import build_decoder
        >>> decoder = gx.load(build_decoder()).bind_state("auto", capacity=16)
        >>> with gx.Worker(decoder, backend="cpu") as worker:
        ...     for token in (3, 1, 4):
        ...         _ = worker.run(np.array([[token]]))
        ...     worker.state.crop(2)
        ...     worker.state.length
        2
    """

    def __init__(self, model: Model, backend: Backend, start: StateEntry | None = None) -> None:
        self._model, self._backend = model, backend
        # What random operators begin with; all else begins with zeros.
        self._start = start or begin_keys(model)
        self._head = self._start
        # What a run left as arrays, and these by memory.
        self._left: tuple[StateEntry | None, Mapping[str, Array]] = self._head, {}
        self._lock = threading.RLock()
        # Of memories noted together, by their names; the newest come last.
        self._shown: dict[tuple[str, ...], TensorSpec] = {}

    @property
    def memories(self) -> tuple[Memory, ...]:
        """The memories, their shapes known as far as runs have shown them."""
        known = self._list_specs()
        return tuple([with_extents(m, known[m.input].shape) if m.input in known else m for m in self._model.memories])

    @property
    def backend(self) -> Backend:
        """Backend that the state lies on."""
        return self._backend

    def _repr_html_(self) -> str:
        # Contents would have to be waited for.
        table = make_memory_table(self.memories) or make_paragraph("The model has no memories.")
        return make_fragment(f"State of {self._model.graph.name} on {self._backend.device.name}", table)

    def get(self, name: str | None = None) -> Array:
        """Block for what a memory holds, after all runs scheduled so far; zeros before the first.

        Args:
            name: Its input or output; None: the first memory.

        Raises:
            InputError: There is no memory of that name.
            StateError: It holds nothing yet, and its shape is not known.
        """
        self._backend.check_process()
        memory = self._find_memory(name)
        while (held := self._find(memory.input, is_committed=True)) is not None:
            try:
                held.fence.synchronize()
                return read_content(self._backend, held, held.names.index(memory.input))
            except GpuexecError:
                # What the run raised it raises to its caller; the state is what it was before.
                if not held.fence.has_failed():
                    raise
        return np.zeros(self._find_start(memory).shape, memory.dtype)

    def set(self, values: Mapping[str, ArrayLike]) -> None:
        """Set memories to copies of these arrays; the others keep their content.

        Args:
            values: Arrays by the memory's input or output: NumPy, what NumPy reads, a Tensor, or an array of another
                package by DLPack or ``__cuda_array_interface__``, copied on the device where it lies there.

        Raises:
            InputError: A name, dtype or shape does not fit; nothing was changed.
            OutOfMemoryError: The device has no room for a copy; nothing was changed.
        """
        self._backend.check_process()
        carried = {}
        for name, item in values.items():
            memory = self._find_memory(name)
            carried[memory.input] = _take_value(memory, item, self._backend)
        with self._lock:
            self._head = StateEntry(tuple(carried.values()), self._head)
            self._note(carried.values())

    @property
    def length(self) -> int:
        """Rows that the memories which grow hold after all runs scheduled so far, along the axis they grow by.

        Raises:
            StateError: No memory grows, or they hold different numbers of rows.
        """
        rows = {memory.input: _count_rows(held, axis) for memory, held, axis in self._list_growing()}
        lengths = set(rows.values())
        if len(lengths) != 1:
            said = ", ".join(f"{name} {count}" for name, count in rows.items()) or "none"
            raise StateError(f"The memories that grow hold no one number of rows: {said}; see get.")
        return lengths.pop()

    def crop(self, length: int) -> None:
        """Keep the first rows of all memories that grow, as after the run that left so many; others stay.

        Drafted tokens that were refused go so. Nothing is copied, and no run is waited for but to be on its stream.

        Args:
            length: Rows to keep, along the axis a memory grows by.

        Raises:
            InputError: It is no number of rows, or a memory holds fewer.
            StateError: No memory grows.
        """
        self._backend.check_process()
        growing = self._list_growing()
        if not growing:
            raise StateError("crop: no memory of this state grows.")
        if not isinstance(length, int | np.integer) or isinstance(length, bool) or length < 0:
            raise InputError(f"crop: expected a number of rows, 0 or more, got {length!r}.")
        longer: dict[tuple[int, int], tuple[Carried, int, list[str]]] = {}
        for memory, held, axis in growing:
            count = _count_rows(held, axis)
            if count < length:
                raise InputError(f"crop({length}): memory {memory.input!r} holds {count} rows.", value=memory.input)
            if held is not None and count > length:
                longer.setdefault((id(held), axis), (held, axis, []))[2].append(memory.input)
        with self._lock:
            self._put([crop(held.pick(names), axis, int(length)) for held, axis, names in longer.values()])

    def slide(self, length: int, *, axis: int = 0) -> None:
        """Keep the last rows of all memories that grow, and let those in front go: a window that slides along.

        Models that see so many rows at most, or whose users want no more, go on for ever so, in a capacity of some rows
        more: `slide` where they are used up. `positions` counts on. Rows are copied on the device, after the runs
        scheduled so far, which are not waited for but to be on their stream.

        Args:
            length: Rows to keep, where there are more.
            axis: Of the batch, in all memories.

        Raises:
            InputError: It is no number of rows, or a memory has no such axis, or none in front of that it grows by.
            StateError: No memory grows, or they hold different numbers of rows.
        """
        self._backend.check_process()
        if not isinstance(length, int | np.integer) or isinstance(length, bool) or length < 1:
            raise InputError(f"slide: expected a number of rows, 1 or more, got {length!r}.")
        if self.length > length:
            self._take_batch("slide", [(self, None)], axis, int(length))

    @property
    def starts(self) -> tuple[int, ...]:
        """Rows in front of each sequence of the batch that are none of its own, for `join` aligns the ends.

        Below 0, as many of its own are gone that were in front (`slide`).
        """
        found = self._find_starts()
        return found or (0,) * next((each.known.shape[0] for _, each, _ in self._list_growing() if each), 0)

    def mask(self, new: int = 1) -> Array:
        """Return which rows count once so many are added, as decoders take it: int64 ``[batch, length + new]``.

        It is 0 in front of the sequences that `join` aligned with longer ones, else 1.

        Raises:
            StateError: The state holds nothing yet, so that its batch is not known.
        """
        rows = np.arange(self.length + new)
        return (rows >= self._list_starts()).astype(np.int64)

    def positions(self, new: int = 1) -> Array:
        """Return the positions of the next rows in their sequences, as decoders take them: int64 ``[batch, new]``.

        Raises:
            StateError: The state holds nothing yet, so that its batch is not known.
        """
        return self.length - self._list_starts() + np.arange(new)

    def reorder(self, index: Sequence[int], *, axis: int = 0) -> None:
        """Take the sequences of a batch that an index names, in its order: those that beams go on from, say.

        A sequence may be named several times or not at all, so the batch may change its size, and rows in front that
        are nobody's any more go. Memories are copied on the device, but for what random operators draw from, after the
        runs scheduled so far, which are not waited for but to be on their stream.

        Args:
            index: Of the sequences.
            axis: Of the batch, in all memories.

        Raises:
            InputError: The index names no sequences of a memory, or it has no such axis.
        """
        self._backend.check_process()
        places = [int(each) for each in index]
        self._take_batch("reorder", [(self, places)], axis)

    def join(self, other: State, *, axis: int = 0) -> None:
        """Add the sequences of another state behind those of the batch: they go on together in the next run.

        All then end at the row where the longest ends; shorter ones have zeros in front, which `starts`, `mask` and
        `positions` tell. What `reorder` copies is copied; the other state stays as it is.

        Args:
            other: Of a model with the same memories on the same device.
            axis: Of the batch, in all memories.

        Raises:
            InputError: The memories differ, in more than the batch and the rows.
            StateError: One of the states holds nothing yet.
        """
        self._backend.check_process()
        check_fits(other.memories, other.backend, self._model.memories, self._backend, "The other state", axis)
        self._take_batch("join", [(self, None), (other, None)], axis)

    def _take_batch(
        self, call: str, parts: Sequence[tuple[State, Sequence[int] | None]], axis: int, most: int | None = None
    ) -> None:
        """Take sequences of states as the batch: those that an index names, or all; of their last rows, if so said.

        Raises:
            InputError: A memory has no such sequences, no such axis, or grows along it, or memories differ.
            StateError: Of several states one holds nothing.
        """
        drawn = {name for carried in (self._start.carried if self._start else ()) for name in carried.names}
        starts = [state._find_starts() for state, _ in parts]
        found: dict[tuple[int, ...], tuple[Memory, list[Carried], list[str]]] = {}
        for memory in self._model.memories:
            if memory.input in drawn or (most is not None and memory.axis is None):
                continue
            contents = [state._find_issued(memory.input) for state, _ in parts]
            held = [each for each in contents if each is not None]
            if len(held) < len(parts):
                if len(parts) == 1:
                    continue
                raise StateError(f"{call}: memory {memory.input!r} of one of the states holds nothing yet.")
            for each, (_, places) in zip(held, parts, strict=True):
                _check_sequences(call, memory, each.known, held[0].known, places, axis)
            found.setdefault(tuple(map(id, held)), (memory, held, []))[2].append(memory.input)
        made: list[Carried] = []
        for memory, held, names in found.values():
            picked = [
                Sequences(each.pick(names), range(each.known.shape[axis]) if places is None else places)
                for each, (_, places) in zip(held, parts, strict=True)
            ]
            made += gather(self._backend, picked, starts, axis, memory.axis, most)
        with self._lock:
            self._put(made)

    def reset(self) -> None:
        """Reset all memories to zeros, as before the first run, without the rows they grew by.

        Random operators begin anew with the seed they began with.
        """
        with self._lock:
            self._head = self._start

    def seed(self, seed: int, *, run: int = 0) -> None:
        """Seed random operators anew, as before their first run; other memories keep their content.

        Args:
            seed: What they draw from.
            run: The number of the next run, by which runs of a seed differ. States that share a seed and begin far from
                each other draw different numbers, nodes with a seed of their own too.

        Raises:
            InputError: One is no whole number from 0 to 2**64 - 1.
        """
        start = begin_keys(self._model, check_seed(seed), check_seed(run, "The number of a run"))
        if start is not None:
            with self._lock:
                self._start, self._head = start, StateEntry(start.carried, self._head)

    def snapshot(self) -> Snapshot:
        """Return what the memories hold after all runs scheduled so far; nothing is copied or waited for."""
        with self._lock:
            return Snapshot(self._settle(is_committed=True), self._model.memories, self._backend)

    def restore(self, snapshot: Snapshot) -> None:
        """Set the memories to the contents of a snapshot.

        Raises:
            InputError: It is a snapshot of other memories, or on another device.
        """
        check_fits(snapshot.memories, snapshot.backend, self._model.memories, self._backend, "The snapshot")
        with self._lock:
            self._head = snapshot._entry

    def fork(self) -> State:
        """Return a state that holds the same and goes its own way from here.

        Random operators draw the same in both; `seed` of one of them makes them differ.
        """
        other = State(self._model, self._backend, self._start)
        with self._lock:
            other._head, other._shown = self._settle(is_committed=True), dict(self._shown)
        return other

    @phase("save state")
    def save(self, path: str | Path) -> None:
        """Write what the memories hold to a safetensors file, by input.

        Raises:
            StateError: One holds nothing yet, and its shape is not known.
            AccessError: The file can't be written; the one that was there is as it was.
        """
        write_state(path, {memory.input: self.get(memory.input) for memory in self._model.memories})

    @phase("load state")
    def load(self, path: str | Path) -> None:
        """Set the memories to the contents of a file.

        Raises:
            InputError: It lacks a memory, has one of another name, dtype or shape, or is no such file; nothing was
                changed.
            NotFoundError: There is no file.
            AccessError: It can't be read.
        """
        arrays = read_state(path)
        names = [memory.input for memory in self._model.memories]
        if set(arrays) != set(names):
            raise InputError(
                f"{path} holds {shorten(sorted(arrays)) or 'nothing'}; the model's memories are {', '.join(names)}."
            )
        self.set(arrays)

    def __repr__(self) -> str:
        return f"State({'; '.join(map(str, self.memories))}, on {self._backend.device.name})"

    def _find(self, name: str, without: Fence | None = None, *, is_committed: bool = False) -> Carried | None:
        """Return the content that holds a memory, as far as is known now; None: there is none.

        Args:
            name: The memory's input.
            without: Of a run that is about to be given up.
            is_committed: Leave out runs that are scheduled piece by piece and have not come to their end.
        """
        with self._lock:
            entry = self._settle(without, is_committed=is_committed)
            while entry is not None:
                found = next((carried for carried in entry.carried if name in carried.names), None)
                if found is not None:
                    return found
                entry = skip(entry.before, without, is_committed=is_committed)
        return None

    def _find_all(self, without: Fence | None = None) -> list[tuple[Carried, tuple[str, ...]]]:
        """Return all contents, with the memories that each is the newest of, as far as is known now."""
        with self._lock:
            entry = self._settle(without)
            if entry is not None and entry.before is None:
                return [(carried, carried.names) for carried in entry.carried]
            found: list[tuple[Carried, tuple[str, ...]]] = []
            known: set[str] = set()
            while entry is not None and len(known) < len(self._model.memories):
                for carried in entry.carried:
                    names = carried.names if known.isdisjoint(carried.names) else _without(carried.names, known)
                    if names:
                        found.append((carried, names))
                        known.update(names)
                entry = skip(entry.before, without)
        return found

    def _list_starts(self) -> Array:
        """Return `starts` as a column.

        Raises:
            StateError: The state holds nothing yet.
        """
        starts = self.starts
        if not starts:
            raise StateError(
                "The memories that grow hold nothing yet: run the first rows, whose batch is not known here."
            )
        return np.array(starts, np.int64)[:, None]

    def _find_starts(self) -> tuple[int, ...]:
        """Return `starts`; empty: there are none."""
        found = [held.starts for _, held, _ in self._list_growing() if held is not None]
        return tuple([min(each) for each in zip(*found, strict=True)]) if found and all(found) else ()

    def _list_growing(self) -> list[tuple[Memory, Carried | None, int]]:
        """Return the memories that grow, what holds them, which is on its stream, and the axis."""
        growing = [(memory, memory.axis) for memory in self._model.memories if memory.axis is not None]
        return [(memory, self._find_issued(memory.input), axis) for memory, axis in growing]

    def _find_issued(self, name: str) -> Carried | None:
        """Return what holds a memory once the run that leaves it is on its stream."""
        while (held := self._find(name, is_committed=True)) is not None:
            try:
                held.fence.wait_issued()
            except GpuexecError:
                if not held.fence.has_failed():
                    raise
                continue
            return held
        return None

    def _put(self, carried: Sequence[Carried]) -> None:
        """Let memories hold something else, which fails where the run before it does."""
        if carried:
            head = self._settle(is_committed=True)
            fence = Fence.of() if head is None else head.fence
            self._head = StateEntry(tuple(carried), head, fence)
            self._note(carried)
            self._settle()

    def _list_arrays(self, names: Sequence[str]) -> Sequence[Array] | None:
        """Return what memories hold, by their inputs; None: some of it is under way, lies on no host or in gaps."""
        with self._lock:
            entry, arrays = self._left
            found = arrays if self._head is entry else self._find_arrays()
        return [found[name] for name in names] if found.keys() >= {*names} else None

    def _find_arrays(self) -> Mapping[str, Array]:
        """Return those contents that lie dense on the host, and that no run can take back any more."""
        found: dict[str, Array] = {}
        for carried, names in self._find_all():
            if carried.spec is None or carried.caches or carried.starts or not self._is_certain(carried.fence):
                continue
            for name in names:
                if carried.array is not None:
                    found[name] = carried.array
                elif carried.regions is not None:
                    found[name] = carried.regions[carried.names.index(name)].view(carried.spec)
        return found

    def _list_grown(self) -> Sequence[Carried]:
        """Return the contents that lie with room behind their rows, and that no run can take back any more."""
        with self._lock:
            found = self._find_all()
            return [each for each, _ in found if each.caches and each.regions and self._is_certain(each.fence)]

    def _leave(self, arrays: Mapping[str, Array], grown: Sequence[Carried] = ()) -> None:
        """Let all memories hold these arrays, or what has grown, which a run made that is over."""
        fence = Fence.of()
        carried = [Carried((n,), TensorSpec(x.shape, x.dtype), fence, array=x) for n, x in arrays.items()]
        with self._lock:
            self._head = StateEntry((*grown, *carried), None, fence)
            self._left = self._head, arrays
            self._note(self._head.carried)

    def _begin(self, carried: Sequence[Carried], fence: Fence) -> None:
        """Set the memories to the contents that a run will leave, unless it fails."""
        with self._lock:
            self._head = StateEntry(tuple(carried), self._head, fence)
            self._note(carried)

    def _note(self, carried: Iterable[Carried]) -> None:
        """Note what shapes memories had."""
        for each in carried:
            if each.spec is not None:
                self._shown.pop(each.names, None)
                self._shown[each.names] = each.spec

    def _list_specs(self) -> dict[str, TensorSpec]:
        """Return the specs that memories had last, by their inputs."""
        return {name: spec for names, spec in self._shown.items() for name in names}

    def _find_start(self, memory: Memory) -> TensorSpec:
        """Return the spec of zeros to read from a memory that holds nothing.

        Raises:
            StateError: It is not known yet.
        """
        known = self._list_specs().get(memory.input)
        if known is not None:
            return known.with_shape(tuple([0 if n == memory.axis else e for n, e in enumerate(known.shape)]))
        return find_initial_specs(self._model.graph, [memory], self._model.dims, {})[memory.input]

    def _find_memory(self, name: str | None) -> Memory:
        memories = self._model.memories
        for memory in memories:
            if name is None or name in (memory.input, memory.output):
                return memory
        names = ", ".join(memory.input for memory in memories) or "none"
        raise InputError(f"There is no memory {name!r}; the model has {names}.", value=name)

    def _settle(self, without: Fence | None = None, *, is_committed: bool = False) -> StateEntry | None:
        """Forget what runs that failed would have left, and what was before those that can't fail any more.

        Returns:
            What the memories hold, see `_find_all` and `_find`.
        """
        entries: list[StateEntry] = []
        entry = self._head
        while entry is not None:
            if not entry.fence.has_failed():
                entries.append(entry)
            entry = entry.before
        before = None
        for entry in reversed(entries):
            entry.before = before
            is_certain = before is not None and before.before is None and self._is_certain(entry.fence)
            if before is not None and is_certain and self._is_certain(before.fence):
                entry.carried, entry.before = overlay(entry.carried, before.carried), None
            before = entry
        self._head = before
        return skip(self._head, without, is_committed=is_committed)

    def _is_certain(self, fence: Fence) -> bool:
        """Return whether a run can't fail any more: with kernels, once it is on its stream."""
        if not fence.is_issued() or fence.failure is not None:
            return False
        return self._backend.device.target.has_kernels or (fence.is_done() and not fence.has_failed())


def _count_rows(held: Carried | None, axis: int) -> int:
    return 0 if held is None else held.known.shape[axis]


def _check_sequences(
    call: str, memory: Memory, spec: TensorSpec, first: TensorSpec, places: Sequence[int] | None, axis: int
) -> None:
    """Check that sequences can be taken of what a memory holds, beside those of the first state.

    Raises:
        InputError: They can't; names the memory.
    """
    shape = spec.shape
    is_there = 0 <= axis < len(shape) and (
        places is None or (len(places) > 0 and all(0 <= each < shape[axis] for each in places))
    )
    if not is_there:
        wanted = f"{call}(axis={axis})" if places is None else f"{call}({list(places)}, axis={axis})"
        raise InputError(f"{wanted}: memory {memory.input!r} holds {spec}.", value=memory.input)
    if memory.axis == axis:
        raise InputError(f"{call}: memory {memory.input!r} grows along axis {axis}.", value=memory.input)
    differ = [
        each
        for each, (a, b) in enumerate(zip(shape, first.shape, strict=True))
        if a != b and each not in (axis, memory.axis)
    ]
    if differ:
        raise InputError(f"{call}: memory {memory.input!r} holds {first} and {spec}.", value=memory.input)


def _without(names: Sequence[str], others: AbstractSet[str]) -> tuple[str, ...]:
    return tuple([name for name in names if name not in others])


def check_fits(
    memories: Sequence[Memory],
    backend: Backend,
    wanted: Sequence[Memory],
    own: Backend,
    what: str,
    batch: int | None = None,
) -> None:
    """Check that what belongs to some memories on a device can serve others, but for their extents along an axis.

    Raises:
        InputError: Names, dtypes, shapes or the device differ; names both.
    """
    if backend.device is not own.device:
        raise InputError(f"{what} lies on {backend.device.name}, another device than {own.device.name} here.")
    found = {memory.input: memory for memory in memories}
    for memory in wanted:
        other = found.get(memory.input)
        if other is None or other.dtype != memory.dtype or len(other.shape) != len(memory.shape):
            raise InputError(
                f"{what} holds {'; '.join(map(str, memories)) or 'no memories'}; expected {memory}.",
                value=memory.input,
            )
        pairs = [each for n, each in enumerate(zip(other.shape, memory.shape, strict=True)) if n != batch]
        if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
            raise InputError(f"{what} holds {other}; expected {memory}.", value=memory.input)


def write_state(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write dense arrays by name; the file is there wholly, or as it was.

    Raises:
        AccessError: It can't be written.
    """
    from safetensors import numpy as safetensors

    write_file(path, safetensors.save(dict(arrays)))


def read_state(path: str | Path) -> dict[str, Array]:
    """Return the arrays of a file.

    Raises:
        InputError: It is no such file.
        NotFoundError: There is no file.
        AccessError: It can't be read, or is no regular file.
    """
    from safetensors import SafetensorError, deserialize

    content = read_file(path)
    try:
        return {
            name: np.frombuffer(bytes(row["data"]), safetensors_dtype(row["dtype"])).reshape(row["shape"])
            for name, row in deserialize(content)  # type: ignore[no-untyped-call]
        }
    except (SafetensorError, InputError, ValueError) as error:
        raise InputError(f"{path} holds no state: {abridge(str(error), 300)}.") from error


def _take_value(memory: Memory, item: object, backend: Backend) -> Carried:
    """Return what a memory holds from now on: a copy of an array, on the host or, where it lies there, on the device.

    The call returns when the copy is done: the caller may write the array then, on whatever stream.

    Raises:
        InputError: It can't be read, or its dtype or shape does not fit the memory.
        OutOfMemoryError: The device has no room for the copy.
    """
    try:
        return _copy_value(memory, item, backend)
    except GpuexecError as error:
        if repr(memory.input) not in str(error):
            error.args = (f"Memory {memory.input!r}: {error.message}",)
        raise
    except Exception as error:
        raise InputError(
            f"Memory {memory.input!r}: a {type(item).__name__} can't be read as an array: {error}.", value=memory.input
        ) from error


def _copy_value(memory: Memory, item: Any, backend: Backend) -> Carried:
    if isinstance(item, Tensor):
        return _hold_array(memory, item.readback_and_clone())
    if isinstance(item, (np.ndarray, np.generic)):
        return _hold_array(memory, np.array(item, order="C"))
    has_dlpack = hasattr(item, "__dlpack__")
    if has_dlpack or hasattr(item, "__cuda_array_interface__"):
        return _copy_foreign(memory, item, backend, has_dlpack=has_dlpack)
    return _hold_array(memory, convert_numbers(np.array(item, order="C"), memory.dtype))


def _copy_foreign(memory: Memory, item: Any, backend: Backend, *, has_dlpack: bool) -> Carried:
    """Take over an array of another package."""
    with backend.transfers.lock:
        stream = backend.transfers.open()
        taken = import_dlpack(item, backend, stream) if has_dlpack else import_cuda(item, backend)
        if isinstance(taken, np.ndarray):
            return _hold_array(memory, np.array(taken, order="C"))
        spec, source, fence = taken
        check_held(memory, spec)
        copy = backend.device.allocate(max(1, spec.nbytes), stream)
        for each in fence.events:
            stream.wait(each)
        if spec.nbytes:
            stream.copy(copy.address, source.address, spec.nbytes)
        event = backend.device.create_event()
        stream.record(event)
    event.synchronize()
    return Carried((memory.input,), spec, Fence.of(event), regions=(Region(copy, 0, spec.nbytes),), owners=(copy,))


def _hold_array(memory: Memory, array: Array) -> Carried:
    spec = TensorSpec(array.shape, array.dtype)
    check_held(memory, spec)
    return Carried((memory.input,), spec, Fence.of(), array=array)
