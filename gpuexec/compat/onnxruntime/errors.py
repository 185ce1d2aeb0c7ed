"""Errors by ONNX Runtime's names, each also an error of `gpuexec.errors`.

ONNX Runtime raises some of these as the built-in RuntimeError, ValueError or TypeError; where it does, ours are that as
well. Messages begin with the status, as there: ``[gpuexec] : 2 : INVALID_ARGUMENT : ...``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from gpuexec.errors import (
    DeviceError,
    GpuexecError,
    InputError,
    ModelError,
    NotFoundError,
    UnsupportedError,
)


class Status:
    """Base of the status errors: ONNX Runtime's number and name of the status."""

    number: ClassVar[int]
    status: ClassVar[str]


class Fail(GpuexecError, Status):
    """An error of no other kind."""

    number, status = 1, "FAIL"


class InvalidArgument(InputError, Status):
    """A name, dtype, shape or option of the caller's is wrong."""

    number, status = 2, "INVALID_ARGUMENT"


class NoSuchFile(NotFoundError, Status):
    """There is no such file."""

    number, status = 3, "NO_SUCHFILE"


class NoModel(ModelError, Status):
    """There is no model."""

    number, status = 4, "NO_MODEL"


class EngineError(DeviceError, Status):
    """The execution engine failed."""

    number, status = 5, "ENGINE_ERROR"


class RuntimeException(DeviceError, Status):
    """The device refuses or fails."""

    number, status = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(ModelError, Status):
    """The model's bytes are no protobuf."""

    number, status = 7, "INVALID_PROTOBUF"


class ModelLoaded(ModelError, Status):
    """The model is loaded already."""

    number, status = 8, "MODEL_LOADED"


class NotImplemented(UnsupportedError, Status):
    """The model, or a call, needs something that is not supported."""

    number, status = 9, "NOT_IMPLEMENTED"


class InvalidGraph(ModelError, Status):
    """The model contradicts itself."""

    number, status = 10, "INVALID_GRAPH"


class EPFail(DeviceError, Status):
    """A provider can't be used."""

    number, status = 11, "EP_FAIL"


class ModelLoadCanceled(GpuexecError, Status):
    """Loading was cancelled."""

    number, status = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(ModelError, Status):
    """The model has to be compiled first."""

    number, status = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(NotFoundError, Status):
    """An entry that is asked for does not exist."""

    number, status = 14, "NOT_FOUND"


class ArgumentTypeError(InvalidArgument, TypeError):
    """An argument has the wrong type."""


class BindingError(InvalidArgument, RuntimeError):
    """A value or binding does not fit, which ONNX Runtime raises as a RuntimeError."""


# ONNX Runtime's error by gpuexec's; the first match counts.
_KINDS: tuple[tuple[type[GpuexecError], type[GpuexecError]], ...] = (
    (NotFoundError, NoSuchFile),
    (UnsupportedError, NotImplemented),
    (ModelError, InvalidGraph),
    (InputError, InvalidArgument),
    (DeviceError, RuntimeException),
    (GpuexecError, Fail),
)


def make_error(kind: type[GpuexecError], message: str, source: GpuexecError | None = None) -> GpuexecError:
    """Make an error of one of these kinds, with its status before the message.

    Args:
        kind: A class of this module.
        message: The error's text.
        source: The original error; its node and value are the new one's.
    """
    assert issubclass(kind, Status)
    text = f"[gpuexec] : {kind.number} : {kind.status} : {message}"
    return kind(text) if source is None else kind(text, node=source.node, value=source.value)


@contextmanager
def translating(invalid: type[InvalidArgument] = InvalidArgument) -> Iterator[None]:
    """Convert errors of `gpuexec.errors` to ONNX Runtime's within the context.

    Args:
        invalid: The class that an InputError becomes.
    """
    try:
        yield
    except GpuexecError as error:
        if isinstance(error, Status):
            if isinstance(error, InvalidArgument) and not isinstance(error, invalid | TypeError):
                raise invalid(*error.args, node=error.node, value=error.value) from error
            raise
        kind = next(ours for theirs, ours in _KINDS if isinstance(error, theirs))
        if type(error.__cause__).__name__ == "DecodeError":
            kind = InvalidProtobuf
        raise make_error(invalid if kind is InvalidArgument else kind, str(error), error) from error
