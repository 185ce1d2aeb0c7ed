"""SessionOptions and RunOptions.

Options that mean something here act, the others are named once in a warning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, IntEnum
from typing import Any

from gpuexec.compat.onnxruntime.errors import (
    ArgumentTypeError,
    BindingError,
    InvalidArgument,
    NotImplemented,
    make_error,
)
from gpuexec.compat.onnxruntime.notices import warn_once

_NO_LIMIT = -1


class _Choice(IntEnum):
    __str__ = Enum.__str__


class GraphOptimizationLevel(_Choice):
    """Extent of graph rewriting: only what is required, or all that keeps the results."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Choice):
    """Sequential or parallel execution of nodes. Nodes without a data dependency may overlap in either mode."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Choice):
    """The order of nodes. The planner chooses its own."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Options:
    """Named values of fixed types; other names and types are refused."""

    __slots__ = ("_entries", "_values")
    _defaults: Mapping[str, Any] = {}

    def __init__(self) -> None:
        object.__setattr__(self, "_values", dict(self._defaults))
        object.__setattr__(self, "_entries", {})

    def __getattr__(self, name: str) -> Any:
        if name in type(self)._defaults:
            return object.__getattribute__(self, "_values")[name]
        raise AttributeError(f"{type(self).__name__} has no option {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise AttributeError(f"{type(self).__name__} has no option {name!r}")
        expected = type(self._defaults[name])
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise make_error(
                ArgumentTypeError,
                f"{type(self).__name__}.{name} takes {expected.__name__}, got {value!r}.",
            )
        self._values[name] = value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._defaults})

    def changed(self) -> list[str]:
        """Return the names of options that differ from their defaults."""
        return [name for name, value in self._values.items() if value != self._defaults[name]]

    def _set_entry(self, key: str, value: str) -> None:
        if not (isinstance(key, str) and key and isinstance(value, str)):
            raise make_error(ArgumentTypeError, f"A configuration entry is two strings, got {key!r}: {value!r}.")
        self._entries[key] = value

    def _get_entry(self, key: str) -> str:
        if key not in self._entries:
            raise make_error(BindingError, f"{type(self).__name__} has no configuration entry {key!r}.")
        entry: str = self._entries[key]
        return entry


class SessionOptions(_Options):
    """Options of a session, read once when it is made.

    ``intra_op_num_threads`` and ``inter_op_num_threads`` bound the threads on the CPU (the larger of the two counts;
    those of BLAS are its own). ``graph_optimization_level`` ORT_DISABLE_ALL leaves out every pass that can be left out.
    ``optimized_model_filepath`` gets the graph as it was rewritten. ``enable_profiling`` notes what each layer of each
    run takes, and `InferenceSession.end_profiling` writes it to a file named by ``profile_file_prefix``. Configuration
    entries that act: ``session.disable_cpu_ep_fallback``, ``session.optimized_model_external_initializers_file_name``
    (weights of that graph lie in such a file beside it) and ``..._min_size_in_bytes`` (from which size on), and of our
    own ``gpuexec.workers``, the most runs that go on at once.
    """

    __slots__ = ("dims", "dims_by_denotation", "external_files", "external_initializers", "initializers", "providers")
    _defaults = {  # noqa: RUF012  (never changed)
        "enable_cpu_mem_arena": True,
        "enable_mem_pattern": True,
        "enable_mem_reuse": True,
        "enable_profiling": False,
        "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
        "execution_order": ExecutionOrder.DEFAULT,
        "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "inter_op_num_threads": 0,
        "intra_op_num_threads": 0,
        "log_severity_level": _NO_LIMIT,
        "log_verbosity_level": 0,
        "logid": "",
        "optimized_model_filepath": "",
        "profile_file_prefix": "onnxruntime_profile_",
        "use_deterministic_compute": False,
        "use_per_session_threads": True,
    }
    # Options without effect; the others act, or describe what is always so.
    _ignored = {  # noqa: RUF012
        "enable_cpu_mem_arena": "plans always have arenas",
        "enable_mem_pattern": "plans always have arenas",
        "enable_mem_reuse": "plans always reuse memory",
        "execution_order": "the planner chooses the order",
        "log_verbosity_level": "log lines have no degrees of verbosity",
        "use_per_session_threads": "sessions share the threads of a device",
    }

    def __init__(self) -> None:
        super().__init__()
        for name in self.__slots__:
            object.__setattr__(self, name, {})

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry."""
        self._set_entry(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return a configuration entry; BindingError, a RuntimeError, where there is none of that key."""
        return self._get_entry(key)

    def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
        """Fix a free dimension by its name; ignored for models without it."""
        self.dims[_check_name(name)] = _check_extent(extent)

    def add_free_dimension_override_by_denotation(self, denotation: str, extent: int) -> None:
        """Fix the free dimensions of a denotation (``"DATA_BATCH"``)."""
        self.dims_by_denotation[_check_name(denotation)] = _check_extent(extent)

    def add_initializer(self, name: str, value: Any) -> None:
        """Replace an initializer of the model by an OrtValue on the CPU of the same dtype and shape."""
        self.initializers[_check_name(name)] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Set the content of initializers that lie in external files, as OrtValues; the files need not exist.

        Raises:
            BindingError: There are more or fewer names than values.
        """
        _check_counts(names, values)
        for name, value in zip(names, values, strict=True):
            self.external_initializers[_check_name(name)] = value

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Set the content of external data files, by the names the model has for them; no others are read then.

        Args:
            names: Locations, as the model has them.
            buffers: Bytes, or what has a buffer of them; what could be written to is copied.
            lengths: How many bytes of each.

        Raises:
            BindingError: There are not as many of each, a name comes twice, or a buffer is shorter than its length.
        """
        _check_counts(names, buffers)
        _check_counts(names, lengths)
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            if _check_name(name) in self.external_files:
                raise make_error(BindingError, f"The file {name!r} is given twice.")
            self.external_files[name] = _view_bytes(name, buffer, length)

    def add_provider(self, name: str, options: Mapping[str, str] | None = None) -> None:
        """Add a provider, after those added before, for sessions that are given none themselves."""
        self.providers[_check_name(name)] = dict(options or {})

    def has_providers(self) -> bool:
        """Return whether a provider was added."""
        return bool(self.providers)

    def add_provider_for_devices(self, devices: object, options: Mapping[str, str]) -> None:
        """Refuse: there are no plug-in providers."""
        raise make_error(NotImplemented, f"There are no plug-in providers, got devices {devices!r}; use add_provider.")

    def set_provider_selection_policy(self, policy: object) -> None:
        """Refuse: providers are chosen by name."""
        raise make_error(NotImplemented, f"Providers are not chosen by a policy, got {policy!r}; use add_provider.")

    def set_provider_selection_policy_delegate(self, delegate: object) -> None:
        """Refuse: providers are chosen by name."""
        self.set_provider_selection_policy(delegate)

    def register_custom_ops_library(self, path: str) -> None:
        """Refuse: custom operators are registered in Python (`gpuexec.ir.operator`)."""
        raise make_error(
            NotImplemented,
            f"Libraries of operators compiled for ONNX Runtime can't be used: {path}. Register an operator with"
            " gpuexec.ir.operator.operator.",
        )

    def warn_of_ignored(self) -> None:
        """Warn once of options that are set and have no effect."""
        severity = self.log_severity_level
        for name in self.changed():
            if name in self._ignored:
                warn_once(f"SessionOptions.{name} is ignored: {self._ignored[name]}.", severity)
        for key in self._entries:
            if key not in _SESSION_ENTRIES:
                warn_once(f"The configuration entry {key!r} of SessionOptions is ignored.", severity)

    def entry(self, key: str, default: str = "") -> str:
        """Return a configuration entry, or the default."""
        found: str = self._entries.get(key, default)
        return found


EXTERNAL_FILE_ENTRY = "session.optimized_model_external_initializers_file_name"
EXTERNAL_SIZE_ENTRY = "session.optimized_model_external_initializers_min_size_in_bytes"
_SESSION_ENTRIES = frozenset(
    {
        "session.disable_cpu_ep_fallback",
        "session.record_ep_graph_assignment_info",
        "gpuexec.workers",
        EXTERNAL_FILE_ENTRY,
        EXTERNAL_SIZE_ENTRY,
    }
)
_RUN_ENTRIES = frozenset({"disable_synchronize_execution_providers", "memory.enable_memory_arena_shrinkage"})


def get_default_session_options() -> SessionOptions:
    """Return options with their default values."""
    return SessionOptions()


class RunOptions(_Options):
    """Options of a run. Setting ``terminate`` cancels the runs that use them, where they can be cancelled.

    Configuration entries that act: ``disable_synchronize_execution_providers`` (`run_with_iobinding` returns without
    waiting) and ``memory.enable_memory_arena_shrinkage`` (unused memory is released after the run).
    """

    __slots__ = ("_lock", "_runs")
    _defaults = {  # noqa: RUF012
        "log_severity_level": _NO_LIMIT,
        "log_verbosity_level": 0,
        "logid": "",
        "only_execute_path_to_fetches": False,
        "terminate": False,
    }

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_lock", threading.Lock())
        object.__setattr__(self, "_runs", [])

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "terminate" and value:
            with self._lock:
                runs = list(self._runs)
            for cancel in runs:
                cancel()

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry."""
        self._set_entry(key, value)
        if key not in _RUN_ENTRIES:
            warn_once(f"The configuration entry {key!r} of RunOptions is ignored.", self.log_severity_level)

    def get_run_config_entry(self, key: str) -> str:
        """Return a configuration entry; BindingError, a RuntimeError, where there is none of that key."""
        return self._get_entry(key)

    def add_active_adapter(self, adapter: object) -> None:
        """Refuse: adapters are not supported."""
        raise make_error(NotImplemented, f"Adapters of weights are not supported, got {adapter!r}.")

    def is_on(self, key: str) -> bool:
        """Return whether a configuration entry is ``"1"``, or names anything else but ``"0"``."""
        return self._entries.get(key, "0") not in ("", "0")

    @contextmanager
    def watching(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Call ``cancel`` if ``terminate`` is set now or within the context."""
        with self._lock:
            self._runs.append(cancel)
        try:
            if self.terminate:
                cancel()
            yield
        finally:
            with self._lock:
                self._runs.remove(cancel)


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise make_error(ArgumentTypeError, f"Expected a name, got {name!r}.")
    return name


def _check_counts(names: Sequence[str], others: Sequence[Any]) -> None:
    for given in (names, others):
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise make_error(ArgumentTypeError, f"Expected a list, got {given!r:.60}.")
    if len(names) != len(others):
        raise make_error(BindingError, f"Got {len(names)} names and {len(others)} others; expected one for each.")


def _view_bytes(name: str, buffer: Any, length: int) -> memoryview:
    """Return a read-only view of the first bytes of a buffer."""
    try:
        view = memoryview(buffer).cast("B")
    except TypeError as error:
        raise make_error(ArgumentTypeError, f"The file {name!r} takes bytes, got a {type(buffer).__name__}.") from error
    if not isinstance(length, int) or not 0 <= length <= view.nbytes:
        raise make_error(
            BindingError, f"The file {name!r} has {view.nbytes} bytes; a length of {length!r} is asked for."
        )
    return view[:length] if view.readonly else memoryview(bytes(view[:length]))


def _check_extent(extent: object) -> int:
    if not isinstance(extent, int) or isinstance(extent, bool):
        raise make_error(ArgumentTypeError, f"Expected an extent, got {extent!r}.")
    if extent < 0:
        raise make_error(InvalidArgument, f"Expected an extent of 0 or more, got {extent}.")
    return extent
