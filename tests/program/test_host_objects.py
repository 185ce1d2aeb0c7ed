"""Programs of models with strings and containers: stored, planned, rehearsed, run as Methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.spec import SEQUENCE, STRING
from gpuexec.ir.target import Target
from gpuexec.program.building import build_contents
from gpuexec.program.cases import Case, make_case
from tests.model.objects import BACKENDS, INPUTS, MIXED, ONE, WORDS, are_equal, parse

F32 = np.float32
RESULTS = [
    [ONE * 2, np.array([0, 4, 6], F32)],
    np.array([2, 2, 0, 4, 6], F32),
    np.append(WORDS, "more"),
    np.array([0, 2, 3], F32),
]
# What follows a sequence is planned only once it is known; the rehearsal follows it.
FOLLOWED = parse(
    """(float[n] x, string[k] w) => (float[m] y, string[k] v) {
      s = SplitToSequence <axis = 0> (x)
      t = SequenceMap (s) <body = f (float[1] e) => (float[1] r) { r = Exp (e) }>
      c = ConcatFromSequence <axis = 0> (t)
      y = Softmax (c)
      v = Identity (w)
    }"""
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_method_takes_and_gives_host_objects(backend: gx.BackendType, tmp_path: Path) -> None:
    path = tmp_path / "mixed.gxp"
    gx.Program.build({"forward": gx.load(MIXED)}).save(path)
    with gx.Program.load(path).load_method("forward", backend=backend) as method:
        for index, name in enumerate(("s", "x", "w")):
            method.set_input(index, INPUTS[name])
        for _ in range(2):
            method.execute()
            found = [method.get_output(index).readback_and_clone() for index in range(4)]
            assert are_equal(found, RESULTS)
        # What stays set is the method's own.
        method.set_input(2, ["changed"])
        method.execute()
        assert method.get_output(2).readback_and_clone().tolist() == ["changed", "more"]
        assert are_equal(method.get_output(0).readback_and_clone(), RESULTS[0])


def test_stored_program_says_the_types_of_its_ports(tmp_path: Path) -> None:
    path = tmp_path / "mixed.gxp"
    gx.Program.build({"forward": gx.load(MIXED)}).save(path)
    meta = gx.Program.load(path).method_meta("forward")
    rows = [meta.input_tensor_meta(index) for index in range(3)]
    assert [row.dtype for row in rows] == [SEQUENCE, np.dtype(F32), STRING]
    assert [meta.input_tag(index) for index in range(3)] == ["Sequence", "Tensor", "Tensor"]
    assert [meta.output_tag(index) for index in range(4)] == ["Sequence", "Tensor", "Tensor", "Optional"]
    assert [(row.nbytes, row.is_memory_planned) for row in rows] == [(None, False)] * 3


def test_memory_of_host_objects_is_refused() -> None:
    method = gx.Program.build({"forward": gx.load(MIXED)}).load_method("forward", backend=gx.BackendType.CPU)
    with method:
        for act in (lambda: method.input_buffer("s"), lambda: method.input_buffer("w", (2,))):
            with pytest.raises(gx.InputError, match=r"Input '[sw]' is .*, which has no memory to write to"):
                act()
        with pytest.raises(gx.InputError, match=r"Output 'v' is string\[m?k?\w*\], which has no memory to write to"):
            method.set_output("v", np.empty(4, object))
        assert method.set_input("w", ["a"]) is None


def test_kernels_behind_sequences_are_found_beforehand() -> None:
    case = Case({"x": np.arange(4, dtype=F32), "w": ["a"]})
    contents = build_contents({"m": gx.load(FOLLOWED)}, architectures=["sm_90"], cases={"m": [case]})
    kernels = {stored.kernel.source for stored in contents.code.kernels}
    assert {"softmax.cu", "elementwise_unary.cu"} <= kernels
    assert contents.methods["m"].gaps == ()


def test_cases_hold_strings_and_compare_them() -> None:
    case = make_case(gx.load(FOLLOWED), Case({"x": np.zeros(2, F32), "w": np.array(["a", "b"])}))
    assert case.outputs["v"].tolist() == ["a", "b"]
    assert (case.allowances["v"].rtol, case.allowances["v"].atol) == (0.0, 0.0)


def test_a_case_of_containers_is_refused() -> None:
    with pytest.raises(gx.InputError, match=r"A case can't hold the input 's', which is sequence\(float32"):
        make_case(gx.load(MIXED), Case(INPUTS))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.append(1), "What is declared of"),
        (lambda row: row.__setitem__(0, "float32"), "of another form"),
        (lambda row: row.__setitem__(2, "float32"), "What is declared of"),
        (lambda row: row.__setitem__(3, "texts"), "not supported"),
        (lambda row: row.__delitem__(3), "What is declared of"),
    ],
    ids=["longer", "no container", "no type", "no key", "shorter"],
)
def test_what_is_declared_of_containers_is_checked(change: Any, message: str) -> None:
    from gpuexec.ir.graph_json import decode_graph, encode_graph

    arrays: list[Any] = []
    data = encode_graph(gx.load(MIXED).graph, lambda array, name: arrays.append(array) or len(arrays) - 1)
    rows = [row[1] for row in data["values"] if row[0] == "s"]
    assert rows == [["sequence", [], ["float32", None], None]]
    change(rows[0])
    with pytest.raises(gx.ModelError, match=message):
        decode_graph(data, arrays)


def test_types_and_strings_come_back_from_json() -> None:
    from gpuexec.ir.graph_json import decode_graph, encode_graph

    arrays: list[Any] = []
    graph = gx.load(MIXED).graph
    again = decode_graph(encode_graph(graph, lambda a, name: arrays.append(a) or len(arrays) - 1), arrays)
    assert [v.declared for v in (*again.inputs, *again.outputs)] == [
        v.declared for v in (*graph.inputs, *graph.outputs)
    ]
    assert [array.tolist() for array in again.constants.values()] == [["more"]]


def test_target_without_kernels_makes_no_plan_of_objects() -> None:
    contents = build_contents({"m": gx.load(MIXED)}, architectures=["sm_90"])
    for target in (Target.named("cpu"), Target.named("sm_90")):
        for plan in contents.methods["m"].plans[target.name]:
            assert not any(port.spec.dtype.hasobject for port in (*plan.inputs, *plan.outputs))
