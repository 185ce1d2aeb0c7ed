"""Method: a model loaded into memory that its user owns. Made by `Program.load_method`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.errors import InputError, StateError
from gpuexec.execution.engine import Engine
from gpuexec.execution.profiling.profiler import Profiler
from gpuexec.execution.resources.caller_stream import open_stream
from gpuexec.execution.resources.exclusive_caller import is_interrupt
from gpuexec.execution.resources.unclosed import warn_unless_closed
from gpuexec.execution.results.given import ArrayLike, Inputs
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.inputs import HostArray
from gpuexec.execution.runs.run import Run, Step
from gpuexec.execution.state.state import State
from gpuexec.execution.weights.alike import take_weights
from gpuexec.model.editing.weights import WeightSource
from gpuexec.model.model import Model, check_process
from gpuexec.model.outputs import Outputs
from gpuexec.program.method_meta import MethodMeta
from gpuexec.program.method_plan import MethodPlan
from gpuexec.program.method_ports import Key, find_port
from gpuexec.program.method_setting import Setting
from gpuexec.program.method_steps import Steps
from gpuexec.program.method_storage import MethodClaims, MethodMemory, check_memory, open_method_storage
from gpuexec.program.slot_binder import SlotBinder
from gpuexec.system.mapped import read_content
from gpuexec.system.pickling import not_picklable
from gpuexec.system.progress import Tell

Array = np.ndarray[Any, Any]


@not_picklable("Send what Program.save wrote, and load the method there.")
class Method(Setting):
    """Runs one method of a Program in memory that was there before it ran.

    Inputs are set once and stay set; `execute` runs; outputs are read where they lie, until the next run begins. A
    Method belongs to one caller at a time, and a second one entering is refused. Many Methods may run at once.
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
        progress: Tell | None = None,
    ) -> None:
        check_process(model)
        check_memory(meta, memory)
        self._model, self._meta, self._backend, self._memory = model, meta, backend, memory
        self._plan = plan
        self._bounds = {each.name: each for each in plan.bounds}
        self._steps = Steps(None if memory.planned is None else memory.planned._sharing)
        self._claims = MethodClaims()
        open_storage = open_method_storage(meta, plan.bounds, memory, self._claims)
        caller = None if stream is None else open_stream(backend, stream)
        try:
            self._engine = Engine(model, backend, 1, caller, open_storage=open_storage)
        except BaseException:
            self._claims.release()
            raise
        self._engine.profiler = profiler
        self._engine.planning.listener.tell = progress
        assert isinstance(self._engine.binder, SlotBinder)
        self._inputs, self._frame = self._engine.binder.inputs, self._engine.frames[0]
        self._planned = {port.name: self._frame.given(port.name) for port in model.outputs}
        self._run: Run | None = None
        self._once: dict[str, object] = {}
        try:
            self._prepare()
        except BaseException:
            self._engine.close()
            self._claims.release()
            raise
        self._unclosed = warn_unless_closed(self, f"A Method {meta.name!r}", "close(), or use `with`")

    def __repr__(self) -> str:
        state = "closed" if self._engine.is_closed else "in steps" if self._steps.is_open else "ready"
        return f"Method({self._meta.name!r} on {self._backend.device.name}, {state})"

    # ---- what there is to know

    @property
    def method_meta(self) -> MethodMeta:
        """Description of the method."""
        return self._meta

    # ---- weights

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
        with self._engine.entering():
            old = self._engine.model
            self._engine.adopt(take_weights(old, weights))
            try:
                self._prepare()
            except BaseException:
                self._engine.adopt(old)
                raise
            self._model = self._engine.model

    # ---- running

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
        with self._engine.entering():
            self._steps.check_none("execute")
            self._steps.is_over = False
            self._wait_for_state()
            run = self._run = self._engine.schedule(self._once or None, copy=True, stream=stream)
            self._once = {}
            if wait:
                with self._engine.entering().at_rest(), self._engine.giving_up(run.number):
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
        if self._steps.is_over:
            return None
        if not self._steps.is_open:
            with self._engine.entering():
                self._steps.check_none("step")
                self._wait_for_state()
                self._run, steps = self._engine.begin(self._once or None, copy=True, budget_ms=None, stream=stream)
                self._once = {}
                self._steps.begin(self, steps)
        return self._steps.advance(self)

    def reset(self) -> None:
        """Cancel the steps of the present run, if there are any, and begin anew; legal at any time."""
        with self._engine.entering():
            self._steps.is_over = False
            if self._steps.is_open and self._run is not None:
                self._run.cancel()
                self._run = None
            self._steps.end(self)

    def in_progress(self) -> bool:
        """Return whether a run is in the middle of its steps."""
        return self._steps.is_open

    # ---- outputs

    def get_output(self, index: Key) -> Tensor:
        """Return an output of the last run: good until the next run begins.

        Raises:
            InputError: There is no such output.
            StateError: Nothing was run yet.
            StaleError: A Method that shares its memory has run since.
        """
        port = find_port(self._meta.name, self._model.outputs, index, "output")
        self._engine.check_open()
        if self._run is None:
            raise StateError("Nothing was run yet; call execute() before reading an output.")
        tensor = self._run.peek_output(port.name)
        tensor._content.check()
        return tensor

    def get_outputs(self) -> Outputs[Tensor]:
        """Return all outputs of the last run as Tensors, by position and by name; see `get_output`."""
        return Outputs({port.name: self.get_output(port.name) for port in self._model.outputs})

    # ---- what outlives a run

    @property
    def state(self) -> State:
        """State of the memories between runs; Methods of one device may share one."""
        self._engine.check_open()
        return self._engine.states.state

    @state.setter
    def state(self, state: State) -> None:
        with self._engine.entering():
            self._steps.check_none("state")
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
        with self._engine.entering():
            self._steps.check_none("set_attribute")
            self.state.set({name: value})

    # ---- life

    def close(self) -> None:
        """Wait for all work and let go of all memory; twice is harmless. Readbacks requested before stay readable.

        Runs that do not end are cancelled, and interrupts taken, as by `Worker.close`.
        """
        self._close(cancels=False)

    def _close(self, *, cancels: bool) -> None:
        if not self._engine.is_closed:
            with self._engine.closing():
                self._steps.end(self)
                is_settled = self._engine.close(cancels=cancels)
                self._run = None
                if is_settled:
                    # What others go on from stays theirs; the rest of the planned memory is free.
                    self._engine.states.forget()
                    self._claims.release()
            self._unclosed.detach()

    def __enter__(self) -> Method:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(cancels=kind is not None and is_interrupt(kind))

    # ---- parts

    def _prepare(self) -> None:
        """Plan, compile and allocate for the upper bounds, where there are any."""
        given = {each.name: HostArray(each.largest) for each in self._bounds.values() if each.largest is not None}
        if len(given) < len(self._bounds):
            return
        for memory in self._model.memories:
            if memory.capacity is not None and memory.input in self._plan.starts:
                given[memory.input] = HostArray(self._plan.starts[memory.input])
        self._engine.prepare(given)

    def _wait_for_state(self) -> None:
        """Wait for the run before where state planned to the byte has no room for two that are not sure."""
        run = self._run
        is_tight = self._memory.planned is not None and not self._backend.device.target.has_kernels
        if self._model.memories and is_tight and run is not None and not run.is_done():
            self._engine.syncs.note_wait(f"run {run.number}", "the memory planned for state has no room for another")
            run._fence.settle()
