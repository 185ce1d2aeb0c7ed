"""Settings of a Method before it runs: its inputs, and the user's memory for its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuexec.devices.device import Region
from gpuexec.errors import InputError, OutOfMemoryError
from gpuexec.execution.engine import Engine
from gpuexec.execution.resources.alignment import find_alignment
from gpuexec.execution.resources.frames import Frame
from gpuexec.execution.results.given import ArrayLike, Input, Inputs
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.inputs import GivenInput, HostArray, check_ports
from gpuexec.execution.runs.lists import split_inputs
from gpuexec.ir.spec import TensorSpec
from gpuexec.model.model import Model
from gpuexec.model.ports import ModelPort
from gpuexec.model.state_spec import Memory, check_held
from gpuexec.program.bounds import Bounds
from gpuexec.program.method_inputs import MethodInputs
from gpuexec.program.method_meta import MethodMeta
from gpuexec.program.method_outputs import check_outputs_apart, take_output
from gpuexec.program.method_ports import Key, check_has_bytes, check_order, find_port
from gpuexec.program.method_steps import Steps
from gpuexec.program.method_storage import MethodClaims


class Setting:
    """Sets inputs and outputs of an engine's runs. ``_once`` are contents of memories for the next run alone."""

    _engine: Engine
    _model: Model
    _meta: MethodMeta
    _bounds: dict[str, Bounds]
    _steps: Steps
    _claims: MethodClaims
    _inputs: MethodInputs
    _frame: Frame
    _planned: dict[str, Region | None]
    _once: dict[str, object]

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
        check_order("set_input", index, value)
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
        port = self._find_input(index)
        check_has_bytes("Input", port)
        bounds = self._bounds[port.name]
        if shape is not None and not isinstance(shape, (tuple, list)):
            raise InputError(f"Input {port.name!r}: shape must be a tuple of extents, got {shape!r}.", value=port.name)
        spec = bounds.largest if shape is None else TensorSpec(tuple(shape), port.spec.dtype)
        if spec is None:
            raise InputError(f"Give a shape: {bounds.describe_gap()}.", value=port.name)
        bounds.check(spec)
        with self._engine.entering():
            self._steps.check_none("input_buffer")
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
        check_order("set_output", index, array)
        port = find_port(self._meta.name, self._model.outputs, index, "output")
        check_has_bytes("Output", port)
        with self._engine.entering():
            self._steps.check_none("set_output")
            region = self._planned[port.name]
            if array is not None:
                nbytes = self._meta.output_nbytes(self._model.outputs.index(port))
                region = take_output(self._meta, port, nbytes, array, self._engine.backend, self._engine.stream)
                self._check_apart(port.name, region)
            before = self._frame.given(port.name)
            self._frame.give(port.name, region)
            alignment = find_alignment(self._engine.backend.device.target, port.spec.dtype)
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

    def _set(self, given: Mapping[Any, object], *, copy: bool) -> None:
        with self._engine.entering():
            self._steps.check_none("set_input")
            accepted: dict[str, GivenInput] = {}
            once: dict[str, object] = {}
            for index, value in given.items():
                memory = next((each for each in self._model.memories if each.input == index), None)
                if memory is not None:
                    once[memory.input] = self._accept_memory(memory, value)
                    continue
                port = self._find_input(index)
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

    def _find_input(self, index: object) -> ModelPort:
        return find_port(self._meta.name, self._model.inputs, index, "input")

    def _check_apart(self, name: str, region: Region) -> None:
        """Check that an output's bytes are used for nothing else here."""
        check_outputs_apart(name, region, {port.name: self._frame.given(port.name) for port in self._model.outputs})
        self._claims.check_apart(region, f"Output {name!r}")
        self._inputs.check_apart(region, f"Output {name!r}")
