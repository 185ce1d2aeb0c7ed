"""Method: a model loaded into memory that its user owns. Made by `Program.load_method`."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region
from gpuexec.devices.working_here import waking_deferred, working_here
from gpuexec.errors import InputError, OutOfMemoryError, StateError
from gpuexec.execution.engine import Engine
from gpuexec.execution.profiling.profiler import Profiler
from gpuexec.execution.resources.aligned_copy import find_alignment
from gpuexec.execution.resources.caller_stream import open_stream
from gpuexec.execution.resources.exclusive_caller import is_interrupt
from gpuexec.execution.resources.unclosed import warn_unless_closed
from gpuexec.execution.results.arenas import is_on_host, take_memory
from gpuexec.execution.results.given import ArrayLike, Input, Inputs
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.inputs import GivenInput, HostArray, check_ports
from gpuexec.execution.runs.lists import split_inputs
from gpuexec.execution.runs.run import Run, Step
from gpuexec.execution.state.state import State
from gpuexec.execution.weights.alike import take_weights
from gpuexec.ir.spec import TensorSpec, is_host_object, name_dtype
from gpuexec.model.editing.weight_replacement import WeightSource
from gpuexec.model.model import Model, check_process
from gpuexec.model.outputs import Outputs
from gpuexec.model.ports import ModelPort
from gpuexec.model.state_spec import Memory, check_held
from gpuexec.program.method_inputs import MethodInputs
from gpuexec.program.method_memory import MethodMemory
from gpuexec.program.method_meta import MethodMeta
from gpuexec.program.method_plan import MethodPlan
from gpuexec.system.mapped import read_content
from gpuexec.system.pickling import not_picklable
from gpuexec.system.progress import ProgressCallback

Array = np.ndarray[Any, Any]
# An input or output, by index or name.
Key = int | str


@not_picklable("Send what Program.save wrote, and load the method there.")
class Method:
    """Runs one method of a Program in memory that was there before it ran.

    Inputs are set once and stay set; `execute` runs; outputs are read where they lie, until the next run begins. A
    Method belongs to one caller at a time, and a second one entering is refused. Many Methods may run at once.

    Before runs: `set_input`, `set_inputs`, `input_buffer`, `set_output`, `replace_weights`. To run: `execute`; layer by
    layer `step`, `reset`, `in_progress`. To read: `get_output`, `get_outputs`. Between runs: `state`, `get_attribute`,
    `set_attribute`. At the end: `close`.

    Example:
        >>> program = gx.Program.build({"forward": model}, shapes={"forward": {"image": ((1, 8), 1, 8, 8)}})
        >>> with program.load_method("forward", backend="cpu") as method:
        ...     method.set_input(0, x)
        ...     _ = method.execute()
        ...     logits, probabilities = (y.readback_and_clone() for y in method.get_outputs())
        >>> logits.shape
        (8, 10)
    """

    def __init__(
        self,
        model: Model,
        meta: MethodMeta,
        plan: MethodPlan,
        backend: Backend,
        memory: MethodMemory,
        stream: object = None,
        profiler: Profiler | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        check_process(model)
        self._model, self._meta, self._backend, self._memory = model, meta, backend, memory
        self._plan = plan
        self._bounds = {each.name: each for each in plan.bounds}
        # Steps of the present run, if it is in the middle of them, and whether the last one went through all of its.
        self._steps: Iterator[tuple[Step, int]] | None = None
        self._step_lock = threading.Lock()
        self._is_at_end = False
        caller = None if stream is None else open_stream(backend, stream)
        try:
            self._engine = Engine(model, backend, 1, caller, open_storage=memory.open)
        except BaseException:
            memory.release()
            raise
        self._engine.profiler = profiler
        self._engine.planning.listener.report = progress
        assert isinstance(self._engine.binder, MethodInputs)
        self._inputs, self._frame = self._engine.binder, self._engine.frames[0]
        self._planned_outputs = {port.name: self._frame.given(port.name) for port in model.outputs}
        self._run: Run | None = None
        # Contents of memories for the next run alone.
        self._once: dict[str, object] = {}
        try:
            self._prepare()
        except BaseException:
            self._engine.close()
            memory.release()
            raise
        self._unclosed = warn_unless_closed(self, f"A Method {meta.name!r}", "close(), or use `with`")

    def __repr__(self) -> str:
        state = "closed" if self._engine.is_closed else "ready" if self._steps is None else "in steps"
        return f"Method({self._meta.name!r} on {self._backend.device.name}, {state})"

    @property
    def method_meta(self) -> MethodMeta:
        """Description of the method."""
        return self._meta

    def set_input(self, index: Key, value: Input, *, copy: bool = True) -> None:
        """Set an input for all runs to come.

        Host arrays are copied at once; device arrays and Tensors are borrowed until the input is set anew.

        Args:
            index: Its index or name. That of a memory's input replaces the state for the next run, and does not stay.
            value: The array: anything a Worker takes.
            copy: False borrows a host array too, where it is dense: leave it as it is while runs may read it.

        Raises:
            InputError: There is no such input, or the dtype is wrong, or (code NOT_SUPPORTED) the shape.
            StateError: A run is in the middle of its steps.
        """
        _check_order("set_input", index, value)
        self._set({index: value}, copy=copy)

    def set_inputs(self, inputs: Inputs, *, copy: bool = True) -> None:
        """Set all inputs, or those that a mapping names: all of what is given, or nothing where one does not fit.

        Args:
            inputs: A list with every input in order, a mapping by name or index, or one array where there is one input.
            copy: As for `set_input`.

        Raises:
            InputError: As `set_input`, or the list is too short or too long.
            StateError: A run is in the middle of its steps.
        """
        if isinstance(inputs, Mapping):
            self._set(inputs, copy=copy)
            return
        items = split_inputs(self._model.inputs, inputs)
        if len(items) != len(self._model.inputs):
            raise InputError(f"Method {self._meta.name!r} has {len(self._model.inputs)} inputs, got {len(items)}.")
        self._set(dict(enumerate(items)), copy=copy)

    def input_buffer(self, index: Key, shape: tuple[int, ...] | None = None) -> Tensor:
        """Return the memory of an input as a Tensor to write to, and set the input to it: no copy follows.

        What packages write there on their streams is ordered by the Tensor's stream, the Method's own; on a CPU write
        by ``numpy.from_dlpack``, and not while a run reads it.

        Args:
            index: Its index or name.
            shape: Of what will be written; None: the upper bounds.

        Raises:
            InputError: There is no such input, the shape is out of bounds, or there is none and it has no bounds.
        """
        port = self._find_port(self._model.inputs, index, "input")
        _check_has_bytes("Input", port)
        bounds = self._bounds[port.name]
        if shape is not None and not isinstance(shape, (tuple, list)):
            raise InputError(f"Input {port.name!r}: shape must be a tuple of extents, got {shape!r}.", value=port.name)
        spec = bounds.largest if shape is None else TensorSpec(tuple(shape), port.spec.dtype)
        if spec is None:
            raise InputError(f"Give a shape: {bounds.describe_gap()}.", value=port.name)
        bounds.check(spec)
        with self._engine.exclusive:
            self._check_no_steps("input_buffer")
            return self._inputs.lend(port.name, spec)

    def set_output(self, index: Key, array: ArrayLike | None) -> None:
        """Write an output to memory of the user's from the next run on; None: to its own memory again.

        Args:
            index: Its index or name.
            array: Memory on the Method's device, of the output's dtype and at least its upper bound: a Tensor, or what
                has DLPack, ``__cuda_array_interface__`` or the buffer protocol. It is held until it is replaced.

        Raises:
            InputError: There is no such output, or the memory does not fit.
            StateError: A run is in the middle of its steps.
        """
        _check_order("set_output", index, array)
        port = self._find_port(self._model.outputs, index, "output")
        _check_has_bytes("Output", port)
        with self._engine.exclusive:
            self._check_no_steps("set_output")
            region = self._planned_outputs[port.name] if array is None else self._take_output(port, array)
            before = self._frame.given(port.name)
            self._frame.give(port.name, region)
            alignment = find_alignment(self._backend.device.target, port.spec.dtype)
            try:
                if region is not None:
                    self._frame.writable(port.name, region.nbytes, alignment)
            except OutOfMemoryError as error:
                self._frame.give(port.name, before)
                raise InputError(
                    f"Output {port.name!r}: the memory given starts at no multiple of {alignment} bytes, where kernels"
                    f" can't write, and there is no other that they could write to first: {error}",
                    value=port.name,
                ) from error

    def replace_weights(self, weights: WeightSource | Model) -> None:
        """Go on with other content for some of the model's weights; see `Worker.replace_weights`.

        Memory stays as it is. Of a program that was read, weights have the names that `Program.weight_names` gives.

        Args:
            weights: As for `Worker.replace_weights`.

        Raises:
            InputError: There is no weight of that name, or its type or shape is another; nothing was done.
            StateError: A run is in the middle of its steps.
            OutOfMemoryError: The device has no room for the new ones beside the old; nothing was done.
        """
        with self._engine.exclusive:
            old = self._engine.model
            self._engine.adopt(take_weights(old, weights))
            try:
                self._prepare()
            except BaseException:
                self._engine.adopt(old)
                raise
            self._model = self._engine.model

    def execute(self, inputs: Inputs | None = None, *, wait: bool = True, stream: object = None) -> Run:
        """Run and wait until the outputs may be read.

        Args:
            inputs: What to set before, as for `set_inputs`; None: what is set already.
            wait: False only puts the run on the stream.
            stream: A stream of yours (of CuPy, torch, the device, a handle, anything with ``__cuda_stream__``): the run
                comes after what is on it now, and what you put on it afterwards comes after the run, which stays on the
                Method's own.

        Raises:
            InputError: An input was never set, one given does not fit, or ``stream`` is none; nothing was run.
            StateError: A run is in the middle of its steps.
            GpuexecError: What the run raised; the Method is ready for the next.
        """
        if inputs is not None:
            self.set_inputs(inputs)
        with working_here() if wait else nullcontext(), waking_deferred(), self._engine.exclusive:
            self._check_no_steps("execute")
            self._is_at_end = False
            self._wait_for_state()
            run = self._run = self._engine.schedule(self._once or None, copy=True, stream=stream)
            self._once = {}
            if wait:
                with self._engine.exclusive.at_rest(), self._engine.cancel_on_error(run.number):
                    run.wait()
            return run

    def step(self, *, stream: object = None) -> Step | None:
        """Run one layer more, and return it; None once all are on the stream, until `reset` or `execute`.

        Args:
            stream: With the first step, as for `execute`; it waits for the run from the last step on.

        Raises:
            InputError: An input was never set, or ``stream`` is none.
            GpuexecError: What the layer raised; the steps are over, and the Method is ready to begin anew.
        """
        if self._is_at_end:
            return None
        if self._steps is None:
            with self._engine.exclusive:
                self._check_no_steps("step")
                self._wait_for_state()
                self._run, steps = self._engine.begin(self._once or None, copy=True, budget_ms=None, stream=stream)
                self._once = {}
                self._steps = steps
                if self._memory.shared_use is not None:
                    self._memory.shared_use.stepping = self
        return self._take_step()

    def reset(self) -> None:
        """Cancel the steps of the present run, if there are any, and begin anew; legal at any time."""
        with self._engine.exclusive:
            self._is_at_end = False
            if self._steps is not None and self._run is not None:
                self._run.cancel()
                self._run = None
            self._end_steps()

    def in_progress(self) -> bool:
        """Return whether a run is in the middle of its steps."""
        return self._steps is not None

    def get_output(self, index: Key) -> Tensor:
        """Return an output of the last run: good until the next run begins.

        Raises:
            InputError: There is no such output.
            StateError: Nothing was run yet.
            StaleError: A Method that shares its memory has run since.
        """
        port = self._find_port(self._model.outputs, index, "output")
        self._engine.check_open()
        if self._run is None:
            raise StateError("Nothing was run yet; call execute() before reading an output.")
        tensor = self._run.peek_output(port.name)
        tensor._content.check()
        return tensor

    def get_outputs(self) -> Outputs[Tensor]:
        """Return all outputs of the last run as Tensors, by position and by name; see `get_output`."""
        return Outputs({port.name: self.get_output(port.name) for port in self._model.outputs})

    @property
    def state(self) -> State:
        """State of the memories between runs; Methods of one device may share one."""
        self._engine.check_open()
        return self._engine.states.state

    @state.setter
    def state(self, state: State) -> None:
        with self._engine.exclusive:
            self._check_no_steps("state")
            self._engine.states.replace(state)

    def get_attribute(self, name: str) -> Array:
        """Block for a copy of what a memory holds after all runs so far; or return a constant of the model, read-only.

        Args:
            name: Of the memory's input or output, or of the constant.

        Raises:
            InputError: There is none of that name.
        """
        if any(name in (memory.input, memory.output) for memory in self._model.memories):
            return self.state.get(name)
        for value, array in self._model.graph.constants.items():
            if value.name == name:
                view = read_content(array).view()
                view.flags.writeable = False
                return view
        raise InputError(f"Method {self._meta.name!r} has no attribute {name!r}.", value=name)

    def set_attribute(self, name: str, value: ArrayLike) -> None:
        """Set a memory to a copy of an array.

        Raises:
            InputError: There is no memory of that name, or the array does not fit.
        """
        with self._engine.exclusive:
            self._check_no_steps("set_attribute")
            self.state.set({name: value})

    def close(self) -> None:
        """Wait for all work and let go of all memory; twice is harmless. Readbacks requested before stay readable.

        Runs that do not end are cancelled, and interrupts taken, as by `Worker.close`.
        """
        self._close(cancels=False)

    def __enter__(self) -> Method:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(cancels=kind is not None and is_interrupt(kind))

    def _prepare(self) -> None:
        """Plan, compile and allocate for the upper bounds, where there are any."""
        given = {each.name: HostArray(each.largest) for each in self._bounds.values() if each.largest is not None}
        if len(given) < len(self._bounds):
            return
        for memory in self._model.memories:
            if memory.capacity is not None and memory.input in self._plan.starts:
                given[memory.input] = HostArray(self._plan.starts[memory.input])
        self._engine.prepare(given)

    def _set(self, given: Mapping[Any, object], *, copy: bool) -> None:
        """Set inputs by index or name, and memories for the next run: all of them, or none where one does not fit."""
        with self._engine.exclusive:
            self._check_no_steps("set_input")
            accepted: dict[str, GivenInput] = {}
            once: dict[str, object] = {}
            for index, value in given.items():
                memory = next((each for each in self._model.memories if each.input == index), None)
                if memory is not None:
                    once[memory.input] = self._accept_memory(memory, value)
                    continue
                port = self._find_port(self._model.inputs, index, "input")
                item = self._engine.input_reader.accept_one(port, value, copy=copy)
                self._bounds[port.name].check(item.spec)
                if port.name in accepted:
                    raise InputError(f"Input {port.name!r} is given twice, by index and by name.", value=port.name)
                accepted[port.name] = item
            ports = [port for port in self._model.inputs if port.name in accepted]
            check_ports(self._model, ports, {name: item.spec for name, item in accepted.items()})
            self._once.update(once)
            for name, item in accepted.items():
                self._inputs.set(name, item)

    def _accept_memory(self, memory: Memory, value: object) -> object:
        """Return what the next run starts from in place of the state."""
        port = next(port for port in self._model.ports if port.name == memory.input)
        item = self._engine.input_reader.accept_one(port, value, copy=True)
        check_held(memory, item.spec)
        return item.array.copy() if isinstance(item, HostArray) and item.array is not None else value

    def _find_port(self, ports: tuple[ModelPort, ...], index: object, what: str) -> ModelPort:
        """Return an input or output (``what``).

        Raises:
            InputError: There is none of that index or name.
        """
        if isinstance(index, str):
            found = next((port for port in ports if port.name == index), None)
            if found is None:
                names = ", ".join(port.name for port in ports)
                raise InputError(f"Method {self._meta.name!r} has no {what} {index!r}; it has {names}.", value=index)
            return found
        try:
            number = operator.index(index)  # type: ignore[arg-type]
        except TypeError:
            raise InputError(f"An {what} has an index or a name, not a {type(index).__name__}.") from None
        if not 0 <= number < len(ports):
            raise InputError(f"Method {self._meta.name!r} has {len(ports)} {what}s, got index {number}.")
        return ports[number]

    def _take_output(self, port: ModelPort, array: object) -> Region:
        """Take over memory for an output, for what the stream does from now on.

        An array of one axis of bytes, as allocators give, serves any dtype. It may start at any address. Of an output
        without an upper bound all of it is taken, and held against what each run gives.

        Raises:
            InputError: It is of another dtype, too small, lies elsewhere, can't be used, or is used for something else.
        """
        backend, nbytes = self._backend, self._meta.output_nbytes(self._model.outputs.index(port))
        what = f"Output {port.name!r} of method {self._meta.name!r}"
        expected = name_dtype(port.spec.dtype)
        dtype = str(getattr(array, "dtype", expected)).rpartition(".")[2]
        is_raw = dtype == "uint8" and len(getattr(array, "shape", ())) == 1
        if dtype != expected and not is_raw:
            raise InputError(f"{what} is {expected}, the memory given is of {dtype}.", value=port.name)
        if backend.device.target.has_kernels and is_on_host(array):
            raise InputError(
                f"{what} is written by {backend.device.name}, and the {type(array).__name__} lies on the host. Give"
                f" memory of the device, or copy after the run: get_output({port.name!r}).readback_and_clone(array).",
                value=port.name,
            )
        memory = take_memory(
            array, backend, self._engine.stream, nbytes, what, is_host=False, alignment=1, takes_all=not nbytes
        )
        region = Region(memory, 0, memory.nbytes)
        self._check_apart(port.name, region)
        return region

    def _check_apart(self, name: str, region: Region) -> None:
        """Check that an output's bytes are used for nothing else here.

        Raises:
            InputError: They are; names both.
        """
        for other in self._model.outputs:
            taken = self._frame.given(other.name)
            if other.name == name or taken is None or not taken.nbytes:
                continue
            if region.address < taken.address + taken.nbytes and taken.address < region.address + region.nbytes:
                raise InputError(
                    f"Output {name!r} overlaps output {other.name!r}; give each bytes of its own.", value=name
                )
        self._memory.check_apart(region, f"Output {name!r}")
        self._inputs.check_apart(region, f"Output {name!r}")

    def _wait_for_state(self) -> None:
        """Wait for the run before where state planned to the byte has no room for two that are not sure."""
        run = self._run
        is_tight = self._memory.is_planned and not self._backend.device.target.has_kernels
        if self._model.memories and is_tight and run is not None and not run.is_done():
            self._engine.syncs.note_wait(f"run {run.number}", "the memory planned for state has no room for another")
            run._fence.settle()

    def _take_step(self) -> Step | None:
        """Take one step of the present run; None after the last.

        Raises:
            StateError: Another caller takes one, or has given them up.
            GpuexecError: What the step raised; they are over.
        """
        held: list[bool] = []
        try:
            held.extend(map(self._step_lock.acquire, (False,)))  # see `gpuexec.devices.latch`
            if not held[0]:
                raise StateError("Another caller is inside this Method, in step().")
            if self._steps is None:
                raise StateError("Another caller has given up the steps of this Method; call step() to begin anew.")
            found = next(self._steps, None)
        except BaseException:
            if held and held[0]:
                self._end_steps()
            raise
        finally:
            if held and held[0]:
                self._step_lock.release()
        if found is None:
            self._end_steps()
            self._is_at_end = True
            return None
        return found[0]

    def _end_steps(self) -> None:
        """End the steps of the present run."""
        self._steps = None
        shared_use = self._memory.shared_use
        if shared_use is not None and shared_use.stepping is self:
            shared_use.stepping = None

    def _check_no_steps(self, what: str) -> None:
        """Check that no run is in the middle of its steps, here or over the same memory.

        Raises:
            StateError: One is.
        """
        if self._steps is not None:
            raise StateError(f"{what}() can't be called in the middle of steps; finish them, or call reset().")
        other = None if self._memory.shared_use is None else self._memory.shared_use.stepping
        if other is not None:
            raise StateError(f"{other!r} shares this Method's memory and is in the middle of steps.")

    def _close(self, *, cancels: bool) -> None:
        if not self._engine.is_closed:
            with self._engine.closing():
                self._end_steps()
                is_settled = self._engine.close(cancels=cancels)
                self._run = None
                if is_settled:
                    # What others go on from stays theirs; the rest of the planned memory is free.
                    self._engine.states.forget()
                    self._memory.release()
            self._unclosed.detach()


def _check_has_bytes(what: str, port: ModelPort) -> None:
    """Check that an input or output (``what``) lies in memory of a device.

    Raises:
        InputError: It is strings or a container.
    """
    if is_host_object(port.spec.dtype):
        raise InputError(f"{what} {port.name!r} is {port.spec}, which has no memory to write to.", value=port.name)


def _check_order(call: str, index: object, value: object) -> None:
    """Check that the index comes before the array.

    Raises:
        InputError: The two were swapped.
    """
    is_array = hasattr(index, "shape") or hasattr(index, "__dlpack__") or isinstance(index, (list, tuple))
    if is_array and not isinstance(index, np.integer):
        raise InputError(f"{call} takes the index first: {call}({value!r}, array).")
