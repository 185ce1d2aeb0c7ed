"""Exceptions of the package, in one tree.

    GpuexecError
    ├── ModelError               the file or graph is wrong
    │   └── UnsupportedError     operators or forms we do not run (all of a model, together)
    ├── InputError               a missing, misspelt or ill-typed input, name, index or option
    │   └── NeedsHostValue       planning wants the content of a tensor the host does not have
    ├── PlanError                the planner's own promises do not hold; a plan does not pass verify
    ├── StateError               the object can't do this now: closed, stale, pending, in use
    │   ├── ClosedError
    │   ├── StaleError           a newer run, or a newer iterator, has taken over
    │   ├── PendingError         the data is not on the host yet; the message names the call to make
    │   ├── CancelledError
    │   └── ImplicitSyncError    the host would wait for the device, and may not unless asked
    ├── AccessError              a program's bytes can't be read
    │   └── NotFoundError        there is no such file
    ├── MismatchError            a layer gave something else than on the backend it is compared with
    ├── NonFiniteError           a layer made a NaN or infinity of inputs that had none, and was watched
    ├── KernelError              a kernel does not compile, load, or fit the device
    ├── OrderError               nothing orders two that use the same bytes: a wait, an edge or a synchronize is missing
    └── DeviceError              the device refuses or fails
        ├── DeviceNotFoundError  no such device here; the message says what to install
        ├── OutOfMemoryError
        └── DeviceLostError      a fault ended the context; every object on it is gone
            └── CheckError       check mode of the simulator found mistakes in a kernel; `findings` has them as data

Errors are picklable: they hold text and plain values only. ``code`` carries ExecuTorch's numbering so that callers of
either system can switch on it.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """ExecuTorch's error values (runtime/core/error.h, v1.0)."""

    OK = 0x00
    INTERNAL = 0x01
    INVALID_STATE = 0x02
    END_OF_METHOD = 0x03
    ALREADY_LOADED = 0x04
    NOT_SUPPORTED = 0x10
    NOT_IMPLEMENTED = 0x11
    INVALID_ARGUMENT = 0x12
    INVALID_TYPE = 0x13
    OPERATOR_MISSING = 0x14
    REGISTRATION_EXCEEDING_MAX_KERNELS = 0x15
    REGISTRATION_ALREADY_REGISTERED = 0x16
    NOT_FOUND = 0x20
    MEMORY_ALLOCATION_FAILED = 0x21
    ACCESS_FAILED = 0x22
    INVALID_PROGRAM = 0x23
    INVALID_EXTERNAL_DATA = 0x24
    OUT_OF_RESOURCES = 0x25
    DELEGATE_INVALID_COMPATIBILITY = 0x30
    DELEGATE_MEMORY_ALLOCATION_FAILED = 0x31
    DELEGATE_INVALID_HANDLE = 0x32


class NodeName(str):
    """Name of a node, with the line of the exporter's source it stems from; equal to the same text without.

    ``source`` is as Python shows a frame: ``File "net.py", line 12, in forward``, and the code on a line of its own.
    Plans and recordings keep names, so any error about a node can quote its line.
    """

    __slots__ = ("source",)
    source: str

    def __new__(cls, text: str, source: str = "") -> NodeName:
        """Make a name from a text."""
        name = super().__new__(cls, text)
        name.source = source
        return name


def name_after(text: str, other: str) -> str:
    """Return a name for a node derived from another, with the same source line."""
    source = getattr(other, "source", "")
    return NodeName(text, source) if source else text


class GpuexecError(Exception):
    """Base of all errors of this package.

    Args:
        message: What is wrong, where, expected, got, what to do; one or two sentences.
        node: Name of the node concerned, if any. Where that is a `NodeName`, the text ends with the line of source.
        value: Name of the value (tensor) concerned, if any.

    Example:
        >>> try:
        ...     gx.load("no-such.onnx")
        ... except gx.GpuexecError as error:
        ...     print(error.code.name, str(error))
        INVALID_PROGRAM no-such.onnx: the model can't be read: No such file or directory.
    """

    code: ErrorCode = ErrorCode.INTERNAL

    def __init__(self, message: str, *, node: str | None = None, value: str | None = None) -> None:
        super().__init__(message)
        self.node = node
        self.value = value

    @property
    def message(self) -> str:
        """The text without the line of source."""
        return super().__str__()

    def __str__(self) -> str:
        source = getattr(self.node, "source", "")
        return f"{self.message}\n  {source}" if source else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def locate(error: GpuexecError, where: object, node: str | None = None) -> GpuexecError:
    """Return the error itself with the place put before its message."""
    error.args = (f"{where}: {error.message}", *error.args[1:])
    error.node = error.node or node
    return error


def abridge(text: str, limit: int = 1000) -> str:
    """Return the two ends of a text longer than ``limit`` characters: names from a file are as long as it has them."""
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-(limit // 2) :]}"


def as_failure(error: BaseException, what: str) -> BaseException:
    """Return the error for waiters of failed work: the error itself, or a CancelledError in place of an interrupt.

    Args:
        error: The exception that ended the work.
        what: Name of the work, for the message.
    """
    if isinstance(error, Exception):
        return error
    failure = CancelledError(f"{what} was cancelled: its caller was interrupted ({type(error).__name__}).")
    failure.__cause__ = error
    return failure


def _rebuild(kind: type[GpuexecError], args: tuple[object, ...], state: dict[str, object]) -> GpuexecError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ModelError(GpuexecError):
    """The model file or graph is wrong.

    Example:
        >>> gx.load(b"")
        Traceback (most recent call last):
        gpuexec.errors.ModelError: bytes: expected an ONNX model, got 0 bytes.
    """

    code = ErrorCode.INVALID_PROGRAM


class UnsupportedError(ModelError):
    """Operators, attributes or types of the model that this package does not run; lists all of them.

    Example:
        >>> import onnx
        >>> unknown = onnx.load("digits.onnx")
        >>> unknown.graph.node[0].op_type = "Malt"
        >>> gx.load(unknown)
        Traceback (most recent call last):
        gpuexec.errors.UnsupportedError: ...
    """

    code = ErrorCode.OPERATOR_MISSING


class InputError(GpuexecError, ValueError):
    """An argument of the caller is wrong: name, dtype, shape, index or option.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker:
        ...     worker.run({"picture": x})
        Traceback (most recent call last):
        gpuexec.errors.InputError: ...
    """

    code = ErrorCode.INVALID_ARGUMENT


class NeedsHostValue(InputError):
    """Planning needs the content of a tensor that the host does not have.

    ``index`` is the operator's input position, ``role`` what it is for (``"axes"``).
    """

    def __init__(
        self, message: str, *, index: int, role: str, node: str | None = None, value: str | None = None
    ) -> None:
        super().__init__(message, node=node, value=value)
        self.index = index
        self.role = role


class PlanError(GpuexecError):
    """A plan breaks one of the planner's promises.

    Example:
        >>> issubclass(gx.PlanError, gx.GpuexecError)
        True
    """


class StateError(GpuexecError, RuntimeError):
    """The object can't do this in its present state.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker:
        ...     worker.schedule(x).inspection
        Traceback (most recent call last):
        gpuexec.errors.StateError: ...
    """

    code = ErrorCode.INVALID_STATE


class ClosedError(StateError):
    """The object was closed.

    Example:
        >>> worker = gx.Worker(model, backend="cpu")
        >>> worker.close()
        >>> worker.run(x)
        Traceback (most recent call last):
        gpuexec.errors.ClosedError: The Worker is closed.
    """


class StaleError(StateError):
    """A newer run or iterator has taken over; this handle is no longer valid.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker:
        ...     logits = worker.schedule(x).peek_output()
        ...     _ = worker.schedule(x)
        ...     logits.readback_and_clone()
        Traceback (most recent call last):
        gpuexec.errors.StaleError: ...
    """


class PendingError(StateError):
    """The data is not on the host (yet); the message names the call to make.

    Example:
        >>> issubclass(gx.PendingError, gx.GpuexecError)
        True
    """


class CancelledError(StateError):
    """The run or request was cancelled.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker:
        ...     steps = worker.schedule_iterable(x)
        ...     _ = next(steps), worker.cancel()
        ...     worker.peek_output().readback_and_clone()
        Traceback (most recent call last):
        gpuexec.errors.CancelledError: ...
    """


class ImplicitSyncError(StateError):
    """The host would have to wait for the device, which `strict` or `no_implicit_sync` refuses.

    Example:
        >>> issubclass(gx.ImplicitSyncError, gx.GpuexecError)  # of no_implicit_sync and Worker(strict=True)
        True
    """


class AccessError(GpuexecError):
    """A loader can't give the bytes asked of it: closed, cut short, or refused by the system.

    Example:
        >>> gx.FileDataLoader("/")
        Traceback (most recent call last):
        gpuexec.errors.AccessError: ...
    """

    code = ErrorCode.ACCESS_FAILED


class NotFoundError(AccessError):
    """There is no such file.

    Example:
        >>> gx.Program.load("no-such.gxp")
        Traceback (most recent call last):
        gpuexec.errors.NotFoundError: ...
    """

    code = ErrorCode.NOT_FOUND


class MismatchError(GpuexecError, RuntimeError):
    """A node's outputs differ from those of the same node on the backend it is compared with, for the same inputs.

    Args:
        operator: Qualified name of the node's operator.
        index: Where in the output the largest error is; None where dtype or shape differ.
        expected: The element there on the backend compared with (or its dtype and shape).
        got: The element there.
        error: How far the two are apart; infinite where one is no number.

    Example:
        >>> with gx.Worker(model, backend="cpu", compare_with="cpu") as worker:  # raises it where a layer differs
        ...     _ = worker.run(x)
        ...     worker.report().compared > 0
        True
    """

    def __init__(
        self,
        message: str,
        *,
        operator: str = "",
        index: tuple[int, ...] | None = None,
        expected: float | int | bool | str = "",
        got: float | int | bool | str = "",
        error: float = float("inf"),
        node: str | None = None,
        value: str | None = None,
    ) -> None:
        super().__init__(message, node=node, value=value)
        self.operator, self.index, self.error = operator, index, error
        self.expected, self.got = expected, got


class NonFiniteError(GpuexecError, ArithmeticError):
    """A node made a NaN or infinity from finite inputs, in a run that is checked for them.

    Args:
        operator: Qualified name of the node's operator; empty where an input of the model had NaN.
        kind: ``"NaN"`` or ``"Inf"``.
        count: How many the output has.
        index: Where the first of them lies.

    Example:
        >>> with gx.Worker(model, backend="cpu", watch="raise") as worker:
        ...     worker.run(np.full((1, 1, 8, 8), np.nan, np.float32))
        Traceback (most recent call last):
        gpuexec.errors.NonFiniteError: ...
    """

    def __init__(
        self,
        message: str,
        *,
        operator: str = "",
        kind: str = "",
        count: int = 0,
        index: tuple[int, ...] | None = None,
        node: str | None = None,
        value: str | None = None,
    ) -> None:
        super().__init__(message, node=node, value=value)
        self.operator, self.kind, self.count, self.index = operator, kind, count, index


class KernelError(GpuexecError, RuntimeError):
    """A kernel does not compile, load or fit the device, or its arguments do not fit its signature.

    Example:
        >>> issubclass(gx.KernelError, gx.GpuexecError)
        True
    """


class OrderError(GpuexecError, RuntimeError):
    """Two operations, or one and the host, use the same bytes, one of them writing, and nothing orders the two.

    Example:
        >>> issubclass(gx.OrderError, gx.GpuexecError)  # the simulator's, where a wait between two accesses is missing
        True
    """

    code = ErrorCode.INVALID_STATE


class DeviceError(GpuexecError, RuntimeError):
    """The device refuses or fails.

    Example:
        >>> issubclass(gx.OutOfMemoryError, gx.DeviceError), issubclass(gx.DeviceLostError, gx.DeviceError)
        (True, True)
    """

    code = ErrorCode.ACCESS_FAILED


class DeviceNotFoundError(DeviceError):
    """The device asked for can't be used here; the message says what to install.

    Example:
        >>> gx.Worker(model, backend="cpu", device=7)
        Traceback (most recent call last):
        gpuexec.errors.DeviceNotFoundError: ...
    """

    code = ErrorCode.NOT_FOUND


class OutOfMemoryError(DeviceError, MemoryError):
    """An allocation was refused; the plan's sizes are in the message.

    Example:
        >>> with gx.Worker(model, backend="cpu", max_bytes=1000) as worker:
        ...     worker.run(x)
        Traceback (most recent call last):
        gpuexec.errors.OutOfMemoryError: ...
    """

    code = ErrorCode.MEMORY_ALLOCATION_FAILED


class DeviceLostError(DeviceError):
    """A device fault ended the context; nothing on this device can be used any more.

    Example:
        >>> try:
        ...     with gx.Worker(model, backend="cpu") as worker:
        ...         logits, _ = worker.run(x)
        ... except gx.DeviceLostError:
        ...     raise SystemExit("The GPU has to be opened anew, in another process.")
    """


class CheckError(DeviceLostError):
    """Check mode of the simulator found mistakes in a kernel, which on a GPU may be a fault, or a wrong result.

    ``findings`` has them as data (`gpuexec.devices.simulator.findings.Finding`); the message lists them.
    """

    def __init__(
        self, message: str, findings: tuple[object, ...] = (), *, node: str | None = None, value: str | None = None
    ) -> None:
        super().__init__(message, node=node, value=value)
        self.findings = findings
