"""Warnings about ignored options, given once, and the log severity."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable

from gpuexec.compat.onnxruntime.errors import BindingError, make_error
from gpuexec.execution.resources.unclosed import find_caller

# ONNX Runtime's severities are 0 (verbose), 1 (info), 2 (warning), 3 (error), 4 (fatal).
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
WARNING = 2
_said: set[str] = set()
_lock = threading.Lock()
_default_severity = WARNING
_handler: logging.Handler | None = None


def set_default_logger_severity(severity: int) -> None:
    """Set the least severity of log lines and warnings: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.

    Raises:
        BindingError: It is none of these.
    """
    global _default_severity
    if severity not in range(len(_LEVELS)):
        raise make_error(BindingError, f"Expected a severity of 0 to 4, got {severity!r}.")
    _default_severity = severity
    logging.getLogger("gpuexec").setLevel(_LEVELS[severity])


def set_default_logger_callback(
    callback: Callable[[int, str, str, str, str], object] | None, severity: int = 2
) -> None:
    """Pass log lines to a function too, from a severity on; an error that it raises goes to Python's logging.

    Args:
        callback: Given the severity, the name of the logger, an empty id, the place in the code, and the message. None:
            no more.
        severity: As for `set_default_logger_severity`, which it sets.

    Raises:
        BindingError: It can't be called, or the severity is none.
    """
    global _handler
    if callback is not None and not callable(callback):
        raise make_error(BindingError, f"Expected a function or None, got {callback!r}.")
    if callback is not None:
        set_default_logger_severity(severity)
    logger = logging.getLogger("gpuexec")
    if _handler is not None:
        logger.removeHandler(_handler)
    _handler = None if callback is None else _Handler(callback)
    if _handler is not None:
        logger.addHandler(_handler)


class _Handler(logging.Handler):
    """Logging handler that calls a function of ONNX Runtime's form."""

    def __init__(self, callback: Callable[[int, str, str, str, str], object]) -> None:
        super().__init__()
        self._callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a log line to the function."""
        severity = min(record.levelno // logging.DEBUG, len(_LEVELS)) - 1
        where = f"{record.filename}:{record.lineno} {record.funcName}"
        try:
            self._callback(max(severity, 0), record.name, "", where, record.getMessage())
        except Exception:
            self.handleError(record)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Warn once that verbose log lines have no levels."""
    if verbosity:
        warn_once("set_default_logger_verbosity is ignored: log lines have no degrees of verbosity.")


def warn_once(message: str, severity: int = -1) -> None:
    """Warn, unless the same warning was given before in this process.

    Args:
        message: Text about an ignored option.
        severity: The severity from which on a session speaks; -1: the default.
    """
    if (severity if severity >= 0 else _default_severity) > WARNING:
        return
    with _lock:
        if message in _said:
            return
        _said.add(message)
    file, line = find_caller()
    warnings.warn_explicit(message, UserWarning, file, line)
