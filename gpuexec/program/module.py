"""Module: the methods of a program, each loaded at its first use."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.devices.backend import BackendLike, check_backend
from gpuexec.errors import InputError
from gpuexec.execution.profiling.profiler import Profiler, check_profiler
from gpuexec.execution.results.given import ArrayLike, Input, Inputs
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.lists import split_inputs
from gpuexec.ir.precision import Precision
from gpuexec.model.outputs import Outputs
from gpuexec.program.contents import Bound, Verification
from gpuexec.program.method import Key, Method
from gpuexec.program.method_meta import MethodMeta
from gpuexec.program.program import Program
from gpuexec.system.pickling import not_picklable

Array = np.ndarray[Any, Any]
FORWARD = "forward"


@not_picklable("Send what it was made of, a path or bytes, and make a Module of that there.")
class Module:
    """Runs methods of a program by name. Nothing is read, planned or compiled before it is needed.

    Results are `Outputs`, a tuple that also knows names: of NumPy arrays of the caller's own, or with ``clone=False``
    of Tensors, which are good until the method runs again. One caller at a time for each method; several Modules may
    share one Program.

    Args:
        source: A Program, or what `Program.load` takes; a path that ends in ``.onnx`` is a model, its method
            ``forward``.
        backend: Where it runs; AUTO takes the GPU when one works.
        verification: What is checked of a program when it is read.
        shapes: Of the inputs of a model, as for `Program.build`.
        share_arenas: All methods use the same memory for temporaries and outputs: a run of one makes the outputs of
            the others stale.
        max_bytes: The most each method may hold on its device; see `Program.load_method`.
        profiler: Records the runs of all methods but those loaded with another.
        precision: What products and convolutions of a model are computed in, as for `Worker`; a program was made in
            one, and is refused where it is another.
        keep: Names of nodes that stay in float, or patterns of them.

    Example:
        >>> gx.Program.build({"forward": model}, backend="cpu").save("digits.gxp")
        >>> with gx.Module("digits.gxp", backend="cpu") as module:
        ...     logits, probabilities = module.forward(x)
        >>> logits.shape
        (8, 10)
    """

    def __init__(
        self,
        source: object,
        *,
        backend: BackendLike | None = None,
        verification: Verification = Verification.FULL,
        shapes: Mapping[str, Sequence[Bound | None]] | None = None,
        share_arenas: bool = False,
        max_bytes: int | None = None,
        profiler: Profiler | None = None,
        precision: str | None = None,
        keep: Collection[str] = (),
    ) -> None:
        check_profiler(profiler)
        self._precision = None if precision is None else Precision.of(precision, keep)
        if precision is None and keep:
            raise InputError("keep goes with a precision: precision='fp16', say.")
        backend = None if backend is None else check_backend(backend)
        self._source, self._verification, self._shapes = source, verification, shapes
        self._backend, self._share_arenas, self._max_bytes = backend, share_arenas, max_bytes
        self._profiler = profiler
        self._program = source if isinstance(source, Program) else None
        if self._program is not None:
            self._check_precision(self._program)
        self._methods: dict[str, Method] = {}
        self._lock = threading.RLock()

    def load(self) -> Program:
        """Read the program, if that is not done yet.

        Raises:
            ModelError: It is no program, or damaged.
        """
        with self._lock:
            if self._program is None:
                self._program = self._read()
            return self._program

    def is_loaded(self) -> bool:
        """Return whether the program is read."""
        return self._program is not None

    def load_method(self, name: str = FORWARD, *, profiler: Profiler | None = None) -> Method:
        """Load a method, if that is not done yet, and return it.

        Args:
            name: Of the method.
            profiler: Records its runs in place of the Module's; one that is loaded already keeps what it has.

        Raises:
            InputError: There is no such method.
        """
        with self._lock:
            if name not in self._methods:
                self._methods[name] = self.load().load_method(
                    name,
                    backend=self._backend,
                    share_arenas=self._share_arenas,
                    max_bytes=self._max_bytes,
                    profiler=self._profiler if profiler is None else profiler,
                )
            return self._methods[name]

    def is_method_loaded(self, name: str = FORWARD) -> bool:
        """Return whether a method is loaded."""
        return name in self._methods

    def unload_method(self, name: str = FORWARD) -> bool:
        """Close a method; False if it was not loaded. Its inputs are no longer set when it is loaded again."""
        with self._lock:
            method = self._methods.pop(name, None)
        if method is None:
            return False
        method.close()
        return True

    @property
    def method_names(self) -> tuple[str, ...]:
        """The names of the methods."""
        return self.load().method_names

    def method_meta(self, name: str = FORWARD) -> MethodMeta:
        """Describe a method; it need not be loaded, and is not.

        Raises:
            InputError: There is no such method.
        """
        return self.load().method_meta(name, backend=self._backend)

    def forward(self, *inputs: Input, clone: bool = True, stream: object = None) -> Outputs[Any]:
        """Run the method ``forward`` and block for its outputs; see `execute`.

        Args:
            *inputs: One input each; or one mapping gives all by name.
            clone: As for `execute`.
            stream: As for `execute`.
        """
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else dict(enumerate(inputs))
        return self.execute(FORWARD, given, clone=clone, stream=stream)

    def execute(self, name: str, inputs: Inputs = (), *, clone: bool = True, stream: object = None) -> Outputs[Any]:
        """Run a method and block for all its outputs, by position and by name.

        Args:
            name: Of the method, which is loaded if need be.
            inputs: By position, fewer than there are if the others were set before; or a mapping, or one array. Lists
                are taken as by `Worker.run`.
            clone: False returns Tensors on the device in place of NumPy arrays.
            stream: A stream of yours in whose order the run is; see `Method.execute`.
        """
        method = self.load_method(name)
        self._set(method, inputs)
        method.execute(stream=stream)
        return _read_all(method.get_outputs(), clone=clone)

    def set_input(self, index: Key, value: Input, method: str = FORWARD) -> None:
        """Set an input of a method, which is loaded if need be; see `Method.set_input`."""
        self.load_method(method).set_input(index, value)

    def set_inputs(self, inputs: Inputs, method: str = FORWARD) -> None:
        """Set all inputs of a method, or none; see `Method.set_inputs`."""
        self.load_method(method).set_inputs(inputs)

    def set_output(self, index: Key, array: ArrayLike | None, method: str = FORWARD) -> None:
        """Write an output to memory of the user's; see `Method.set_output`."""
        self.load_method(method).set_output(index, array)

    def get_output(self, index: Key = 0, method: str = FORWARD, *, clone: bool = True) -> Any:
        """Block for an output of a method's last run; with ``clone=False`` return the Tensor."""
        tensor = self.load_method(method).get_output(index)
        return tensor.readback_and_clone() if clone else tensor

    def get_outputs(self, method: str = FORWARD, *, clone: bool = True) -> Outputs[Any]:
        """Block for the outputs of a method's last run; with ``clone=False`` return the Tensors."""
        return _read_all(self.load_method(method).get_outputs(), clone=clone)

    def close(self) -> None:
        """Wait for all methods and close them; they are loaded anew when they are used again."""
        for name in list(self._methods):
            self.unload_method(name)

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        loaded = ", ".join(self._methods) or "no method"
        return f"Module({loaded} loaded)"

    def _read(self) -> Program:
        source = self._source
        if isinstance(source, str | os.PathLike) and os.fspath(source).endswith(".onnx"):
            shapes = None if self._shapes is None else {FORWARD: self._shapes}
            name, keep = (None, ()) if self._precision is None else (self._precision.name, self._precision.keep)
            return Program.build({FORWARD: os.fspath(source)}, shapes=shapes, precision=name, keep=keep)
        program = Program.load(source, self._verification)
        self._check_precision(program)
        return program

    def _check_precision(self, program: Program) -> None:
        """Check that a program was made in the precision asked for.

        Raises:
            InputError: It was made in another.
        """
        for name, method in program.contents.methods.items():
            own = replace(method.model.precision, fuse_rounding=False)
            if self._precision is not None and own != self._precision:
                raise InputError(
                    f"Method {name!r} was made in precision {own}, not in {self._precision}: make the program with"
                    f" Program.build(..., precision={self._precision.name!r})."
                )

    @staticmethod
    def _set(method: Method, inputs: Inputs) -> None:
        if isinstance(inputs, Mapping):
            method.set_inputs(inputs)
            return
        items = split_inputs(method._model.inputs, inputs)
        if items:
            method._set(dict(enumerate(items)), copy=True)


def _read_all(tensors: Outputs[Tensor], *, clone: bool) -> Outputs[Any]:
    if not clone:
        return tensors
    requests = {name: tensor.readback_request() for name, tensor in tensors.items()}
    return Outputs({name: request.result() for name, request in requests.items()})
