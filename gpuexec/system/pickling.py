"""Pickling and copying of models and arrays, and the refusal to pickle objects that belong to a process.

Weights in mapped files are pickled as paths. A refusal names what to send instead.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.system.mapped import find_view, view_map

_Kind = TypeVar("_Kind", bound=type)


def not_picklable(cure: str) -> Callable[[_Kind], _Kind]:
    """Make pickle and copy refuse a class's instances, which hold memory and streams of their process.

    Args:
        cure: The alternative, a sentence that ends the message.
    """

    def refuse(item: object, _: object) -> NoReturn:
        raise InputError(f"No {type(item).__name__} can be pickled or copied: it is of its process. {cure}")

    def mark(kind: _Kind) -> _Kind:
        kind.__reduce_ex__ = refuse  # type: ignore[assignment, method-assign]
        return kind

    return mark


class _Pickler(pickle.Pickler):
    """Pickler that writes arrays over mapped files as file references, so that weights in files are never copied."""

    def reducer_override(self, item: Any) -> Any:
        view = find_view(item) if isinstance(item, np.ndarray) else None
        return NotImplemented if view is None else (view_map, view)


def pack(content: object) -> tuple[bytes, list[bytes]]:
    """Pickle content to bytes, and return the bytes of its dense arrays apart, which `unpack` then does not copy.

    Raises:
        AccessError: A file that arrays are views of was written to, or is not where it was.
    """
    buffers: list[bytes] = []
    file = io.BytesIO()
    _Pickler(file, 5, buffer_callback=lambda buffer: buffers.append(buffer.raw().tobytes())).dump(content)
    return file.getvalue(), buffers


def unpack(packed: bytes, buffers: Sequence[bytes]) -> Any:
    """Restore what `pack` was given. As with any pickle, unpack only bytes from a trusted source.

    Raises:
        AccessError: A file that arrays are views of changed since, or is not there.
    """
    return pickle.loads(packed, buffers=buffers)
