"""Sessions with the interface of ONNX Runtime's compiled module, reached as ``_sess``.

They take some arguments in another order than the Python class over them, and give vectors of values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpuexec.compat.onnxruntime.binding import IOBinding, SessionIOBinding
from gpuexec.compat.onnxruntime.described import ModelMetadata, NodeArg
from gpuexec.compat.onnxruntime.devices import OrtDevice, OrtMemoryInfo
from gpuexec.compat.onnxruntime.options import RunOptions, SessionOptions
from gpuexec.compat.onnxruntime.values import OrtValue, OrtValueVector

if TYPE_CHECKING:
    from gpuexec.compat.onnxruntime.session import InferenceSession


class NativeSession:
    """A session with the compiled module's names; an InferenceSession has it as ``_sess``."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self._sess = self
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
