"""OrtValue: values on the host or on a device, over NumPy arrays and Tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from gpuexec.compat.onnxruntime.described import find_dtype, name_type
from gpuexec.compat.onnxruntime.devices import OrtDevice, find_device, name_device
from gpuexec.compat.onnxruntime.errors import ArgumentTypeError, BindingError, NotImplemented, make_error, translating
from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend, BackendType, open_backend
from gpuexec.devices.device import Region
from gpuexec.execution.resources.memory import BorrowedMemory
from gpuexec.execution.results.arenas import wrap_region
from gpuexec.execution.results.exchange import import_dlpack
from gpuexec.execution.results.tensor import Tensor
from gpuexec.ir.spec import STRING, TensorSpec, dtype_row, is_host_object
from gpuexec.model.ports import ModelPort

Array = np.ndarray[Any, Any]


def check_bindable(ports: Sequence[ModelPort], name: str, *, takes_strings: bool = False) -> None:
    """Check that an output of this name can be bound: a tensor of numbers or of strings.

    Raises:
        BindingError: It is strings or a container.
    """
    spec = next(port.spec for port in ports if port.name == name)
    if is_host_object(spec.dtype) and not (takes_strings and spec.dtype == STRING):
        raise make_error(BindingError, f"Output {name!r} is {spec}; values hold tensors of numbers alone: use run().")


class OrtValue:
    """A tensor: on the CPU an array, shared with the caller, else a Tensor on its device.

    Made by its static methods and by sessions, or over another value. ``None`` is a value that is not there (yet).
    Wherever a method takes the name of a device and its ordinal, it takes an OrtDevice too.
    ``backend``, ``tensor``, ``spec``, ``copy_to`` and ``wait`` are for sessions and bindings.
    """

    def __init__(self, data: Array | Tensor | OrtValue | None) -> None:
        self._data: Array | Tensor | None = data._data if isinstance(data, OrtValue) else data

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: Array, /, device_type: str | OrtDevice = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Return an array as a value: on the CPU the same bytes where they are dense, elsewhere a copy.

        Raises:
            BindingError: It is no array, its type is not supported, or there is no such device.
        """
        if not isinstance(numpy_obj, np.ndarray):
            raise make_error(BindingError, f"Expected a NumPy array, got {type(numpy_obj).__name__}.")
        find_dtype(numpy_obj.dtype)
        array = numpy_obj if numpy_obj.flags.c_contiguous else np.ascontiguousarray(numpy_obj)
        backend = find_device(device_type, device_id)
        if backend is None:
            return OrtValue(array)
        value = OrtValue(_allocate(backend, TensorSpec(array.shape, array.dtype)))
        value.update_inplace(array)
        return value

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: Array, /, onnx_element_type: int) -> OrtValue:
        """Return an array on the CPU whose bits are elements of an ONNX type, such as bfloat16 in uint16.

        Raises:
            BindingError: The type is not supported, or its elements are of another size.
        """
        dtype = find_dtype(onnx_element_type)
        if data.dtype.itemsize != dtype.itemsize:
            raise make_error(BindingError, f"Elements of {dtype.name} have {dtype.itemsize} bytes, got {data.dtype}.")
        return OrtValue(np.ascontiguousarray(data).view(dtype))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any,
        device_type: str | OrtDevice = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Return a value of a shape whose content is undefined.

        Args:
            shape: Its extents.
            element_type: A NumPy type or an ONNX code.
            device_type: Where it lies.
            device_id: Which of these devices.
            vendor_id: Follows from the device.

        Raises:
            BindingError: The type is not supported, or there is no such device.
        """
        spec = TensorSpec(tuple(int(extent) for extent in shape), find_dtype(element_type))
        backend = find_device(device_type, device_id)
        return OrtValue(np.empty(spec.shape, spec.dtype) if backend is None else _allocate(backend, spec))

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False, /) -> OrtValue:
        """Import an array of another package by DLPack, without a copy: on the CPU, a GPU, or in a Tensor.

        Args:
            data: The array, or a capsule of it.
            is_bool_tensor: Whether bytes are booleans, as older packages gave them away.

        Raises:
            BindingError: It can't be read.
        """
        if is_bool_tensor:
            found = OrtValue.from_dlpack(data).numpy()
            return OrtValue(found.view(np.bool_) if found.dtype == np.uint8 else found)
        with translating(BindingError):
            if type(data).__name__ == "PyCapsule":
                data = _Capsule(data)
            if isinstance(data, Tensor) and data.backend_type is not BackendType.CPU:
                # The Worker's output must outlive its next run.
                data._content.export()
                return OrtValue(data)
            if not hasattr(data, "__dlpack_device__"):
                got = f"A {type(data).__name__} has no __dlpack__ and __dlpack_device__, and is no capsule."
                raise make_error(ArgumentTypeError, got)
            kind, ordinal = map(int, data.__dlpack_device__())
            is_host = kind in (dlpack.CPU, dlpack.CUDA_HOST)
            backend = open_backend(BackendType.CPU if is_host else BackendType.GPU_COMPUTE, 0 if is_host else ordinal)
            with backend.transfers.lock:
                stream = backend.transfers.open()
                taken = import_dlpack(data, backend, stream)
                if isinstance(taken, np.ndarray):
                    return OrtValue(taken)
                spec, region, fence = taken
                return OrtValue(wrap_region(backend, region, spec, "", stream, fence))

    def has_value(self) -> bool:
        """Return whether there is a value."""
        return self._data is not None

    def is_tensor(self) -> bool:
        """Return True: every value is a tensor."""
        return self.has_value()

    def is_sparse_tensor(self) -> bool:
        """Return False: there are none."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Return False: there are none."""
        return False

    def shape(self) -> list[int]:
        """Return its extents."""
        return list(self._require().shape)

    def data_type(self) -> str:
        """Return its type, ``"tensor(float)"``."""
        return name_type(self._require().dtype)

    def element_type(self) -> int:
        """Return ONNX's code of its elements' type."""
        return dtype_row(self._require().dtype).code

    def tensor_size_in_bytes(self) -> int:
        """Return the size of its content in bytes."""
        return self._require().nbytes

    def device_name(self) -> str:
        """Return the name of its device: ``"cpu"``, ``"cuda"`` or ``"simulator"``."""
        return "cpu" if self.backend is None else name_device(self.backend)

    def data_ptr(self) -> int:
        """Return the address of its bytes, valid as long as the value exists."""
        data = self._require()
        if isinstance(data, Tensor):
            return data._content.region.address
        return data.ctypes.data

    def numpy(self) -> Array:
        """Return it as an array: on the CPU the same bytes, from other devices a copy that is waited for."""
        data = self._require()
        with translating(BindingError):
            return data.readback_and_clone() if isinstance(data, Tensor) else data

    def update_inplace(self, data: Array | OrtValue) -> None:
        """Overwrite its content by that of an array or value of the same dtype and shape.

        Raises:
            BindingError: It is something else, or the bytes of this value are read-only.
        """
        mine, array = self._require(), np.asarray(data.numpy() if isinstance(data, OrtValue) else data)
        got = TensorSpec(array.shape, array.dtype)
        if got != self.spec:
            raise make_error(BindingError, f"The value is {self.spec}, got {got}.")
        with translating(BindingError):
            if isinstance(mine, Tensor):
                mine.upload(array)
            elif not mine.flags.writeable:
                raise make_error(BindingError, "The value is over an array that is read-only.")
            else:
                np.copyto(mine, array)

    @property
    def backend(self) -> Backend | None:
        """Its backend; None: the host."""
        return self._data._content.backend if isinstance(self._data, Tensor) else None

    @property
    def tensor(self) -> Tensor | None:
        """Its Tensor where it is not on the host."""
        return self._data if isinstance(self._data, Tensor) else None

    @property
    def spec(self) -> TensorSpec:
        """Its shape and dtype."""
        data = self._require()
        return TensorSpec(tuple(data.shape), data.dtype)

    def copy_to(self, backend: Backend) -> OrtValue:
        """Return a copy on another device."""
        copied = OrtValue(_allocate(backend, self.spec))
        copied.update_inplace(self.numpy())
        return copied

    def wait(self) -> None:
        """Wait until its content is ready."""
        if isinstance(self._data, Tensor):
            self._data.wait()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype, copy=copy)

    def as_sparse_tensor(self) -> NoReturn:
        """Refuse: there are no sparse tensors."""
        raise make_error(NotImplemented, "Sparse tensors are not supported.")

    @staticmethod
    def ort_value_from_sparse_tensor(sparse_tensor: object) -> NoReturn:
        """Refuse: there are no sparse tensors."""
        raise make_error(NotImplemented, f"Sparse tensors are not supported, got {sparse_tensor!r}.")

    def to_dlpack(self) -> object:
        """Return it as a DLPack capsule."""
        return self.__dlpack__()

    @property
    def _ortvalue(self) -> OrtValue:
        """The value of the compiled module, which is this one."""
        return self

    def _get_c_value(self) -> OrtValue:
        return self

    def __dlpack__(self, **options: Any) -> object:
        return self._require().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, ordinal = self._require().__dlpack_device__()
        return int(kind), int(ordinal)

    def __repr__(self) -> str:
        if self._data is None:
            return "OrtValue(None)"
        return f"OrtValue({self.data_type()}, {self.shape()}, {self.device_name()!r})"

    def _require(self) -> Array | Tensor:
        if self._data is None:
            raise make_error(BindingError, "The value is not there: nothing was run that makes it.")
        return self._data


class OrtValueVector(list[OrtValue]):
    """A list of values, with the calls of C++'s vector."""

    def push_back(self, value: OrtValue) -> None:
        """Append a value."""
        self.append(value)

    def push_back_batch(self, values: Iterable[OrtValue]) -> None:
        """Append several values."""
        self.extend(values)

    def reserve(self, count: int) -> None:
        """Do nothing: a list grows on demand."""

    def shrink_to_fit(self) -> None:
        """Do nothing: a list has no spare capacity to give up."""

    def element_type_at(self, index: int) -> int:
        """Return ONNX's code of a value's element type."""
        return self[index].element_type()

    def dlpack_at(self, index: int) -> object:
        """Return a value as a DLPack capsule."""
        return self[index].to_dlpack()

    def to_dlpacks(self, to_tensor: Any = None) -> list[Any]:
        """Return all values as DLPack capsules, or as the results of a function on each."""
        capsules = [value.to_dlpack() for value in self]
        return capsules if to_tensor is None else [to_tensor(capsule) for capsule in capsules]


class _Capsule:
    """A DLPack capsule as an importable array, with its device."""

    def __init__(self, capsule: object) -> None:
        self._capsule, self._device = capsule, dlpack.peek(capsule)[1]

    def __dlpack__(self, **options: Any) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def is_dlpack_uint8_tensor(capsule: object) -> bool:
    """Return whether a DLPack capsule holds bytes, as those of booleans were before DLPack had a type for them."""
    with translating(BindingError):
        return dlpack.peek(capsule)[0] == np.uint8


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: None = None) -> None:
    """Copy values into others of the same dtypes and shapes, on any devices.

    Raises:
        BindingError: They don't match.
    """
    if len(src) != len(dst):
        raise make_error(BindingError, f"Got {len(src)} values to copy into {len(dst)}.")
    for value, into in zip(src, dst, strict=True):
        into.update_inplace(value)


def unwrap(item: object) -> object:
    """Convert an input to what a Worker takes: the content of an OrtValue, anything else as it is."""
    return item._require() if isinstance(item, OrtValue) else item


def view_pointer(address: int, spec: TensorSpec) -> Array:
    """Return host bytes at an address as an array; the caller keeps them alive."""
    if not spec.nbytes:
        return np.empty(spec.shape, spec.dtype)
    raw = np.frombuffer(memoryview((ctypes.c_uint8 * spec.nbytes).from_address(address)), spec.dtype)
    return raw.reshape(spec.shape)


def wrap_pointer(backend: Backend, address: int, spec: TensorSpec, name: str) -> Tensor:
    """Return device bytes at an address as a tensor; the caller keeps them alive and orders its own work."""
    region = Region(BorrowedMemory(address, spec.nbytes, None), 0, spec.nbytes)
    with backend.transfers.lock:
        stream = backend.transfers.open()
        return wrap_region(backend, region, spec, name, stream)


def _allocate(backend: Backend, spec: TensorSpec) -> Tensor:
    with translating(BindingError):
        region = Region(backend.device.allocate(max(spec.nbytes, 1)), 0, spec.nbytes)
        with backend.transfers.lock:
            stream = backend.transfers.open()
            return wrap_region(backend, region, spec, "", stream)
