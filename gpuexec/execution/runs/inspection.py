"""Results of taps and watches of a run: statistics read back and checked as the run goes on."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from gpuexec.devices.completion import Completion
from gpuexec.errors import InputError, NonFiniteError, StateError
from gpuexec.execution.inspection.exposing import BINS, Exposed, ExposedValue
from gpuexec.execution.inspection.inspector import Inspector
from gpuexec.execution.inspection.nonfinite import NonFinite, find_nonfinite, judge_host_node
from gpuexec.execution.inspection.statistics import Array, Reducer, Statistics, read_words, reduce_with
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.runs.host_transfers import Fetch, HostTransfers
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.ir.command import HostCall, Launch, Slot
from gpuexec.ir.graphs import Node, Value
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.ops.reduce.statistics import WORDS, HistogramOperator, is_look


class Piece:
    """Exposed values of one plan of a run, or of one host node.

    Args:
        exposed: What was looked at.
        fetch: Its way to the host.
        made: Where it is.
        planned: The plan and its sizes.
        given: The model's inputs.
    """

    def __init__(
        self,
        exposed: Exposed,
        fetch: Fetch,
        made: Mapping[Value, ValueLocation],
        planned: PlannedVariant,
        given: Collection[Value],
    ) -> None:
        self.fetch, self._exposed, self._made, self._given = fetch, exposed, made, given
        self._commands, self._origins = planned.variant.commands, planned.compiled.plan.segment.origins
        self._words: Array | None = None
        # Whoever gives the run up gives its pinned memory back.
        weakref.finalize(self, fetch.close).atexit = False

    @property
    def has_tensors(self) -> bool:
        """True where whole tensors are exposed, for functions of the caller's."""
        return bool(self._exposed.tensors)

    def find(self) -> NonFinite | None:
        """Return the first node that made a NaN or infinity; the content is there."""
        return find_nonfinite(self._exposed, self._read_words(), self._given, self._find_spec)

    def read(self, reducers: Mapping[str, Sequence[Reducer]]) -> list[Statistics]:
        """Return the statistics of all that is tapped; the content is there."""
        words, exposed = self._read_words(), self._exposed
        histograms = iter([] if exposed.counts is None else self._content(exposed.counts).reshape(-1, BINS))
        found = []
        for place, row in enumerate(exposed.rows):
            if not row.taps:
                continue
            counts = next(histograms) if row.has_histogram else None
            results = {}
            if row.has_tensor:
                tensor = self._content(exposed.tensors[row.value])
                results = reduce_with((each for tap in row.taps for each in reducers.get(tap.name, ())), tensor)
            node = "" if row.node is None else row.node.name
            spec = self._find_spec(place)
            found.append(read_words(row.value.name, node, spec, words[place], counts, results))
        return found

    def _read_words(self) -> Array:
        if self._words is None:
            self.fetch.finish()
            assert self._exposed.words is not None
            self._words = self._content(self._exposed.words).reshape(-1, WORDS)
        return self._words

    def _content(self, value: Value) -> Array:
        array = self._made[value].array
        assert array is not None
        return array

    def _find_spec(self, place: int) -> TensorSpec | None:
        """Return shape and dtype of what is looked at, by the window that is read; None where the host knew it all."""
        taker = self._exposed.rows[place].taker
        for command, origin in zip(self._commands, self._origins, strict=True):
            if origin != taker or not is_look(command):
                continue
            match command:
                case HostCall(inputs=(Slot() as slot, *_)) | Launch(arguments=(Slot() as slot, *_)):
                    return slot.spec
        return None


class Inspection:
    """Results of the taps and watches of a run: poll `is_done`, await it, or wait; nothing blocks the run.

    What it finds is there once the run is done, even if it was ended by what the watch found.

    Args:
        fence: Of the run.
        inspector: What is looked at; taps of later runs may be others.
        given: The model's inputs.

    Example:
        >>> with gx.Worker(model, backend="cpu", watch="report") as worker:
        ...     seen = worker.schedule(x).inspection
        ...     print(seen.find_nonfinite())
        None
    """

    def __init__(self, fence: Fence, completion: Completion, inspector: Inspector, given: Collection[Value]) -> None:
        self._fence, self._completion, self._given = fence, completion, given
        self._reducers, self._raises = inspector.reducers, inspector.raises
        self._has_watch = inspector.exposure.watches
        self._lock = threading.Lock()
        # What is still to be read, and what was read before it.
        self._pieces: deque[Piece | tuple[NonFinite | None, list[Statistics]]] = deque()
        self._history: dict[str, list[Statistics]] = {}
        self._found: NonFinite | None = None
        # Whether it was this run that was ended by what was found, and not one before whose state it was to go on from.
        self._has_raised = False

    def is_done(self) -> bool:
        """Return whether all is on the host, or never will be; never waits."""
        return self._fence.is_done()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until done; False when the time ran out.

        Raises:
            GpuexecError: What the run raised.
        """
        return self._fence.synchronize(timeout_s)

    def __await__(self) -> Generator[Any, None, Inspection]:
        yield from self._fence.wait(self._completion).__await__()
        return self

    def statistics(self) -> dict[str, Statistics]:
        """Return the statistics of each value tapped, by its name, waiting for them if need be.

        Of a value in the body of a loop they are those of the last trip; `history` has all.

        Raises:
            GpuexecError: What the run raised, but for what the watch found.
        """
        return {name: rows[-1] for name, rows in self._settle().items()}

    def history(self, value: str) -> tuple[Statistics, ...]:
        """Return the statistics of one value, each time that the run made it, waiting for them if need be.

        Raises:
            InputError: It is not tapped, or the run did not come by it.
        """
        known = self._settle()
        if value not in known:
            raise InputError(
                f"The run made no tapped value {value!r}; it made {', '.join(known) or 'none'}.", value=value
            )
        return tuple(known[value])

    def find_nonfinite(self) -> NonFinite | None:
        """Return the first node that made a NaN or infinity, waiting for the run if need be; None where none did.

        Raises:
            StateError: The run is not watched.
            GpuexecError: What the run raised, but for what the watch found.
        """
        if not self._has_watch:
            raise StateError("The run is not watched; make the Worker with watch='report' or 'raise'.")
        self._settle()
        return self._found

    def _take(
        self, exposed: Exposed, transfers: HostTransfers, made: Mapping[Value, ValueLocation], planned: PlannedVariant
    ) -> Piece | None:
        """Start to read the exposed values of a plan back; None where there are none.

        What came there before is read and its memory given back: a loop may have trips without end.

        Raises:
            GpuexecError: What went wrong on the device until then.
        """
        shown = [value for value in (exposed.words, exposed.counts, *exposed.tensors.values()) if value is not None]
        if not shown:
            return None
        location = {value: made[value] for value in shown}
        piece = Piece(exposed, transfers.fetch(list(location.values())), location, planned, self._given)
        with self._lock:
            while self._pieces and _has_come(self._pieces[0]):
                self._read_first()
            self._pieces.append(piece)
        return piece

    def _take_host_node(self, node: Node, rows: Sequence[ExposedValue], arrays: Mapping[Value, Array | None]) -> None:
        """Take statistics of values the host computed, from ``arrays``. Strings and containers have none.

        Raises:
            NonFiniteError: The node made a NaN or infinity, and that ends the run.
        """
        measured = []
        arrays = {v: each for v, each in arrays.items() if each is not None and not is_host_object(each.dtype)}
        for row in rows:
            array = arrays.get(row.value)
            if array is not None and row.taps:
                measured.append(self._reduce(node, row, array))
        found = judge_host_node(node, arrays) if self._has_watch else None
        self._pieces.append((found, measured))
        self._check(found)

    def _check(self, found: NonFinite | None) -> None:
        """Raise for a NaN or infinity that was found, if the watch is to raise.

        Raises:
            NonFiniteError: Something was, and it was.
        """
        if found is not None and self._raises:
            self._has_raised = True
            raise NonFiniteError(
                str(found),
                operator=found.operator,
                kind=found.kind,
                count=found.count,
                index=found.index,
                node=found.node or None,
                value=found.output.value,
            )

    def _reduce(self, node: Node, row: ExposedValue, array: Array) -> Statistics:
        (words,) = row.operator.compute(array)
        counts = HistogramOperator(BINS).compute(array, words)[0] if row.has_histogram else None
        results = reduce_with((each for tap in row.taps for each in self._reducers.get(tap.name, ())), array)
        spec = TensorSpec(array.shape, array.dtype)
        return read_words(row.value.name, node.name, spec, words, counts, results)

    def _settle(self) -> dict[str, list[Statistics]]:
        """Read what came to the host, once."""
        self._fence.settle()
        failure = self._fence.failure
        if failure is not None and not self._has_raised:
            raise failure
        if failure is None:
            self._fence.synchronize()
        with self._lock:
            while self._pieces:
                self._read_first()
            return self._history

    def _read_first(self) -> None:
        """Read what came first of what is left."""
        piece = self._pieces[0]
        if isinstance(piece, Piece):
            found, measured = piece.find() if self._has_watch else None, piece.read(self._reducers)
        else:
            found, measured = piece
        self._pieces.popleft()
        self._found = self._found or found
        for each in measured:
            self._history.setdefault(each.value, []).append(each)


def _has_come(piece: Piece | tuple[NonFinite | None, list[Statistics]]) -> bool:
    """Return whether all of a piece is on the host, and no function of the caller's is to see it."""
    if not isinstance(piece, Piece):
        return True
    if piece.has_tensors or not piece.fetch.after.is_done():
        return False
    piece.fetch.after.synchronize()  # who only asked has not been given the error
    return True
