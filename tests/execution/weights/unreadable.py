"""Models on mapped files whose pages end the process when touched.

What is left then is what the package promises: content is read by ranges, and never through a map. Run by
test_changed_files.py.

    python -m tests.execution.weights.unreadable FOLDER BACKEND
"""

from __future__ import annotations

import faulthandler
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import gpuexec as gx
from gpuexec.system import mapped
from tests.execution.weights.models import SIDE, make_chain, save_beside, save_inside

X = np.linspace(-1, 1, SIDE, dtype=np.float32).reshape(1, SIDE)


class _Unreadable(mapped._Map):
    """A map without the right to read."""

    def __new__(cls, file: int, nbytes: int, **_: Any) -> _Unreadable:
        return super().__new__(cls, file, nbytes, flags=mmap.MAP_SHARED, prot=0)


def make_mixed() -> onnx.ModelProto:
    """Return a model whose weights go through passes, views, the host and a branch before anything is computed."""
    rng = np.random.default_rng(1)
    weights = {
        "turned": rng.standard_normal((SIDE, SIDE)).astype(np.float32),
        "half": rng.standard_normal((SIDE, SIDE)).astype(np.float16),
        "bytes": rng.integers(0, 255, (SIDE, SIDE), np.uint8),
        "scale": np.full(SIDE, 1e-3, np.float32),
        "zero": np.full(SIDE, 128, np.uint8),
        "mask": rng.integers(0, 2, (SIDE, SIDE)).astype(bool),
        "long": rng.standard_normal(4 * SIDE * SIDE).astype(np.float32),
        "indices": rng.integers(0, SIDE, 4096),
    }
    four = helper.make_tensor("four", TensorProto.INT4, (SIDE, SIDE), rng.integers(-8, 7, SIDE * SIDE))
    nodes = [
        helper.make_node("Transpose", ["turned"], ["t"], perm=[1, 0]),
        helper.make_node("Cast", ["half"], ["h"], to=TensorProto.FLOAT),
        helper.make_node("DequantizeLinear", ["bytes", "scale", "zero"], ["d"], axis=1),
        helper.make_node("DequantizeLinear", ["four", "scale"], ["f"], axis=1),
        helper.make_node("Where", ["mask", "turned", "t"], ["w"]),
        helper.make_node("Constant", [], ["shape"], value_ints=[4, SIDE, SIDE]),
        helper.make_node("Reshape", ["long", "shape"], ["cube"]),
        helper.make_node("Constant", [], ["one"], value_int=1),
        helper.make_node("Gather", ["cube", "one"], ["plane"], axis=0),
        helper.make_node("Transpose", ["cube"], ["back"], perm=[0, 2, 1]),
        helper.make_node("ReduceSum", ["back"], ["total"], keepdims=0),
        *(
            helper.make_node("MatMul", [a, b], [c])
            for a, b, c in (("x", "t", "a"), ("a", "h", "b"), ("b", "d", "c"), ("c", "w", "e"), ("e", "f", "g"))
        ),
        helper.make_node("MatMul", ["g", "plane"], ["p"]),
        helper.make_node("Gather", ["p", "indices"], ["q"], axis=1),
        helper.make_node("Add", ["q", "total"], ["y"]),
        helper.make_node("Unique", ["indices"], ["u"]),
    ]
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIDE])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4096])]
    results.append(helper.make_tensor_value_info("u", TensorProto.INT64, None))
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "mixed", ports, results, [*initializers, four])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(model: gx.Model, backend: gx.BackendType, **options: Any) -> list[Any]:
    """Return the outputs of a model."""
    with gx.Worker(model, backend=backend, **options) as worker:
        worker.schedule(X)
        return [worker.read_output(port.name) for port in model.outputs]


WAYS: dict[str, Callable[[gx.Model, Path, gx.BackendType], list[Any]]] = {
    "run": lambda model, folder, type: run(model, type),
    "compared": lambda model, folder, type: run(model, type, compare_with=gx.BackendType.CPU),
    "saved": lambda model, folder, type: save_again(model, folder, type),
    "as a program": lambda model, folder, type: run_program(model, folder, type),
}


def main(folder: Path, type: gx.BackendType) -> None:
    """Do it all once with maps that can be read, for what is expected, and once without."""
    faulthandler.enable()
    sources = {"chain": make_chain(3), "mixed": make_mixed()}
    expected = {name: run(gx.load(source), type) for name, source in sources.items()}
    mapped._Map = _Unreadable  # type: ignore[misc]
    for name, source in sources.items():
        (folder / name).mkdir()
        for path in (save_beside(source, folder / name), save_inside(source, folder / name)):
            for way, make in WAYS.items():
                for found, wanted in zip(make(gx.load(path), folder / name, type), expected[name], strict=True):
                    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
                print(f"{name}/{path.name} {way}", flush=True)
    model = gx.load(folder / "chain" / "beside.onnx")
    compress(model, type)
    compress(gx.load(folder / "mixed" / "beside.onnx"), type)
    exchange(model, folder, type)


def compress(model: gx.Model, type: gx.BackendType) -> None:
    """Run a model with narrow weights, and measure what they cost."""
    for kind in ("int8", "fp16"):
        narrow = model.compress_weights(kind)
        run(narrow, type)
        gx.measure_weights(model, narrow)
        print(f"{model.info.graph.name} {kind}", flush=True)


def exchange(model: gx.Model, folder: Path, type: gx.BackendType) -> None:
    """Go on with other weights in the middle, from a file."""
    from safetensors.numpy import save_file

    other = make_chain(3, seed=1)
    save_file(
        {each.name: numpy_helper.to_array(each) for each in other.graph.initializer}, folder / "other.safetensors"
    )
    with gx.Worker(model, backend=type) as worker:
        worker.schedule(X)
        worker.replace_weights(folder / "other.safetensors")
        worker.schedule(X)
        np.testing.assert_allclose(worker.read_output("y"), run(gx.load(other), type)[0], rtol=1e-4, atol=1e-4)
    print("weights exchanged", flush=True)


def save_again(model: gx.Model, folder: Path, type: gx.BackendType) -> list[Any]:
    """Return the outputs of a model that was saved in two ways."""
    model.save(folder / "again.onnx")
    model.save(folder / "beside_again.onnx", external_data=True)
    run(gx.load(folder / "again.onnx"), type)
    return run(gx.load(folder / "beside_again.onnx"), type)


def run_program(model: gx.Model, folder: Path, type: gx.BackendType) -> list[Any]:
    """Return the outputs of a model as a program that was saved, loaded and saved again."""
    gx.Program.build({"forward": model}, backend=type).save(folder / "a.gxp")
    gx.Program.load(folder / "a.gxp").save(folder / "b.gxp")
    program = gx.Program.load(folder / "b.gxp", backend=type)
    with program.load_method("forward") as method:
        method.set_input(0, X)
        method.execute()
        return [method.get_output(i).readback_and_clone() for i in range(len(model.outputs))]


if __name__ == "__main__":
    main(Path(sys.argv[1]), gx.BackendType(sys.argv[2]))
