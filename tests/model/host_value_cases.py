"""Cases of operators that need host values before their output shapes are known, and their models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices.backend import Backend

Array = np.ndarray[Any, Any]
Arrays = tuple[Array | None, ...]
OPSET = 21
# Terms of a sum that computes content on the device: too many for the host.
TERMS = 16384

X = np.linspace(-3, 4, 24, dtype=np.float32).reshape(2, 3, 4)
SQUARE = np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6)
_BODY = (("i", TensorProto.INT64, ()), ("c", TensorProto.BOOL, ()), ("v", TensorProto.FLOAT, (2, 3, 4)))


@dataclass(frozen=True)
class HostCase:
    """A node, and inputs for it that differ in content the host needs.

    ``needed`` are the positions of inputs that must reach the host; ``inputs`` are several sets of them, of equal
    dtypes and ranks. ``read`` are values that must be read too, of 8 bytes each, once an input is on a device.
    ``exact`` is False where a device may round otherwise than the host.
    """

    id: str
    op: str
    needed: tuple[int, ...]
    inputs: tuple[Arrays, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[int, ...] = (TensorProto.FLOAT,)
    exact: bool = True
    read: tuple[str, ...] = ()

    def make_model(self, way: str, number: int = 0) -> onnx.ModelProto:
        """Return a model of the node.

        ``way`` says what an input ``a<i>`` the host needs is: ``constant``; ``given``, an input of the model;
        ``light``, what little arithmetic makes of the input ``s<i>``; ``heavy``, a long sum of the input ``s<i>``.
        Constants are those of the set ``number``.
        """
        nodes, inputs, constants = [], [], {}
        names = []
        for position, array in enumerate(self.inputs[number]):
            name = "" if array is None else f"a{position}"
            if self.op != "If" or position == 0:  # a branch takes what it needs from around it
                names.append(name)
            if array is None:
                continue
            if position in self.needed and way == "constant":
                constants[name] = array
            elif position in self.needed and way in ("light", "heavy"):
                made, needed = (_make_light if way == "light" else _make_heavy)(position, array)
                nodes += made
                constants.update(needed)
                inputs.append(_declare(f"s{position}", array, array.ndim + (way == "heavy")))
            else:
                inputs.append(_declare(name, array, array.ndim))
        outputs = [f"y{number}" for number in range(len(self.outputs))]
        nodes.append(helper.make_node(self.op, names, outputs, name="subject", **self.attributes))
        types = [
            helper.make_tensor_value_info(name, code, None) for name, code in zip(outputs, self.outputs, strict=True)
        ]
        graph = helper.make_graph(nodes, self.id, inputs, types, [_constant(*row) for row in constants.items()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def load(self, way: str) -> gx.Model:
        """Load the model."""
        return gx.load(self.make_model(way).SerializeToString())

    def feed(self, way: str, number: int) -> dict[str, Array]:
        """Return inputs of the model for one set."""
        rows = {}
        for position, array in enumerate(self.inputs[number]):
            if array is None or (position in self.needed and way == "constant"):
                continue
            if position in self.needed and way == "light":
                rows[f"s{position}"] = _invert(array)
            elif position in self.needed and way == "heavy":
                rows[f"s{position}"] = np.zeros((*array.shape, TERMS), array.dtype)
                rows[f"s{position}"][..., 7] = array
            else:
                rows[f"a{position}"] = array
        return rows

    def expect(self, number: int) -> list[Array]:
        """Return what onnxruntime gives for one set."""
        import onnxruntime

        session = onnxruntime.InferenceSession(
            self.make_model("constant", number).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return [np.asarray(array) for array in session.run(None, self.feed("constant", number))]


def _declare(name: str, array: Array, rank: int) -> onnx.ValueInfoProto:
    dims = [f"{name}_{axis}" for axis in range(rank)]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims)


def _constant(name: str, array: Array) -> onnx.TensorProto:
    return helper.make_tensor(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, array.tobytes(), raw=True
    )


def _invert(array: Array) -> Array:
    """Return what `_make_light` makes the array of."""
    return ~array if array.dtype == np.bool_ else array + array.dtype.type(1)


def _make_light(position: int, array: Array) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    source, target = f"s{position}", f"a{position}"
    if array.dtype == np.bool_:
        return [helper.make_node("Not", [source], [target], name=f"make{position}")], {}
    one = f"one{position}"
    return [helper.make_node("Sub", [source, one], [target], name=f"make{position}")], {one: np.array(1, array.dtype)}


def _make_heavy(position: int, array: Array) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    op = "ReduceMax" if array.dtype == np.bool_ else "ReduceSum"
    last = f"last{position}"
    node = helper.make_node(op, [f"s{position}", last], [f"a{position}"], name=f"make{position}", keepdims=0)
    return [node], {last: np.array([-1])}


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def scalar(value: Any, dtype: Any = np.int64) -> Array:
    return np.array(value, dtype)


def _branch(name: str, op: str, **attributes: Any) -> onnx.GraphProto:
    node = helper.make_node(op, ["a1"], ["made"], name=f"{name}_{op}", **attributes)
    return helper.make_graph([node], name, [], [helper.make_tensor_value_info("made", TensorProto.FLOAT, None)])


def _loop_body() -> onnx.GraphProto:
    nodes = [
        helper.make_node("Identity", ["c"], ["c_out"], name="again"),
        helper.make_node("Add", ["v", "v"], ["v_out"], name="twice"),
        helper.make_node("Neg", ["v"], ["row"], name="minus"),
    ]
    outputs = [("c_out", TensorProto.BOOL, ()), ("v_out", TensorProto.FLOAT, (2, 3, 4))]
    return helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info(*row) for row in _BODY],
        [helper.make_tensor_value_info(*row) for row in (*outputs, ("row", TensorProto.FLOAT, (2, 3, 4)))],
    )


_REDUCTIONS = tuple(
    HostCase(
        f"Reduce{kind}",
        f"Reduce{kind}",
        (1,),
        ((np.abs(X) + 1, ints(1)), (np.abs(X) + 1, ints(0, -1)), (np.abs(X) + 1, ints(2, 0, 1))),
        exact=kind in ("Max", "Min"),
    )
    for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
)
_BOXES = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11], [0, 20, 1, 21]]], np.float32)
_SCORES = np.array([[[0.9, 0.8, 0.7, 0.6]]], np.float32)

CASES = (
    HostCase("Reshape", "Reshape", (1,), ((X, ints(4, 6)), (X, ints(0, -1)), (X, ints(2, 3, 4, 1)))),
    HostCase("Expand", "Expand", (1,), ((X, ints(5, 1, 3, 4)), (X, ints(1)), (X, ints(2, 2, 3, 4)))),
    HostCase("Tile", "Tile", (1,), ((X, ints(2, 1, 3)), (X, ints(0, 1, 1)), (X, ints(1, 1, 1)))),
    HostCase("Pad", "Pad", (1,), ((X, ints(0, 1, 2, 3, 0, -1)), (X, ints(0, 0, 0, 0, 0, 0)))),
    HostCase(
        "Pad of axes",
        "Pad",
        (1, 3),
        ((X, ints(1, 2), scalar(7, np.float32), ints(1)), (X, ints(0, 1), scalar(5, np.float32), ints(-1))),
    ),
    HostCase("Slice", "Slice", (1, 2), ((X, ints(0, 1), ints(1, 3)), (X, ints(0, 0), ints(2, 1)))),
    HostCase(
        "Slice of axes and steps",
        "Slice",
        (1, 2, 3, 4),
        ((X, ints(3, 2), ints(0, 0), ints(2, 1), ints(-1, -2)), (X, ints(0, 1), ints(9, 9), ints(1, 2), ints(2, 1))),
    ),
    HostCase("Squeeze", "Squeeze", (1,), ((X[None, :, :1], ints(0)), (X[None, :, :1], ints(0, 2)))),
    HostCase("Unsqueeze", "Unsqueeze", (1,), ((X, ints(0)), (X, ints(-1, 2)))),
    HostCase(
        "Split", "Split", (1,), ((X, ints(1, 3)), (X, ints(4, 0))), {"axis": 2}, (TensorProto.FLOAT, TensorProto.FLOAT)
    ),
    HostCase(
        "TopK", "TopK", (1,), ((X, ints(2)), (X, ints(4)), (X, ints(0))), {}, (TensorProto.FLOAT, TensorProto.INT64)
    ),
    HostCase(
        "Range",
        "Range",
        (0, 1, 2),
        ((scalar(2), scalar(11), scalar(3)), (scalar(5), scalar(0), scalar(-1)), (scalar(1), scalar(1), scalar(1))),
        outputs=(TensorProto.INT64,),
    ),
    HostCase(
        "OneHot",
        "OneHot",
        (1,),
        ((ints(0, 2, -1), scalar(3), ints(0, 1)), (ints(0, 2, -1), scalar(5), ints(0, 1))),
        outputs=(TensorProto.INT64,),
    ),
    HostCase("ConstantOfShape", "ConstantOfShape", (0,), ((ints(2, 3),), (ints(0, 5),), (ints(4),))),
    HostCase(
        "Resize by scales",
        "Resize",
        (2,),
        tuple((SQUARE, None, np.array([1, 1, *scales], np.float32)) for scales in ((2, 2), (0.5, 3), (1, 1))),
        {"mode": "nearest"},
    ),
    HostCase(
        "Resize by sizes",
        "Resize",
        (3,),
        tuple((SQUARE, None, None, ints(1, 1, *sizes)) for sizes in ((8, 3), (2, 12))),
        {"mode": "linear"},
        exact=False,
    ),
    HostCase(
        "Resize of a region",
        "Resize",
        (1, 3),
        tuple(
            (SQUARE, np.array([0, 0, start, 0, 1, 1, 0.5, 1], np.float32), None, ints(1, 1, *sizes))
            for start, sizes in ((0.25, (3, 3)), (0.0, (5, 4)))
        ),
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"},
        exact=False,
    ),
    *_REDUCTIONS,
    HostCase(
        "NonMaxSuppression",
        "NonMaxSuppression",
        (2,),
        tuple((_BOXES, _SCORES, ints(max_boxes), np.array([0.5], np.float32)) for max_boxes in (2, 9, 0)),
        outputs=(TensorProto.INT64,),
        read=("subject.count",),
    ),
    HostCase("CumSum", "CumSum", (1,), ((X, scalar(0)), (X, scalar(-1))), exact=False),
    HostCase(
        "Loop",
        "Loop",
        (0, 1),
        ((scalar(3), scalar(True, np.bool_), X), (scalar(5), scalar(True, np.bool_), X)),
        {"body": _loop_body()},
        (TensorProto.FLOAT, TensorProto.FLOAT),
    ),
    HostCase(
        "If",
        "If",
        (0,),
        ((scalar(True, np.bool_), X), (scalar(False, np.bool_), X)),
        {"then_branch": _branch("then", "Neg"), "else_branch": _branch("otherwise", "Transpose", perm=[2, 0, 1])},
    ),
)


def put_on_device(array: Array, backend: gx.BackendType | Backend) -> gx.Tensor:
    """Return a device tensor of this content, which the host does not know."""
    node = helper.make_node("Identity", ["x"], ["y"], name="pass")
    graph = helper.make_graph([node], "pass", [_declare("x", array, array.ndim)], [_declare("y", array, array.ndim)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    with gx.Worker(gx.load(model.SerializeToString()), backend=backend) as worker:
        worker.schedule(array)
        return worker.copy_output()
