"""Polygraphy plug-in: a runner beside its own, so that ``polygraphy run model.onnx --onnxrt --gpuexec`` compares them.

Polygraphy finds it by the entry point of this package. With ``--onnx-outputs mark all`` it compares every value of a
model; ``--gpuexec-backend`` and ``--gpuexec-precision`` say where and in what a Worker runs.
"""

from __future__ import annotations

import argparse
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from polygraphy import util
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata
from polygraphy.datatype import DataType
from polygraphy.tools.args import ModelArgs, OnnxLoadArgs
from polygraphy.tools.args import util as args_util
from polygraphy.tools.args.base import BaseRunnerArgs
from polygraphy.tools.script import make_invocable

from gpuexec.devices.backend import BackendType
from gpuexec.execution.worker import Worker
from gpuexec.importer.read import Source
from gpuexec.ir.precision import PRECISIONS
from gpuexec.ir.spec import name_dtype
from gpuexec.model.loading import load

Array = np.ndarray[Any, Any]


class GpuexecRunner(BaseRunner):  # type: ignore[misc]
    """A runner of Polygraphy over a Worker.

        with GpuexecRunner("model.onnx", backend="cpu") as runner:
            outputs = runner.infer({"x": x})

    Args:
        model: What `gpuexec.load` takes, or a function that returns it.
        backend: Where to run; see `gpuexec.Worker`.
        precision: What products are computed in; see `gpuexec.Worker`.
        name: Of the runner; None: one that is counted.
    """

    def __init__(
        self,
        model: Source | Callable[[], Source],
        backend: str = "auto",
        precision: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name, prefix="gpuexec-runner")
        self._model, self._backend, self._precision = model, backend, precision

    @util.check_called_by("activate")  # type: ignore[untyped-decorator]
    def activate_impl(self) -> None:
        """Load the model, and make a Worker of it."""
        source, _ = util.invoke_if_callable(self._model)
        self.worker = Worker(load(source), backend=self._backend, precision=self._precision)

    @util.check_called_by("get_input_metadata")  # type: ignore[untyped-decorator]
    def get_input_metadata_impl(self) -> Any:
        """Return names, types and shapes of inputs; free extents are None."""
        metadata = TensorMetadata()
        for port in self.worker.model.inputs:
            dims = port.spec.dims
            shape = None if dims is None else [dim if isinstance(dim, int) else None for dim in dims]
            metadata.add(port.name, dtype=getattr(DataType, name_dtype(port.spec.dtype).upper()), shape=shape)
        return metadata

    @util.check_called_by("infer")  # type: ignore[untyped-decorator]
    def infer_impl(self, feed_dict: Mapping[str, Any]) -> OrderedDict[str, Array]:
        """Run and block for the outputs, by name."""
        feeds = {name: util.array.to_numpy(given) for name, given in feed_dict.items()}
        start = time.perf_counter()
        outputs = self.worker.run(feeds)
        self.inference_time = time.perf_counter() - start
        is_torch = any(util.array.is_torch(given) for given in feed_dict.values())
        return OrderedDict((name, util.array.to_torch(each) if is_torch else each) for name, each in outputs.items())

    @util.check_called_by("deactivate")  # type: ignore[untyped-decorator]
    def deactivate_impl(self) -> None:
        """Close the Worker."""
        self.worker.close()
        del self.worker


class GpuexecRunnerArgs(BaseRunnerArgs):  # type: ignore[misc]
    """gpuexec Inference: running inference with gpuexec.

    Depends on:

        - ModelArgs
        - OnnxLoadArgs
    """

    def get_name_opt_impl(self) -> tuple[str, str]:
        """Return the name of the runner, and its option."""
        return "gpuexec", "gpuexec"

    def add_parser_args_impl(self) -> None:
        """Add the options of a Worker."""
        self.group.add_argument(
            "--gpuexec-backend",
            choices=[each.value for each in BackendType],
            default="auto",
            help="where gpuexec runs (default: the GPU when one works, else the CPU)",
        )
        self.group.add_argument(
            "--gpuexec-precision", choices=PRECISIONS, default=None, help="what gpuexec computes products in"
        )

    def parse_impl(self, args: argparse.Namespace) -> None:
        """Note the options of a Worker."""
        self.backend = args_util.get(args, "gpuexec_backend")
        self.precision = args_util.get(args, "gpuexec_precision")

    def add_to_script_impl(self, script: Any) -> None:
        """Add the runner to Polygraphy's script; the model goes by path where nothing changes it on the way."""
        loading = self.arg_groups[OnnxLoadArgs]
        changed = loading.must_use_onnx_loader()
        model = loading.add_to_script(script) if changed else self.arg_groups[ModelArgs].path
        script.add_import(imports=["GpuexecRunner"], frm="gpuexec.compat.polygraphy")
        runner = make_invocable("GpuexecRunner", model, backend=self.backend, precision=self.precision)
        script.add_runner(runner)


def export_argument_groups() -> list[Any]:
    """Return the groups of arguments that the entry point adds to ``polygraphy run``."""
    return [GpuexecRunnerArgs()]
