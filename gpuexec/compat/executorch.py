"""ExecuTorch's Python runtime over gpuexec: the same names, calls and error codes.

    from gpuexec.compat.executorch import Runtime

    program = Runtime.get().load_program("model.gxp")
    outputs = program.load_method("forward").execute([x])

Names are those of executorch.runtime 1.0. Programs are gpuexec's; arrays are NumPy's, and outputs the caller's own.
What only the C++ runtime has is beside them in Python's spelling: `Module`, `NamedDataMap`, sizes of a Method, methods
of a Program by number.
Errors are gpuexec's, and such as Python code expects here: KeyError for a method, IndexError for an index, TypeError
for a source. All carry ``code``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, BinaryIO

import numpy as np

import gpuexec.ops  # noqa: F401  (registers the operators)
from gpuexec.devices.backend import BackendLike, BackendType, choose_backend
from gpuexec.errors import DeviceError, ErrorCode, InputError
from gpuexec.execution.results.given import Inputs
from gpuexec.ir.operator import operator_names
from gpuexec.model.editing import named_data
from gpuexec.program import contents
from gpuexec.program import method as methods
from gpuexec.program import module as modules
from gpuexec.program import program as programs
from gpuexec.program.method_meta import MethodMeta, TensorMeta

Array = np.ndarray[Any, Any]


class Verification(Enum):
    """Extent of the checks when a program is loaded."""

    Minimal = "minimal"
    InternalConsistency = "full"


class MethodNotFoundError(InputError, KeyError):
    """The program has no method of that name."""

    __str__ = Exception.__str__


class MetadataIndexError(InputError, IndexError):
    """There is no input, output or buffer of that index."""


class SourceTypeError(InputError, TypeError):
    """A program can't be read from an object of that type."""

    code = ErrorCode.INVALID_TYPE


class BackendRegistry:
    """Backends that can run programs."""

    @property
    def registered_backend_names(self) -> list[str]:
        """Names of all backends, whether or not they work here."""
        return [each.name for each in BackendType if each is not BackendType.AUTO]

    def is_available(self, backend_name: str) -> bool:
        """Return whether a backend works here."""
        if backend_name not in self.registered_backend_names:
            return False
        try:
            choose_backend(BackendType[backend_name])
        except DeviceError:
            return False
        return True


class OperatorRegistry:
    """Operators that programs can use."""

    @property
    def operator_names(self) -> set[str]:
        """Names of all operators, those of other domains with the domain before them."""
        return set(operator_names())


class TensorInfo:
    """Description of an input or output."""

    def __init__(self, meta: TensorMeta) -> None:
        self._meta = meta

    def name(self) -> str:
        """Return its name."""
        return self._meta.name

    def sizes(self) -> tuple[int | None, ...]:
        """Return its extents: upper bounds of free dimensions, None where they are unbounded."""
        return self._meta.sizes

    def dtype(self) -> np.dtype[Any]:
        """Return its element type."""
        return self._meta.dtype

    def is_memory_planned(self) -> bool:
        """Return whether its bytes lie in planned memory."""
        return self._meta.is_memory_planned

    def nbytes(self) -> int | None:
        """Return its largest size in bytes."""
        return self._meta.nbytes

    def __repr__(self) -> str:
        return f"TensorInfo({self._meta.name!r}, sizes={list(self._meta.sizes)}, dtype={self._meta.dtype.name})"


class MethodMetadata:
    """Description of a method."""

    def __init__(self, meta: MethodMeta) -> None:
        self._meta = meta

    def name(self) -> str:
        """Return its name."""
        return self._meta.name

    def num_inputs(self) -> int:
        """Return the number of its inputs."""
        return self._meta.num_inputs

    def num_outputs(self) -> int:
        """Return the number of its outputs."""
        return self._meta.num_outputs

    def num_attributes(self) -> int:
        """Return the number of its tensors that outlive a run."""
        return self._meta.num_attributes

    def num_instructions(self) -> int:
        """Return the number of commands of its first plan."""
        return self._meta.num_instructions

    def input_tensor_meta(self, index: int) -> TensorInfo:
        """Describe an input; IndexError where there is none."""
        _check_index(index, self.num_inputs(), "inputs")
        return TensorInfo(self._meta.input_tensor_meta(index))

    def output_tensor_meta(self, index: int) -> TensorInfo:
        """Describe an output; IndexError where there is none."""
        _check_index(index, self.num_outputs(), "outputs")
        return TensorInfo(self._meta.output_tensor_meta(index))

    def num_memory_planned_buffers(self) -> int:
        """Return the number of memory blocks it needs."""
        return self._meta.num_memory_planned_buffers

    def memory_planned_buffer_size(self, index: int) -> int:
        """Return the size of a memory block in bytes; IndexError where there is none."""
        _check_index(index, self.num_memory_planned_buffers(), "planned buffers")
        return self._meta.memory_planned_buffer_size(index)

    def uses_backend(self, backend_name: str) -> bool:
        """Return whether it runs on a device of that name."""
        return self._meta.uses_backend(backend_name)

    def __repr__(self) -> str:
        return f"MethodMetadata({self._meta.name!r}, {self.num_inputs()} inputs, {self.num_outputs()} outputs)"


class Method:
    """A loaded method."""

    def __init__(self, method: methods.Method) -> None:
        self._method = method

    @property
    def metadata(self) -> MethodMetadata:
        """Description of its inputs and outputs."""
        return MethodMetadata(self._method.method_meta)

    def inputs_size(self) -> int:
        """Return how many inputs it has."""
        return self._method.method_meta.num_inputs

    def outputs_size(self) -> int:
        """Return how many outputs it has."""
        return self._method.method_meta.num_outputs

    def execute(self, inputs: Sequence[Any]) -> Sequence[Array]:
        """Run; return the outputs as arrays of the caller's own.

        Raises:
            InputError: The inputs are not those of the method.
        """
        self._method.execute(list(inputs))
        return [tensor.readback_and_clone() for tensor in self._method.get_outputs()]


class Program:
    """A loaded program."""

    def __init__(self, program: programs.Program) -> None:
        self._program = program
        self._methods: dict[str, Method] = {}
        self._lock = threading.Lock()

    @property
    def method_names(self) -> set[str]:
        """The names of the methods."""
        return set(self._program.method_names)

    def num_methods(self) -> int:
        """Return how many methods there are."""
        return len(self._program.method_names)

    def get_method_name(self, index: int) -> str:
        """Return the name of a method by index; IndexError where there is none."""
        names = self._program.method_names
        if not isinstance(index, int) or not 0 <= index < len(names):
            raise MetadataIndexError(f"The program has {len(names)} methods, got index {index!r}.")
        return names[index]

    def load_method(self, name: str) -> Method:
        """Load a method, the same object each time; KeyError where there is none of that name."""
        self._check(name)
        with self._lock:
            if name not in self._methods:
                self._methods[name] = Method(self._program.load_method(name))
            return self._methods[name]

    def metadata(self, method_name: str) -> MethodMetadata:
        """Describe a method without loading it; KeyError where there is none of that name."""
        self._check(method_name)
        return MethodMetadata(self._program.method_meta(method_name))

    def _check(self, name: str) -> None:
        names = self._program.method_names
        if name not in names:
            raise MethodNotFoundError(f"The program has no method {name!r}; it has {', '.join(names)}.")


class Runtime:
    """The runtime of the process; `get` returns it."""

    _one: Runtime | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.backend_registry, self.operator_registry = BackendRegistry(), OperatorRegistry()

    @classmethod
    def get(cls) -> Runtime:
        """Return the runtime, the same object each time."""
        with cls._lock:
            cls._one = cls._one or Runtime()
            return cls._one

    def load_program(
        self,
        data: str | os.PathLike[str] | bytes | bytearray | BinaryIO,
        *,
        verification: Verification = Verification.InternalConsistency,
        backend: BackendLike = BackendType.AUTO,
    ) -> Program:
        """Load a program; TypeError where ``data`` is neither a path, bytes nor a binary file.

        Args:
            data: Where it is.
            verification: How much of it is checked.
            backend: Where its methods run, which ExecuTorch decides when it compiles.
        """
        if not isinstance(data, str | os.PathLike | bytes | bytearray) and not hasattr(data, "read"):
            raise SourceTypeError(f"Expected a path, bytes or a binary file, got {type(data).__name__}.")
        checked = contents.Verification(verification.value)
        return Program(programs.Program.load(data, checked, backend=backend))


class Module(modules.Module):
    """The Module of ours, with what ExecuTorch's has for the method ``forward`` and the first output."""

    def load_forward(self) -> methods.Method:
        """Load the method ``forward``, if that is not done yet, and return it."""
        return self.load_method()

    def num_methods(self) -> int:
        """Return how many methods there are."""
        return len(self.method_names)

    def get(
        self, name: str = modules.FORWARD, inputs: Inputs = (), *, clone: bool = True, stream: object = None
    ) -> Any:
        """Run a method and return its first output; see `gpuexec.Module.execute`."""
        return self.execute(name, inputs, clone=clone, stream=stream)[0]


class NamedDataMap(named_data.NamedDataMap):
    """The arrays by name of ours, with what ExecuTorch's has beside a mapping."""

    @staticmethod
    def load(*sources: str | os.PathLike[str] | Mapping[str, Any]) -> NamedDataMap:
        """Return what is in one or more sources together; see `gpuexec.NamedDataMap.load`."""
        loaded = named_data.NamedDataMap.load(*sources)
        return NamedDataMap(loaded._rows, loaded._sources)

    def get_num_keys(self) -> int:
        """Return how many arrays there are."""
        return len(self)

    def get_key(self, index: int) -> str:
        """Return a key by its number; IndexError where there are not as many."""
        if not isinstance(index, int) or not 0 <= index < len(self):
            raise MetadataIndexError(f"There are {len(self)} keys, from 0; got {index!r}.")
        return list(self)[index]

    def get_data(self, key: str) -> Array:
        """Return an array, read-only.

        Raises:
            InputError: There is none of that name.
        """
        self.get_tensor_layout(key)  # which refuses it by name
        return self[key]


def _check_index(index: int, count: int, what: str) -> None:
    if not 0 <= index < count:
        raise MetadataIndexError(f"The method has {count} {what}, got index {index}.")
