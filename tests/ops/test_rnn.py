"""LSTM, GRU and RNN against onnxruntime; types and layouts it lacks are derived from those it has.

And against the equations, element by element, for any combination of what a layer may have.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir import operator as gx_operator
from gpuexec.ir.command import Slot
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.nn import rnn, rnn_host
from gpuexec.ops.nn.rnn import DTYPES
from tests.ops.direct import DirectEmitter, lower_and_run
from tests.ops.harness import Case, build_operator, expect, run_case
from tests.ops.rnn_oracle import DEFAULTS, FUNCTIONS, GATES, run_layer

Array = np.ndarray[Any, Any]
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


BOTH: dict[str, Any] = {"direction": "bidirectional"}
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
def test_case(checks: str, case: Case) -> None:
    """Each case passes all checks of the harness."""
    run_case(case, checks)


def by_equations(
    id: str,
    op: str,
    sizes: tuple[int, int, int, int],
    parts: str = "Bhcp",
    dtype: Any = np.float32,
    outputs: tuple[bool, ...] = (),
    **attributes: Any,
) -> Case:
    """A layer of ``[steps, batch, width, hidden]``, with bias (B), initial h, c and peepholes, lengths (l) if named."""
    (steps, batch, width, hidden), gates = sizes, GATES[op]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    state, axes = (directions, batch, hidden), (steps, batch, width)
    if attributes.get("layout"):
        state, axes = (batch, directions, hidden), (batch, steps, width)
    inputs: list[Array | None] = [make(1, *axes), make(2, directions, gates * hidden, width)]
    inputs += [make(3, directions, gates * hidden, hidden) / max(hidden, 1) ** 0.5]
    inputs += [make(4, directions, 2 * gates * hidden) if "B" in parts else None]
    inputs += [np.random.default_rng(8).integers(-1, steps + 2, batch).astype(np.int32) if "l" in parts else None]
    inputs += [make(5, *state) if "h" in parts else None]
    if op == "LSTM":
        inputs += [make(6, *state) if "c" in parts else None]
        inputs += [make(7, directions, 3 * hidden) if "p" in parts else None]
    inputs = [x if x is None or x.dtype != np.float32 else x.astype(dtype) for x in inputs]
    expected = tuple(y.astype(dtype) for y in run_layer(op, inputs, attributes))
    outputs = outputs or (True,) * len(expected)
    terms = (width + hidden) * max(steps, 1)
    return Case(id, op, tuple(inputs), attributes, outputs=outputs, expected=expected, opset=22, terms=terms)


# Without hidden_size, and in larger layers, blocks share the units; with it a small layer has blocks of its own.
LARGER = [
    by_equations("one_unit", "LSTM", (3, 1, 1, 1)),
    by_equations("one_unit_alone", "GRU", (3, 1, 1, 1), hidden_size=1),
    by_equations("slices", "GRU", (4, 3, 5, 40), **BOTH),
    by_equations("slices_linear", "GRU", (4, 3, 5, 40), "Bl", linear_before_reset=1),
    by_equations("tiles", "LSTM", (3, 9, 4, 17), "Bhcpl", **BOTH),
    by_equations("tiles_alone", "LSTM", (3, 9, 4, 17), "Bhcpl", hidden_size=17, **BOTH),
    by_equations("tiles_of_doubles", "GRU", (3, 5, 4, 9), "Bhl", np.float64, hidden_size=9, **BOTH),
    by_equations("more_slices_than_blocks", "RNN", (2, 2, 3, 250), "Bh", **BOTH),
    by_equations("most_units_alone", "RNN", (2, 5, 3, 256), "Bh", hidden_size=256),
    by_equations("beyond_most_units_alone", "RNN", (2, 1, 3, 257), "", hidden_size=257),
    by_equations("whole_tiles_alone", "LSTM", (3, 4, 2, 5), hidden_size=5, **BOTH),
    by_equations("reset_of_many_units", "GRU", (2, 5, 3, 100), hidden_size=100),
    *(by_equations(f"double_{op}", op, (4, 3, 5, 6), "Bhcpl", np.float64, **BOTH) for op in GATES),
    *(by_equations(f"only_y_{op}", op, (3, 2, 4, 5), outputs=(True, False)) for op in ("GRU", "RNN")),
    *(by_equations(f"only_last_{op}", op, (3, 2, 4, 5), outputs=(False, True)) for op in ("GRU", "RNN")),
    by_equations("only_y", "LSTM", (3, 2, 4, 5), outputs=(True, False, False)),
    by_equations("only_last_h", "LSTM", (3, 2, 4, 5), outputs=(False, True, False)),
    by_equations("only_last_c", "LSTM", (3, 2, 4, 5), outputs=(False, False, True)),
    *(by_equations(f"no_batch_{op}", op, (3, 0, 4, 5)) for op in GATES),
    *(by_equations(f"no_width_{op}", op, (3, 2, 0, 5)) for op in GATES),
    *(by_equations(f"no_units_{op}", op, (3, 2, 4, 0)) for op in GATES),
]


@pytest.mark.parametrize("case", LARGER, ids=lambda case: case.id)
def test_layers_by_equations(checks: str, case: Case) -> None:
    """Sizes at and around what a block takes, and outputs nobody wants."""
    run_case(case, checks)


@pytest.mark.parametrize("op", sorted(GATES))
def test_first_versions(checks: str, op: str) -> None:
    """Attributes of the first opsets are dropped or replaced by later ones."""
    case = by_equations("first", op, (3, 2, 4, 5), "Bh")
    run_case(dataclasses.replace(case, opset=1, attributes={"output_sequence": 1, "hidden_size": 5}), checks)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_any_layer(checks: str, data: st.DataObject) -> None:
    """Any combination of a layer's options agrees with the reference."""
    op = data.draw(st.sampled_from(sorted(GATES)))
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    attributes: dict[str, Any] = {"direction": direction}
    names = len(DEFAULTS[op]) * (2 if direction == "bidirectional" else 1)
    if data.draw(st.booleans()):
        attributes["activations"] = data.draw(
            st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=names, max_size=names)
        )
        for which in ("alpha", "beta"):
            attributes[f"activation_{which}"] = data.draw(st.lists(st.sampled_from([0.25, 0.5, 0.75]), max_size=names))
    own = {"LSTM": "input_forget", "GRU": "linear_before_reset", "RNN": "layout"}[op]
    for flag in ("layout", own):
        attributes[flag] = data.draw(st.integers(0, 1))
    attributes["clip"] = data.draw(st.sampled_from([0.0, 0.5]))
    sizes = tuple(data.draw(st.integers(low, high)) for low, high in ((0, 4), (1, 6), (1, 5), (1, 20)))
    attributes["hidden_size"] = data.draw(st.sampled_from([0, sizes[3]]))
    parts = "".join(sorted(data.draw(st.sets(st.sampled_from("Bhcpl")))))
    dtype = data.draw(st.sampled_from(DTYPES))
    run_case(by_equations("any", op, sizes, parts, dtype, **attributes), checks)  # type: ignore[arg-type]


@pytest.mark.parametrize("op", sorted(GATES))
def test_numbers_that_are_none_stay_in_their_row(checks: str, op: str) -> None:
    """A row of the batch with NaN or inf in it makes no other row worse."""
    case = by_equations("special", op, (3, 5, 4, 6))
    x = np.array(case.inputs[0])
    x[0, 1, 2], x[1, 3, 0] = np.nan, np.inf
    with np.errstate(all="ignore"):
        made = build_operator(case)[0].compute(x, *case.inputs[1:])
    expected = tuple(y for y in made if y is not None)
    assert all(np.isnan(y[..., 1, :]).any() for y in expected) and len(expected) == len(case.outputs)
    run_case(
        Case("special", op, (x, *case.inputs[1:]), {}, outputs=case.outputs, expected=expected, opset=22, terms=99),
        checks,
    )


@pytest.mark.parametrize("op", sorted(GATES))
def test_any_output_may_be_absent(op: str) -> None:
    """Each output alone holds the bits it holds beside the others."""
    operator, inputs = build_operator(by_equations("", op, (3, 2, 4, 5)))
    together = lower_and_run(operator, inputs)
    for index, expected in enumerate(together):
        wanted = [place == index for place in range(len(together))]
        for named in (wanted, wanted[: index + 1]):
            np.testing.assert_array_equal(lower_and_run(operator, inputs, wanted=named)[0], expected)


def test_barrier_begins_at_zero() -> None:
    """A word that held something else would let blocks of a GPU pass before the last has come."""
    operator, inputs = build_operator(by_equations("", "RNN", (3, 2, 4, 40)))
    emit = DirectEmitter()
    slots = tuple(None if x is None else emit.slot(x) for x in inputs)
    assert operator.lower is not None
    operator.lower(emit, slots, (emit.fresh((3, 1, 2, 40), np.float32), None))
    kernel, arguments = emit.launches[-1]
    barrier = arguments[11]
    assert kernel.expression == "recur<float>" and isinstance(barrier, Slot) and emit.read(barrier).tolist() == [0]


@pytest.mark.parametrize("op", sorted(GATES))
def test_commands_are_the_same_for_all_sizes(op: str) -> None:
    """Sizes decide on grids and numbers alone; scratch never grows as they shrink."""
    emits: list[DirectEmitter] = []
    for sizes in ((9, 9, 8, 40), (1, 1, 2, 3)):
        emit = DirectEmitter(emits[0].choices if emits else None)
        emits.append(emit)
        operator, inputs = build_operator(by_equations("", op, sizes))
        slots = tuple(None if x is None else emit.slot(x) for x in inputs)
        wanted = [emit.fresh(y.shape, y.dtype) for y in operator.compute(*inputs) if y is not None]
        assert operator.lower is not None
        operator.lower(emit, slots, tuple(wanted))
    large, small = emits
    assert [kernel for kernel, _ in large.launches] == [kernel for kernel, _ in small.launches]
    assert all(a.nbytes <= b.nbytes for a, b in zip(small.arrays, large.arrays, strict=True))


@pytest.mark.parametrize("op", sorted(GATES))
def test_attributes_are_those_of_onnx(op: str) -> None:
    """Names and defaults; what ONNX has no default of is 0 or empty, and of functions empty stands for the usual."""
    schema = onnx.defs.get_schema(op, 22)
    theirs = {
        name: onnx.helper.get_attribute_value(a.default_value) if a.default_value.name else None
        for name, a in schema.attributes.items()
    }
    operator = gx_operator.build(op, {})
    ours = {name: getattr(operator, name) or None for name in theirs}
    plain = {k: v.decode() if isinstance(v, bytes) else v or None for k, v in theirs.items()}
    usual = plain.pop("activations")
    assert ours.pop("activations") is None and usual in (None, [b"Tanh", b"Tanh"])
    assert ours == plain


def test_double_is_computed_in_double(checks: str) -> None:
    """One step of a plain layer, worked out."""
    x, w, r = (
        make(1, 1, 2, 3).astype(np.float64),
        make(2, 1, 4, 3).astype(np.float64),
        make(3, 1, 4, 4).astype(np.float64),
    )
    answer = np.tanh(x[0] @ w[0].T)[None]
    run_case(
        Case("double", "RNN", (x, w, r), {}, outputs=(True, True), expected=(answer[:, None], answer), terms=3), checks
    )


def test_threshold_is_let_through(checks: str) -> None:
    """Unlike what the operator of this name does, a layer's function gives what equals alpha."""
    x, w, r = (np.array(content, np.float32) for content in ([[[0.5], [0.25]]], [[[1.0]]], [[[0.0]]]))
    attributes = {"activations": ["ThresholdedRelu"], "activation_alpha": [0.5]}
    answer = np.array([[[0.5], [0.0]]], np.float32)
    run_case(Case("at", "RNN", (x, w, r), attributes, outputs=(True, True), expected=(answer[:, None], answer)), checks)


@pytest.mark.parametrize("op", sorted(GATES))
def test_large_states_of_few_rows_are_multiplied_by_blocks(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """Blocks of columns give what whole weights give, and where a row is alone there are none."""
    operator, inputs = build_operator(by_equations("", op, (3, 16, 4, 256), "Bh"))
    made = operator.compute(*inputs)
    chosen: list[int] = []
    monkeypatch.setattr(rnn, "choose_block", lambda *shape: chosen.append(rnn_host.choose_block(*shape)) or 0)
    for y, whole in zip(made, operator.compute(*inputs), strict=True):
        assert y is not None and whole is not None
        np.testing.assert_allclose(y, whole, rtol=1e-5, atol=1e-6)
    assert chosen == [128] * len(chosen) and chosen
    assert rnn_host.choose_block(1, 256, 1024) == rnn_host.choose_block(2, 64, 256) == 0
    assert rnn_host.choose_block(30, 256, 1024) == 128 and rnn_host.choose_block(40, 256, 1024) == 64
    assert rnn_host.choose_block(64, 512, 2048) == 0


def test_no_steps_leave_the_initial_state(checks: str) -> None:
    """An empty sequence gives an empty Y and the state it began with."""
    h, c = make(5, 1, 2, 3), make(6, 1, 2, 3)
    inputs = (make(1, 0, 2, 4), make(2, 1, 12, 4), make(3, 1, 12, 3), None, None, h, c)
    run_case(
        Case("empty", "LSTM", inputs, {}, outputs=(True,) * 3, expected=(np.zeros((0, 1, 2, 3), np.float32), h, c)),
        checks,
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
        ({}, {4: (2,)}, r"sequence_lens to be int32\[2\], got float32"),
        ({}, {0: (5, 2)}, "rank 3"),
    ],
)
def test_refuses(attributes: dict[str, Any], change: dict[int, tuple[int, ...]], words: str) -> None:
    """Inputs that do not fit are refused, with what was expected."""
    shapes: list[tuple[int, ...] | None] = [(5, 2, 4), (1, 12, 4), (1, 12, 3), None, None]
    for index, shape in change.items():
        shapes[index] = shape
    with pytest.raises(InputError, match=words):
        gx_operator.build("LSTM", attributes).infer(
            *(None if s is None else TensorSpec(s, np.dtype(np.float32)) for s in shapes)
        )
