"""IOBinding: inputs and outputs bound to memory on the host or on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.compat.onnxruntime.described import find_dtype
from gpuexec.compat.onnxruntime.devices import OrtDevice, find_device
from gpuexec.compat.onnxruntime.errors import ArgumentTypeError, BindingError, InvalidArgument, make_error, translating
from gpuexec.compat.onnxruntime.runner import BaseSession
from gpuexec.compat.onnxruntime.values import OrtValue, OrtValueVector, check_bindable, view_pointer, wrap_pointer
from gpuexec.devices.backend import Backend, BackendType
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.run import Run
from gpuexec.execution.worker import Worker
from gpuexec.ir.spec import TensorSpec

Array = np.ndarray[Any, Any]
# The stream assumed for work on bare pointers, as CUDA numbers streams.
_LEGACY_STREAM = 1


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """Destination of an output.

    To a backend's device, or the host where it is None: into ``value``, or into memory that is made for it.
    """

    backend: Backend | None
    value: OrtValue | None = None
    is_pointer: bool = False


class IOBinding:
    """Bound memory of inputs and outputs, kept alive by the binding. Made by ``session.io_binding()``."""

    def __init__(self, session: BaseSession) -> None:
        self._session = session
        self._inputs: dict[str, OrtValue] = {}
        self._targets: dict[str, OutputTarget] = {}
        self._outputs: dict[str, OrtValue] = {}
        self._has_pointers = False

    @property
    def session(self) -> BaseSession:
        """The session that runs with it."""
        return self._session

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an array; where the session runs on a device, it is copied there now.

        Raises:
            BindingError: There is no such input, or the array's type is not supported.
        """
        self._check_input(name)
        backend = self._session.backend
        value = OrtValue.ortvalue_from_numpy(np.asarray(arr_on_cpu))
        self._inputs[name] = value if backend.type is BackendType.CPU else value.copy_to(backend)

    def bind_input(
        self,
        name: str,
        device_type: str | OrtDevice,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind dense bytes at an address, which the caller keeps alive.

        On a GPU the run comes after what is on the legacy default stream, where torch and CuPy work unless configured
        otherwise, and what is put there afterwards comes after the run.

        Raises:
            BindingError: There is no such input, or the session can't read memory of that device.
        """
        self._check_input(name)
        spec = TensorSpec(tuple(int(extent) for extent in shape), find_dtype(element_type))
        self._inputs[name], is_pointer = self._wrap(name, device_type, device_id, spec, buffer_ptr)
        self._has_pointers |= is_pointer

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value on any device.

        Raises:
            BindingError: There is no such input.
        """
        self._check_input(name)
        self._inputs[name] = _check_value(ortvalue)

    def bind_output(
        self,
        name: str,
        device_type: str | OrtDevice = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to a device, or to dense bytes at an address there, which the caller keeps alive.

        Without an address each run allocates memory for it, of the shape it turns out to have.

        Raises:
            BindingError: There is no such output, the session can't write memory of that device, or an address has no
                dtype and shape.
        """
        self._check_output(name)
        if buffer_ptr is None:
            self._targets[name] = OutputTarget(self._open(device_type, device_id))
            return
        if element_type is None or shape is None:
            raise make_error(BindingError, f"Output {name!r}: an address needs element_type and shape.")
        spec = TensorSpec(tuple(int(extent) for extent in shape), find_dtype(element_type))
        value, is_pointer = self._wrap(name, device_type, device_id, spec, buffer_ptr)
        backend = value.backend
        self._targets[name] = OutputTarget(backend, value, is_pointer)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to a value that it is written to.

        Raises:
            BindingError: There is no such output, or the value lies where the session can't write.
        """
        self._check_output(name)
        backend = _check_value(ortvalue).backend
        self._check_reach(backend)
        self._targets[name] = OutputTarget(backend, ortvalue)

    @property
    def _iobinding(self) -> SessionIOBinding:
        """The binding of the compiled module, which holds the same."""
        return SessionIOBinding(self)

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs in the order they were bound; they have no value before a run."""
        return [self._outputs.get(name) or target.value or OrtValue(None) for name, target in self._targets.items()]

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """Return the outputs as `get_outputs` does, as a vector of the compiled module."""
        return self._iobinding.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return the outputs as arrays, in the order they were bound; waits for them."""
        return [value.numpy() for value in self.get_outputs()]

    def synchronize_inputs(self) -> None:
        """Wait until the bound inputs are ready."""
        for value in self._inputs.values():
            value.wait()

    def synchronize_outputs(self) -> None:
        """Wait until the outputs are ready."""
        with translating(BindingError):
            for value in self._outputs.values():
                value.wait()

    def clear_binding_inputs(self) -> None:
        """Release the inputs."""
        self._inputs.clear()
        self._has_pointers = False

    def clear_binding_outputs(self) -> None:
        """Release the outputs."""
        self._targets.clear()
        self._outputs.clear()

    def list_inputs(self) -> dict[str, OrtValue]:
        """Return the inputs by name.

        Raises:
            BindingError: No output is bound.
        """
        if not self._targets:
            raise make_error(BindingError, "No output is bound; at least one must be.")
        return dict(self._inputs)

    @property
    def caller_stream(self) -> int | None:
        """The stream that the run is ordered on: the legacy one where bare pointers are bound."""
        has_pointers = self._has_pointers or any(target.is_pointer for target in self._targets.values())
        return _LEGACY_STREAM if has_pointers else None

    def take_outputs(self, worker: Worker, run: Run) -> None:
        """Put the outputs of a run where they are bound to; waits only for those on the host."""
        requests = {
            name: run.peek_output(name).readback_request() for name, to in self._targets.items() if not to.backend
        }
        made = {}
        for name, target in self._targets.items():
            if target.value is not None:
                self._check_fit(name, target.value, run.peek_output(name))
        for name, target in self._targets.items():
            if target.backend is not None:
                out = target.value.tensor if target.value is not None else None
                stream = _LEGACY_STREAM if target.is_pointer else None
                made[name] = OrtValue(worker.copy_output(name, out, stream=stream))
            elif target.value is None:
                made[name] = OrtValue(requests[name].result())
            else:
                np.copyto(target.value.numpy(), requests[name].view())
                made[name] = target.value
        self._outputs = made

    def _check_fit(self, name: str, value: OrtValue, output: Tensor) -> None:
        output._content.wait_known("written to memory that was bound for it")
        if value.spec != output.spec:
            message = f"Output {name!r} is {output.spec}, and what is bound for it {value.spec}."
            raise make_error(InvalidArgument, message)

    def _check_input(self, name: str) -> None:
        names = self._session.input_names
        if name not in names:
            raise make_error(BindingError, f"The model has no input {name!r}; it has {', '.join(names)}.")

    def _check_output(self, name: str) -> None:
        names = self._session.output_names
        if name not in names:
            raise make_error(BindingError, f"The model has no output {name!r}; it has {', '.join(names)}.")
        check_bindable(self._session.model.outputs, name)

    def _open(self, device_type: str | OrtDevice, device_id: int) -> Backend | None:
        backend = find_device(device_type, device_id)
        self._check_reach(backend)
        return backend

    def _check_reach(self, backend: Backend | None) -> None:
        if backend is not None and backend.device is not self._session.backend.device:
            raise make_error(
                BindingError,
                f"The session runs on {self._session.backend.device.name} and has no way to memory of"
                f" {backend.device.name}.",
            )

    def _wrap(
        self, name: str, device_type: str | OrtDevice, device_id: int, spec: TensorSpec, address: int
    ) -> tuple[OrtValue, bool]:
        """Return memory at an address as a value, and whether it lies on a device."""
        backend = self._open(device_type, device_id)
        if not isinstance(address, int) or (spec.nbytes and address <= 0):
            raise make_error(ArgumentTypeError, f"{name!r}: expected an address, got {address!r}.")
        if backend is None:
            return OrtValue(view_pointer(address, spec)), False
        return OrtValue(wrap_pointer(backend, address, spec, name)), True


class SessionIOBinding:
    """The compiled module's binding, made over a session or its ``_sess``, with devices in place of device names."""

    def __init__(self, session: BaseSession | IOBinding) -> None:
        self._binding = session if isinstance(session, IOBinding) else IOBinding(session)

    @property
    def binding(self) -> IOBinding:
        """The IOBinding with the inputs and outputs."""
        return self._binding

    def bind_input(self, name: str, source: OrtDevice | Array, *where: Any) -> None:
        """Bind an array, or, given a device, an element type, a shape and an address, the bytes there."""
        if not isinstance(source, OrtDevice):
            self._binding.bind_cpu_input(name, source)
            return
        _check_place(where)
        self._binding.bind_input(name, source.name, source.device_id(), *where)

    def bind_output(self, name: str, device: OrtDevice, *where: Any) -> None:
        """Bind an output to a device, or, given an element type, a shape and an address too, to the bytes there."""
        if where:
            _check_place(where)
        self._binding.bind_output(name, device.name, device.device_id(), *where)

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        """Bind a value; see `IOBinding.bind_ortvalue_input`."""
        self._binding.bind_ortvalue_input(name, value)

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """Bind an output to a value; see `IOBinding.bind_ortvalue_output`."""
        self._binding.bind_ortvalue_output(name, value)

    def get_outputs(self) -> OrtValueVector:
        """Return the outputs in the order they were bound."""
        return OrtValueVector(self._binding.get_outputs())

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return the outputs as arrays; waits for them."""
        return self._binding.copy_outputs_to_cpu()

    def synchronize_inputs(self) -> None:
        """Wait until the bound inputs are ready."""
        self._binding.synchronize_inputs()

    def synchronize_outputs(self) -> None:
        """Wait until the outputs are ready."""
        self._binding.synchronize_outputs()

    def clear_binding_inputs(self) -> None:
        """Release the inputs."""
        self._binding.clear_binding_inputs()

    def clear_binding_outputs(self) -> None:
        """Release the outputs."""
        self._binding.clear_binding_outputs()


def _check_place(where: tuple[Any, ...]) -> None:
    if len(where) != 3:
        raise make_error(ArgumentTypeError, f"Expected an element type, a shape and an address, got {where!r}.")


def _check_value(value: object) -> OrtValue:
    if not isinstance(value, OrtValue):
        raise make_error(ArgumentTypeError, f"Expected an OrtValue, got {type(value).__name__}.")
    return value
