"""InferenceSession over a Model and a pool of Workers, and the compiled module's session over that."""

from __future__ import annotations

import logging
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.compat.onnxruntime.binding import IOBinding, SessionIOBinding
from gpuexec.compat.onnxruntime.described import (
    AssignedSubgraph,
    ModelMetadata,
    NodeArg,
    describe_model,
    describe_value,
    list_assigned,
)
from gpuexec.compat.onnxruntime.devices import OrtDevice, OrtMemoryInfo, describe_memory
from gpuexec.compat.onnxruntime.errors import (
    ArgumentTypeError,
    BindingError,
    Fail,
    InvalidArgument,
    make_error,
    translating,
)
from gpuexec.compat.onnxruntime.loading import load_model, save_optimized
from gpuexec.compat.onnxruntime.notices import warn_once
from gpuexec.compat.onnxruntime.options import RunOptions, SessionOptions
from gpuexec.compat.onnxruntime.profile import SessionProfile
from gpuexec.compat.onnxruntime.providers import CPU_PROVIDER, Provider, check_known, choose_provider
from gpuexec.compat.onnxruntime.runner import BaseSession, Runner
from gpuexec.compat.onnxruntime.values import OrtValue, OrtValueVector, check_bindable

Array = np.ndarray[Any, Any]
Callback = Callable[[list[Array], Any, str], object]
Providers = Sequence[str | tuple[str, Mapping[Any, Any]]] | str | None
# Largest number of concurrent runs of a session; more wait. Each has an arena of its own, weights are shared.
_MAX_WORKERS = 4
_log = logging.getLogger("gpuexec")


class InferenceSession(BaseSession):
    """An inference session: a loaded model that any number of threads may run.

    Args:
        path_or_bytes: A path or the bytes of an ONNX model.
        sess_options: Options, read now.
        providers: Where to run: names or (name, options), those preferred first; the first that works here. None:
            those of the options, or else the GPU where one works, else the CPU.
        provider_options: Options for each provider, where ``providers`` are names.
        kwargs: Further arguments of ONNX Runtime, ignored with a warning.

    Raises:
        InvalidArgument: The arguments don't fit together.
        NoSuchFile: There is no such file.
        InvalidProtobuf, InvalidGraph: It is no model, or contradicts itself.
        NotImplemented: It needs operators or types that are not supported; lists all of them.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Providers = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        self._options = SessionOptions() if sess_options is None else sess_options
        if not isinstance(self._options, SessionOptions):
            raise make_error(ArgumentTypeError, f"Expected SessionOptions, got {type(sess_options).__name__}.")
        for name in kwargs:
            warn_once(f"InferenceSession ignores {name}=.", self._options.log_severity_level)
        self._options.warn_of_ignored()
        self._allows_cpu = self._options.entry("session.disable_cpu_ep_fallback", "0") == "0"
        max_workers = _read_workers(self._options)
        with translating():
            provider = self._choose(providers or list(self._options.providers.items()), provider_options)
            model = load_model(path_or_bytes, self._options)
            if self._options.optimized_model_filepath:
                save_optimized(model, self._options)
        self._profile: SessionProfile | None = None
        if self._options.enable_profiling:
            self._profile = SessionProfile(self._options.profile_file_prefix, provider.name)
        self._start_ns = self._profile.start_ns if self._profile is not None else 0
        profiler = self._profile.profiler if self._profile is not None else None
        strict = not self._allows_cpu
        super().__init__(model, Runner(model, provider, max_workers, is_strict=strict, profiler=profiler))
        self._finalizer = weakref.finalize(self, self._runner.close)
        # At the end of the process open sessions need not be closed.
        self._finalizer.atexit = False
        _log.debug("A session of %s runs on %s.", self.model.info.source, provider.backend.device.name)

    def get_session_options(self) -> SessionOptions:
        """Return the options the session was made with."""
        return self._options

    def get_inputs(self) -> list[NodeArg]:
        """Return the required inputs."""
        return [describe_value(port.name, port.spec, self.model.dims) for port in self.model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs of a run."""
        return [describe_value(port.name, port.spec, self.model.dims) for port in self.model.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the initializers that may be given as inputs, in place of the model's content."""
        return [describe_value(*row, self.model.dims) for row in self.model.info.header.overridable.items()]

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of the model's file."""
        return describe_model(self.model.info)

    def get_providers(self) -> list[str]:
        """Return the provider it runs on, and the CPU's, where NumPy computes what has no kernel."""
        return list(dict.fromkeys([self._runner.provider.name, CPU_PROVIDER]))

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of its providers."""
        provider = self._runner.provider
        return {name: {} for name in self.get_providers()} | {provider.name: dict(provider.options)}

    def set_providers(
        self, providers: Providers = None, provider_options: Sequence[Mapping[Any, Any]] | None = None
    ) -> None:
        """Switch to other providers; runs under way finish where they are.

        Raises:
            BindingError: ONNX Runtime has no provider of that name either; the session goes on as it was.
            InvalidArgument: The arguments don't fit together; the session goes on as it was.
        """
        check_known(providers)
        with translating():
            provider = self._choose(providers, provider_options)
            self._runner.move(provider, self._profile.profiler if self._profile is not None else None)

    def disable_fallback(self) -> None:
        """Do nothing: a session never falls back to another provider."""

    def enable_fallback(self) -> None:
        """Warn once that a session never falls back to another provider."""
        warn_once("enable_fallback is ignored: a run that fails raises, and runs nowhere else.")

    def get_provider_graph_assignment_info(self) -> list[AssignedSubgraph]:
        """Return the nodes of the executed graph, each with its provider.

        Raises:
            Fail: The options do not ask for it.
        """
        if self._options.entry("session.record_ep_graph_assignment_info") != "1":
            raise make_error(
                Fail, 'Set session.record_ep_graph_assignment_info to "1" in the session\'s options first.'
            )
        return list_assigned(self.model.graph, self._runner.provider.name)

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the memory that each input is read from."""
        return [describe_memory(self.backend) for _ in self.input_names]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the memory that each output is written to."""
        return [describe_memory(self.backend) for _ in self.output_names]

    def get_input_epdevices(self) -> list[None]:
        """Return None for each input: there are no plug-in providers."""
        return [None for _ in self.input_names]

    def get_tuning_results(self) -> list[dict[str, Any]]:
        """Return an empty list: kernels are chosen when they are planned."""
        return []

    def set_tuning_results(self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False) -> None:
        """Ignore tuning results, or refuse them where that is asked for.

        Raises:
            BindingError: There are some, and it is asked for.
        """
        if results and error_on_invalid:
            raise make_error(BindingError, f"There is nothing to tune here; got results for {results[0].get('ep')!r}.")

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Warn once that providers have no dynamic options."""
        for name in options:
            warn_once(f"set_ep_dynamic_options ignores {name!r}.", self._options.log_severity_level)

    @property
    def _sess(self) -> NativeSession:
        """This session by the names of the compiled module."""
        return NativeSession(self)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Array]:
        """Run and wait for outputs as arrays that the caller owns.

        Args:
            output_names: Which; None or none: all, in the model's order.
            input_feed: All inputs by name: arrays, OrtValues, lists, and arrays of other packages by DLPack.
            run_options: Options.

        Raises:
            InvalidArgument: A name, dtype or shape does not fit, or an input is missing.
            Fail: The run was given up.
        """
        names = self._list_outputs(output_names)
        if run_options is None and self._runner.provider.name == CPU_PROVIDER:
            with translating():
                outputs = self._runner.run(input_feed)
                return [outputs[name] for name in names]
        with translating(), self._runner.running(input_feed, run_options) as (_, run):
            requests = [run.peek_output(name).readback_request() for name in names]
            run.wait()
            return [request.result() for request in requests]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback,
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run on one of the session's threads; return at once.

        Args:
            output_names: As for `run`.
            input_feed: As for `run`; leave arrays as they are until the run is done.
            callback: Called there with the outputs, ``user_data``, and ``""``; or with none and what went wrong.
            user_data: Anything.
            run_options: As for `run`.

        Raises:
            InvalidArgument: An input is missing, or is none of the model's.
        """
        if not callable(callback):
            raise make_error(ArgumentTypeError, f"Expected a callback, got {callback!r}.")
        self._runner.check_feed(input_feed)
        feed = dict(input_feed)
        self._runner.submit(lambda: self._run_for(output_names, feed, callback, user_data, run_options))

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run with OrtValues on any device, and wait for outputs as values on the CPU; otherwise as `run`."""
        for name in self._list_outputs(output_names):
            check_bindable(self.model.outputs, name, takes_strings=True)
        return [OrtValue(array) for array in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        """Return an IOBinding for `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run with bound inputs and outputs.

        Waits until the outputs are there, unless the options say ``disable_synchronize_execution_providers``: then
        those on a device may be pending, and reading them waits.

        Raises:
            BindingError: A dtype or shape does not fit, an input is missing, no output is bound, or it is another
                session's.
        """
        if not isinstance(iobinding, IOBinding):
            raise make_error(ArgumentTypeError, f"Expected an IOBinding, got {type(iobinding).__name__}.")
        if iobinding.session._runner is not self._runner:
            raise make_error(BindingError, "The IOBinding is another session's; make one with session.io_binding().")
        is_waiting = not (run_options and run_options.is_on("disable_synchronize_execution_providers"))
        with translating(BindingError):
            inputs, stream = iobinding.list_inputs(), iobinding.caller_stream
            with self._runner.running(inputs, run_options, stream, is_borrowing=is_waiting) as (worker, run):
                iobinding.take_outputs(worker, run)
                if is_waiting:
                    run.wait()
                    iobinding.synchronize_outputs()

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[OrtDevice],
    ) -> None:
        """Run with values, and append outputs, each on a device of its own, to a vector."""
        self._sess.run_with_ortvaluevector(run_options, feed_names, feeds, fetch_names, fetches, fetch_devices)

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str | OrtDevice,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Return a value of a shape whose content is undefined, as `OrtValue.ortvalue_from_shape_and_type`."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    def end_profiling(self) -> str:
        """End profiling; return the path of the profile, or ``""`` where there was none.

        The file is a list of trace events, which chrome://tracing and Perfetto open. Runs from now on take what they
        take unwatched, and as graphs again.
        """
        if self._profile is None:
            return ""
        profile, self._profile = self._profile, None
        self._runner.move(self._runner.provider)
        return profile.write()

    def get_profiling_start_time_ns(self) -> int:
        """Return the start time of profiling, in nanoseconds since 1970; 0 where there was none."""
        return self._start_ns

    def close(self) -> None:
        """Release all resources now, before the session is collected. ONNX Runtime has no such call."""
        self._finalizer()

    def _choose(self, providers: Providers, provider_options: Sequence[Mapping[Any, Any]] | None) -> Provider:
        return choose_provider(
            providers,
            provider_options,
            threads=max(0, self._options.intra_op_num_threads, self._options.inter_op_num_threads),
            falls_back=self._allows_cpu,
            severity=self._options.log_severity_level,
        )

    def _list_outputs(self, names: Sequence[str] | None) -> list[str]:
        known = self.output_names
        if isinstance(names, str) or not isinstance(names, Sequence | None):
            raise make_error(ArgumentTypeError, f"output_names takes a list of names or None, got {names!r}.")
        for name in names or ():
            if name not in known:
                raise make_error(InvalidArgument, f"There is no output {name!r}; the model has {', '.join(known)}.")
        return list(names or known)

    def _run_for(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        callback: Callback,
        user_data: Any,
        options: RunOptions | None,
    ) -> None:
        try:
            results, error = self.run(names, feed, options), ""
        except Exception as failure:  # any error goes to the callback
            results, error = [], str(failure) or type(failure).__name__
        try:
            callback(results, user_data, error)
        except Exception:
            _log.exception("A callback of run_async failed.")


class NativeSession(BaseSession):
    """A session with the interface of ONNX Runtime's compiled module; an InferenceSession has it as ``_sess``.

    It takes some arguments in another order than the Python class over it, and gives vectors of values.
    """

    def __init__(self, session: InferenceSession) -> None:
        super().__init__(session.model, session._runner)
        self.session = session
        # Calls that are the same in both.
        self.run, self.run_async = session.run, session.run_async
        self.end_profiling = session.end_profiling
        self.get_providers, self.get_provider_options = session.get_providers, session.get_provider_options
        self.get_tuning_results, self.set_tuning_results = session.get_tuning_results, session.set_tuning_results
        self.set_ep_dynamic_options = session.set_ep_dynamic_options
        self.get_provider_graph_assignment_info = session.get_provider_graph_assignment_info
        self.create_ortvalue_from_shape_and_type = session.create_ortvalue_from_shape_and_type

    @property
    def session_options(self) -> SessionOptions:
        """The options it was made with."""
        return self.session.get_session_options()

    @property
    def inputs_meta(self) -> list[NodeArg]:
        """Descriptions of the required inputs."""
        return self.session.get_inputs()

    @property
    def outputs_meta(self) -> list[NodeArg]:
        """Descriptions of the outputs."""
        return self.session.get_outputs()

    @property
    def overridable_initializers(self) -> list[NodeArg]:
        """Descriptions of the initializers that may be given as inputs."""
        return self.session.get_overridable_initializers()

    @property
    def model_meta(self) -> ModelMetadata:
        """Metadata of the model's file."""
        return self.session.get_modelmeta()

    @property
    def input_meminfos(self) -> list[OrtMemoryInfo]:
        """Memory that inputs are read from."""
        return self.session.get_input_memory_infos()

    @property
    def output_meminfos(self) -> list[OrtMemoryInfo]:
        """Memory that outputs are written to."""
        return self.session.get_output_memory_infos()

    @property
    def input_epdevices(self) -> list[None]:
        """None for each input: there are no plug-in providers."""
        return self.session.get_input_epdevices()

    @property
    def get_profiling_start_time_ns(self) -> int:
        """Start time of profiling, in nanoseconds since 1970."""
        return self.session.get_profiling_start_time_ns()

    def run_with_ort_values(
        self, feeds: Mapping[str, OrtValue], output_names: Sequence[str], run_options: RunOptions | None = None
    ) -> OrtValueVector:
        """Run with values; see `InferenceSession.run_with_ort_values`."""
        return OrtValueVector(self.session.run_with_ort_values(output_names, feeds, run_options))

    def run_with_iobinding(self, binding: SessionIOBinding | IOBinding, run_options: RunOptions | None = None) -> None:
        """Run with bound inputs and outputs; see `InferenceSession.run_with_iobinding`."""
        held = binding.binding if isinstance(binding, SessionIOBinding) else binding
        self.session.run_with_iobinding(held, run_options)

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[OrtDevice],
    ) -> None:
        """Run with values, and append outputs, each on a device of its own, to a vector."""
        binding = IOBinding(self.session)
        for name, value in zip(feed_names, feeds, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name, device in zip(fetch_names, fetch_devices, strict=True):
            binding.bind_output(name, device.name, device.device_id())
        self.session.run_with_iobinding(binding, run_options)
        fetches.extend(binding.get_outputs())


def _read_workers(options: SessionOptions) -> int:
    text = options.entry("gpuexec.workers") or str(_MAX_WORKERS)
    if not re.fullmatch(r"0*[1-9][0-9]{0,5}", text, re.ASCII):
        raise make_error(InvalidArgument, f"gpuexec.workers takes a number of 1 or more, got {text[:40]!r}.")
    return int(text)
