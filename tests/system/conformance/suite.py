"""Cases of ONNX's backend tests: most are made once and kept in the cache, the rest are files of the onnx package."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test import loader
from onnx.backend.test.case.test_case import TestCase

from gpuexec.devices.kernels.code_files import cache_folder
from gpuexec.devices.simulator.object_cache import ObjectCache, make_key

# The folders of onnx's data, by what the kinds are called here.
FOLDERS = {
    "node": "node",
    "simple": "simple",
    "pytorch-converted": "pytorch-converted",
    "pytorch-operator": "pytorch-operator",
    "light": "real",
}
KINDS = tuple(FOLDERS)
_PACKAGE = Path(onnx.__file__).parent

DataSet = tuple[Sequence[Any], Sequence[Any]]  # inputs, expected outputs; both in the model's order


@dataclass(frozen=True, slots=True)
class Case:
    """A model with inputs and the outputs expected of it, which are read when asked for."""

    kind: str
    name: str
    rtol: float
    atol: float
    read_model: Callable[[], onnx.ModelProto] = field(repr=False)
    read_data: Callable[[onnx.ModelProto], Sequence[DataSet]] = field(repr=False)

    @property
    def id(self) -> str:
        """Kind and name, ``node/test_abs``."""
        return f"{self.kind}/{self.name}"


def load_suite(kinds: Sequence[str] = KINDS) -> tuple[Case, ...]:
    """Return all cases of these kinds, sorted by id."""
    found = [
        (kind, test)
        for kind in kinds
        for test in (_load_made() if kind == "node" else loader.load_model_tests(kind=FOLDERS[kind]))
    ]
    return tuple(sorted((_make_case(kind, test) for kind, test in found), key=lambda case: case.id))


def operators_of(model: onnx.ModelProto) -> frozenset[str]:
    """Return the operators of a model's nodes, with their domains."""
    return frozenset(f"{node.domain}:{node.op_type}" for node in model.graph.node)


def _load_made() -> list[TestCase]:
    """Return the cases of single operators, which onnx takes seven seconds to compute: one process does."""

    def make(output: Path) -> None:
        with warnings.catch_warnings():
            # onnx computes what it expects with overflow and division by zero, on purpose.
            warnings.simplefilter("ignore", RuntimeWarning)
            output.write_bytes(pickle.dumps(loader.load_model_tests(kind=FOLDERS["node"])))

    key = make_key("node", onnx.__version__, np.__version__)
    path = ObjectCache(cache_folder("suite")).get(key, make, suffix=".pickle")
    return list(pickle.loads(path.read_bytes()))  # what stands behind the pickle is a checksum


def _make_case(kind: str, test: TestCase) -> Case:
    if kind == "node":
        model, data = test.model, test.data_sets
        assert model is not None and data is not None
        return Case(kind, test.name, test.rtol, test.atol, lambda: model, lambda _: data)
    if kind == "light":
        assert test.url is not None
        path = _PACKAGE.parent / test.url
        return Case(kind, test.name, test.rtol, test.atol, lambda: onnx.load(path), lambda m: [_read_light(path, m)])
    assert test.model_dir is not None
    folder = Path(test.model_dir)
    return Case(
        kind,
        test.name,
        test.rtol,
        test.atol,
        lambda: onnx.load(folder / "model.onnx"),
        lambda model: [_read_folder(each, model) for each in sorted(folder.glob("test_data_set_*"))],
    )


def _read_folder(folder: Path, model: onnx.ModelProto) -> DataSet:
    def read(stem: str, ports: Sequence[onnx.ValueInfoProto]) -> list[Any]:
        count = len(list(folder.glob(f"{stem}_*.pb")))
        return [_read_value(folder / f"{stem}_{index}.pb", ports[index].type) for index in range(count)]

    return read("input", _inputs_of(model)), read("output", model.graph.output)


def _read_value(path: Path, type: onnx.TypeProto) -> Any:
    content = path.read_bytes()
    kind = type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    if kind == "map_type":
        return numpy_helper.to_dict(onnx.MapProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def _read_light(path: Path, model: onnx.ModelProto) -> DataSet:
    """Return the ramp that the expected outputs beside the model were made with, and these."""
    inputs = []
    for port in _inputs_of(model):
        shape = [dim.dim_value or 1 for dim in port.type.tensor_type.shape.dim]
        size = int(np.prod(shape))
        inputs.append((np.arange(size).reshape(shape) / size).astype(np.float32))
    files = [path.with_name(f"{path.stem}_output_{index}.pb") for index in range(len(model.graph.output))]
    return inputs, [numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes())) for file in files]


def _inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs without initializers, which old files list among them."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    return [port for port in model.graph.input if port.name not in initialized]
