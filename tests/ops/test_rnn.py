"""LSTM, GRU and RNN against onnxruntime; what it does not run (other types, layout 1) is derived from what it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec import operator as gx_operator
from gpuexec.errors import InputError
from gpuexec.ops.rnn import DTYPES
from gpuexec.spec import TensorSpec, dtype_row
from tests.ops.harness import Case, expect, run_case

Array = np.ndarray[Any, Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 4, 6


def make(seed: int, *shape: int) -> Array:
    """Return reproducible content."""
    return (np.random.default_rng(seed).standard_normal(shape) * 0.7).astype(np.float32)


def layer(
    id: str,
    op: str,
    *given: str,
    dtype: Any = np.float32,
    lengths: list[int] | None = None,
    layout: int = 0,
    opset: int = 14,
    steps: int = STEPS,
    **attributes: Any,
) -> Case:
    """Return a layer; ``given`` names the optional inputs it has, of B, h0, c0, P."""
    gates, directions = GATES[op], 2 if attributes.get("direction") == "bidirectional" else 1
    inputs: list[Array | None] = [
        make(1, steps, BATCH, WIDTH),
        make(2, directions, gates * HIDDEN, WIDTH),
        make(3, directions, gates * HIDDEN, HIDDEN),
    ]
    inputs.append(make(4, directions, 2 * gates * HIDDEN) if "B" in given else None)
    inputs.append(None if lengths is None else np.array(lengths, np.int32))
    inputs.append(make(5, directions, BATCH, HIDDEN) if "h0" in given else None)
    if op == "LSTM":
        inputs.append(make(6, directions, BATCH, HIDDEN) if "c0" in given else None)
        inputs.append(make(7, directions, 3 * HIDDEN) if "P" in given else None)
    inputs = [x if x is None or x.dtype != np.float32 else x.astype(dtype) for x in inputs]
    attributes["hidden_size"] = HIDDEN
    outputs = (True,) * (3 if op == "LSTM" else 2)
    wide = tuple(x if x is None or x.dtype != dtype else x.astype(np.float32) for x in inputs)
    answers = expect(Case(id, op, wide, attributes, outputs=outputs, oracle="onnxruntime", opset=opset))
    answers = tuple(y.astype(dtype) for y in answers)
    if layout:
        attributes["layout"] = 1
        inputs = [x.swapaxes(0, 1).copy() if x is not None and i in (0, 5, 6) else x for i, x in enumerate(inputs)]
        answers = (answers[0].transpose(2, 0, 1, 3), *(y.swapaxes(0, 1) for y in answers[1:]))
    return Case(id, op, tuple(inputs), attributes, outputs=outputs, expected=answers, opset=opset, terms=WIDTH + HIDDEN)


BOTH = {"direction": "bidirectional"}
CASES = [
    *(layer(f"{op.lower()}_{dtype_row(d).name}", op, "B", dtype=d) for op in GATES for d in DTYPES if d != np.float64),
    *(layer(f"{op.lower()}_plain", op) for op in GATES),
    *(
        layer(f"{op.lower()}_{direction}", op, "B", "h0", "c0", "P", direction=direction)
        for op in GATES
        for direction in ("forward", "reverse", "bidirectional")
    ),
    *(
        layer(f"{op.lower()}_lengths_{direction}", op, "B", lengths=[5, 2, 3], direction=direction)
        for op in GATES
        for direction in ("forward", "reverse", "bidirectional")
    ),
    *(layer(f"{op.lower()}_lengths_with_state", op, "B", "h0", "c0", lengths=[1, 5, 4], **BOTH) for op in GATES),
    *(layer(f"{op.lower()}_layout", op, "B", "h0", "c0", layout=1, **BOTH) for op in GATES),
    *(layer(f"{op.lower()}_one_step", op, "B", steps=1) for op in GATES),
    *(layer(f"{op.lower()}_opset_7", op, "B", opset=7) for op in GATES),
    *(layer(f"{op.lower()}_clip", op, "B", clip=0.4) for op in GATES),
    layer("lstm_peepholes_clip", "LSTM", "B", "P", clip=0.5),
    layer("lstm_input_forget", "LSTM", "B", "P", input_forget=1),
    layer(
        "lstm_activations",
        "LSTM",
        "B",
        activations=["HardSigmoid", "Relu", "Tanh"],
        activation_alpha=[0.3],
        activation_beta=[0.4],
    ),
    layer(
        "lstm_activations_of_two_directions",
        "LSTM",
        activations=["Sigmoid", "Tanh", "Softsign", "HardSigmoid", "LeakyRelu", "Tanh"],
        activation_alpha=[0.3, 0.1],
        activation_beta=[0.4],
        **BOTH,
    ),
    layer("gru_linear_before_reset", "GRU", "B", "h0", linear_before_reset=1, **BOTH),
    *(
        layer(f"rnn_{name.lower()}", "RNN", "B", activations=[name], activation_alpha=[0.6], activation_beta=[0.3])
        for name in ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
    ),
    *(
        layer(f"rnn_{name.lower()}", "RNN", "B", activations=[name])
        for name in ("Relu", "Sigmoid", "Softsign", "Softplus")
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case) -> None:
    """Each case passes all checks of the harness."""
    run_case(case)


def test_double_is_computed_in_double() -> None:
    """One step of a plain layer, worked out."""
    x, w, r = (
        make(1, 1, 2, 3).astype(np.float64),
        make(2, 1, 4, 3).astype(np.float64),
        make(3, 1, 4, 4).astype(np.float64),
    )
    answer = np.tanh(x[0] @ w[0].T)[None]
    run_case(Case("double", "RNN", (x, w, r), {}, outputs=(True, True), expected=(answer[:, None], answer), terms=3))


def test_no_steps_leave_the_initial_state() -> None:
    """An empty sequence gives an empty Y and the state it began with."""
    h, c = make(5, 1, 2, 3), make(6, 1, 2, 3)
    inputs = (make(1, 0, 2, 4), make(2, 1, 12, 4), make(3, 1, 12, 3), None, None, h, c)
    run_case(
        Case("empty", "LSTM", inputs, {}, outputs=(True,) * 3, expected=(np.zeros((0, 1, 2, 3), np.float32), h, c))
    )


@pytest.mark.parametrize(
    ("attributes", "change", "words"),
    [
        ({"direction": "both"}, {}, "direction"),
        ({"direction": "bidirectional"}, {}, "W to be float32"),
        ({"hidden_size": 5}, {}, "hidden_size"),
        ({"activations": ("Tanh",)}, {}, "3 activations per direction"),
        ({"activations": ("Tanh", "Tanh", "Cosh")}, {}, "Cosh"),
        ({}, {3: (1, 12)}, "B to be"),
        ({}, {4: (3,)}, "sequence_lens"),
        ({}, {0: (5, 2)}, "rank 3"),
    ],
)
def test_refuses(attributes: dict[str, Any], change: dict[int, tuple[int, ...]], words: str) -> None:
    """What does not fit is refused in words that say what was expected."""
    shapes: list[tuple[int, ...] | None] = [(5, 2, 4), (1, 12, 4), (1, 12, 3), None, None]
    for index, shape in change.items():
        shapes[index] = shape
    with pytest.raises(InputError, match=words):
        gx_operator.build("LSTM", attributes).infer(
            *(None if s is None else TensorSpec(s, np.dtype(np.float32)) for s in shapes)
        )
