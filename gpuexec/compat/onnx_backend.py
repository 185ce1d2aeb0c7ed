"""ONNX's backend interface (``onnx.backend.base.Backend``) over a Worker.

    import gpuexec.compat.onnx_backend as backend

    rep = backend.prepare(onnx.load("model.onnx"), device="CUDA")
    (y,) = rep.run([x])

Devices are ``CPU``, ``CUDA`` (or ``CUDA:0``) and ``SIMULATOR``. Inputs stand in the model's order, initializers left
out, or are a dict by name: arrays, NumPy and Python scalars, TensorProtos, arrays of str; lists for sequences, None
for an empty optional, dicts for maps. Outputs have the same forms. All errors are of `gpuexec.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import (
    IR_VERSION,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    checker,
    defs,
    helper,
    numpy_helper,
    shape_inference,
)
from onnx.backend import base

from gpuexec.devices.backend import BackendType, open_backend
from gpuexec.errors import DeviceError, InputError, ModelError, UnsupportedError
from gpuexec.execution.report import Report
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.worker import Worker
from gpuexec.model.loading import load
from gpuexec.model.model import Model

_BACKENDS = {
    "CPU": BackendType.CPU,
    "CUDA": BackendType.GPU_COMPUTE,
    "CUDA:0": BackendType.GPU_COMPUTE,
    "SIMULATOR": BackendType.SIMULATOR,
}
# Python strings in an array are objects to NumPy; no other object stands for an element of ONNX.
_STRING_KINDS = "OSUT"


class PreparedModel(base.BackendRep):
    """A prepared model with a Worker of its own. Runs any number of times; close it, or use ``with``."""

    def __init__(self, model: Model, backend: BackendType) -> None:
        self._worker = Worker(model, backend=backend)
        names = [port.name for port in model.outputs]
        self._make_outputs = base.namedtupledict("Outputs", names)

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """Run once and wait for the outputs: a tuple that can be indexed by name as well.

        Args:
            inputs: A dict by name, a sequence in the model's order, or one array.

        Raises:
            InputError: An input is missing, misspelt, or of the wrong dtype or shape.
        """
        if isinstance(inputs, Mapping):
            given: Any = {name: _take(item) for name, item in inputs.items()}
        else:
            given = [_take(item) for item in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        run = self._worker.schedule(given)
        return self._make_outputs(*[_give(output) for output in run.outputs.values()])

    def report(self) -> Report:
        """Return the Worker's report; `Report.host_calls` are operators that fell back to the host."""
        return self._worker.report()

    def close(self) -> None:
        """Release all resources. A second call does nothing."""
        self._worker.close()

    def __enter__(self) -> PreparedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class GpuexecBackend(base.Backend):
    """ONNX's backend interface over gpuexec. Its methods are functions of this module too."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **_: Any) -> bool:
        """Return whether every operator and type of the model is supported.

        Raises:
            ModelError: The model is broken.
        """
        try:
            load(model)
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **_: Any) -> PreparedModel:
        """Load a model for a device. Further arguments are ignored: onnx's own runner passes its tolerances here.

        Raises:
            InputError: There is no device of that name.
            DeviceNotFoundError: The device can't be used here; the message says what to install.
            ModelError: The model is broken.
            UnsupportedError: Operators or types that are not supported; lists all of them.
        """
        return PreparedModel(load(model), _find_backend(device))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **options: Any) -> tuple[Any, ...]:
        """Run a model once; see `prepare` and `PreparedModel.run`."""
        with cls.prepare(model, device, **options) as prepared:
            return prepared.run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **options: Any
    ) -> tuple[Any, ...]:
        """Run a node of ai.onnx or ai.onnx.ml by itself.

        Args:
            node: Its optional inputs and outputs that are not wanted have the name ``""``.
            inputs: Values of the named inputs, in their order, or a dict by name.
            device: As for `prepare`.
            outputs_info: (dtype, shape) of each named output; by default what ONNX infers from the inputs.
            options: ``opset_version`` says which form of the operator is meant (default: the newest).

        Raises:
            InputError: The inputs don't fit the node.
            ModelError: ONNX knows no such operator, or can't infer the types of its outputs.
        """
        names = list(dict.fromkeys(name for name in node.input if name))
        items = inputs if isinstance(inputs, (Mapping, list, tuple)) else [inputs]
        if not isinstance(items, Mapping):
            if len(items) != len(names):
                raise InputError(f"{_label(node)} has {len(names)} inputs, got {len(items)}.")
            items = dict(zip(names, items, strict=True))
        given = {name: _take(item) for name, item in items.items()}
        model = _wrap_node(node, names, given, outputs_info, options.get("opset_version"))
        return cls.run_model(model, given, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether a device of that name exists and works here."""
        try:
            open_backend(_find_backend(device))
        except (InputError, DeviceError):
            return False
        return True


is_compatible = GpuexecBackend.is_compatible
prepare = GpuexecBackend.prepare
run_model = GpuexecBackend.run_model
run_node = GpuexecBackend.run_node
supports_device = GpuexecBackend.supports_device


def _find_backend(device: str) -> BackendType:
    backend = _BACKENDS.get(device)
    if backend is None:
        raise InputError(f"Expected a device of {', '.join(_BACKENDS)}, got {device!r}.")
    return backend


def _take(item: Any) -> Any:
    """Convert an input to what a Worker takes: protos and NumPy scalars to arrays, containers item by item."""
    if isinstance(item, TensorProto):
        return numpy_helper.to_array(item)
    if isinstance(item, np.generic):
        return np.asarray(item)
    if isinstance(item, (list, tuple)):
        return [_take(part) for part in item]
    if isinstance(item, Mapping):
        return {key: _take(part) for key, part in item.items()}
    return item


def _give(output: Any) -> Any:
    """Return an output on the host: Tensors as arrays, also within containers."""
    if isinstance(output, Tensor):
        return output.readback_and_clone()
    if isinstance(output, (list, tuple)):
        return [_give(part) for part in output]
    if isinstance(output, Mapping):
        return {key: _give(part) for key, part in output.items()}
    return output


def _wrap_node(
    node: NodeProto, names: Sequence[str], given: Mapping[str, Any], outputs_info: Any, opset: int | None
) -> ModelProto:
    """Return a model of one node, typed by its inputs."""
    lacking = [name for name in names if name not in given]
    if lacking:
        raise InputError(f"{_label(node)} lacks its input %{lacking[0]}.", node=node.name, value=lacking[0])
    types = {name: _type_of(name, given[name]) for name in names}
    schema = _find_schema(node, opset)
    if outputs_info is None:
        outputs = _infer_outputs(node, schema, types)
    else:
        outputs = {
            name: helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, (dtype, shape) in zip(filter(None, node.output), outputs_info, strict=True)
        }
    graph = helper.make_graph(
        [node],
        node.name or node.op_type,
        [helper.make_value_info(name, type) for name, type in types.items()],
        [helper.make_value_info(name, type) for name, type in outputs.items()],
    )
    opsets = [helper.make_opsetid(schema.domain, schema.since_version)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)


def _find_schema(node: NodeProto, opset: int | None) -> Any:
    """Return the ONNX schema of the node's operator."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        return defs.get_schema(node.op_type, opset, domain) if opset else defs.get_schema(node.op_type, domain)
    except defs.SchemaError as error:
        where = f"opset {opset}" if opset else "any opset"
        message = f"{_label(node)}: ONNX has no such operator in {where} of {domain or 'ai.onnx'}."
        raise ModelError(message, node=node.name) from error


def _infer_outputs(node: NodeProto, schema: Any, types: Mapping[str, TypeProto]) -> dict[str, TypeProto]:
    """Infer the types of the wanted outputs by ONNX, without content; shapes stay open."""
    try:
        found = shape_inference.infer_node_outputs(schema, node, dict(types))
    except (checker.ValidationError, shape_inference.InferenceError, RuntimeError) as error:
        raise ModelError(f"{_label(node)}: {error}", node=node.name) from error
    outputs = {name: found.get(name, TypeProto()) for name in node.output if name}
    for name, type in outputs.items():
        if not type.WhichOneof("value"):
            message = f"{_label(node)}: ONNX can't infer the type of its output %{name}; give outputs_info."
            raise ModelError(message, node=node.name, value=name)
    return {name: _open_shape(type) for name, type in outputs.items()}


def _type_of(name: str, item: Any) -> TypeProto:
    """Return the ONNX type of a given value."""
    if item is None or (isinstance(item, (list, Mapping)) and not item):
        kind = "None" if item is None else f"an empty {'list' if isinstance(item, list) else 'dict'}"
        raise InputError(f"Input %{name} is {kind}, which has no type; declare it in a model: run_model.", value=name)
    if isinstance(item, list):
        return helper.make_sequence_type_proto(_open_shape(_type_of(name, item[0])))
    if isinstance(item, Mapping):
        key, held = next(iter(item.items()))
        code = TensorProto.STRING if isinstance(key, (str, bytes)) else TensorProto.INT64
        return helper.make_map_type_proto(code, _open_shape(_type_of(name, held)))
    array = np.asarray(item)
    is_text = array.dtype.kind in _STRING_KINDS
    code = TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_type_proto(code, array.shape)


def _open_shape(type: TypeProto) -> TypeProto:
    if type.HasField("tensor_type"):
        type.tensor_type.ClearField("shape")
    return type


def _label(node: NodeProto) -> str:
    return f"{node.op_type} {node.name!r}"
