"""Refusal of truncated, altered and newer program files."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import gpuexec as gx
from gpuexec.ir.containers import make_sequence
from gpuexec.program.building import build_contents
from gpuexec.program.container import parse_json, write_contents
from gpuexec.program.contents import Contents, StoredMethod
from gpuexec.program.contents_json import decode_array
from tests.program.altering import FORWARD, GRAPH, PLAN, alter, read, set_at
from tests.program.program_seeds import build_program, load_linear, program_bytes
from tests.system.bad_programs.parts import Parts


@pytest.mark.parametrize("kept", [0, 7, 100, 600, -1, -256, -3000])
def test_cut_file_is_refused(kept: int) -> None:
    with pytest.raises(gx.ModelError, match=r"bytes|cut|read"):
        read(program_bytes()[:kept])


def test_file_with_something_behind_it_is_refused() -> None:
    with pytest.raises(gx.ModelError, match=r"its header speaks of \d+: it was cut, or something was added"):
        read(program_bytes() + b"\0" * 256)


@pytest.mark.feature("E6")
@pytest.mark.parametrize("part", ["program", "weights", "code"])
def test_altered_byte_is_refused_and_located(part: str) -> None:
    content = bytearray(program_bytes())
    low, high = Parts.take_apart(program_bytes()).places()[part]
    content[(low + high) // 2] ^= 1
    with pytest.raises(gx.ModelError, match=f"altered or damaged: SHA-256 of its {part} is "):
        read(bytes(content))


@pytest.mark.feature("E6")
def test_minimal_verification_leaves_hashes_alone() -> None:
    content = bytearray(program_bytes())
    _, high = Parts.take_apart(program_bytes()).places()["code"]
    content[high - 1] ^= 1
    assert read(bytes(content), gx.Verification.MINIMAL).methods
    with pytest.raises(gx.ModelError, match="altered"):
        read(bytes(content))


@pytest.mark.feature("E6")
def test_verification_is_none_but_what_there_is(tmp_path: Path) -> None:
    write_contents(build_program(), tmp_path / "small.gxp")
    content = bytearray((tmp_path / "small.gxp").read_bytes())
    low, high = Parts.take_apart(bytes(content)).places()["weights"]
    content[(low + high) // 2] ^= 1
    with pytest.raises(gx.ModelError, match="altered or damaged: SHA-256 of its weights"):
        gx.Program.load(bytes(content))
    assert gx.Program.load(bytes(content), gx.Verification.MINIMAL).method_names
    with pytest.raises(gx.InputError, match="FULL, MINIMAL"):
        gx.Program.load(tmp_path / "small.gxp", "full")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["9" * 21, "-" + "9" * 4000, "1" * 5000])
def test_number_that_no_field_holds_is_refused_before_anything_is_computed_with_it(text: str) -> None:
    with pytest.raises(gx.ModelError, match="is no number of 64 bits"):
        parse_json(f"[{text}]".encode(), "The text")


def test_newer_major_format_is_refused_before_anything_else() -> None:
    def change(parts: Parts) -> None:
        parts.metadata["format"] = [2, 0]
        parts.program = {"of": "a form nobody knows"}

    with pytest.raises(gx.ModelError, match=r"format 2\.0, this release reads 1\.x\. Update"):
        read(alter(change))


def add_input(parts: Parts) -> None:
    """Give the Scan an input that its body does not take."""
    (scan,) = [node for node in parts.program["methods"]["nested"]["graph"]["nodes"] if node[1] == "Scan"]
    scan[3].append(scan[3][0])


def drop_capture(parts: Parts) -> None:
    """Leave out an input that the Scan's body takes."""
    (scan,) = [node for node in parts.program["methods"]["nested"]["graph"]["nodes"] if node[1] == "Scan"]
    scan[3][-1] = None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            set_at("arrays", 0, 2, to=1 << 40),
            r"An array of \d+ bytes at 1099511627776 is outside the \d+ of the weights",
        ),
        (set_at("arrays", 0, 2, to=8), "is outside"),
        (set_at("arrays", 0, 1, to=[1 << 62, 1 << 62]), "can't exist"),
        (set_at("arrays", 0, 1, to=[-1]), "can't exist"),
        (set_at("arrays", 0, 0, to="float128"), "Element type 'float128' is not supported"),
        (set_at("code", 0, "offset", to=1 << 30), r"A kernel of \d+ bytes at 1073741824 is outside"),
        (set_at("code", 0, "key", to="../../x"), "key or symbol of a kernel is none"),
        (set_at("code", 0, "nbytes", to=True), "no 'nbytes'"),
        (set_at("methods", to=[]), "no 'methods'"),
        (set_at("format", to=[1, 0]), r"of format \[1, 0\], its header \[1, 1\]"),
        (set_at(*GRAPH, "nodes", 0, 1, to="Nonsense"), r"not registered here: Nonsense \("),
        (set_at(*GRAPH, "nodes", 1, 2, "axis", to="1"), "Softmax .*: attribute axis is '1', expected int"),
        (set_at(*GRAPH, "nodes", 1, 2, "axes", to=1), "Softmax .* has no attribute axes"),
        (set_at(*GRAPH, "nodes", 0, 3, to=[99, 1]), "99 is no number of 4"),
        (set_at(*GRAPH, "nodes", 0, 3, to=[2, 1]), "is not made before it is used|made by no node"),
        (set_at(*GRAPH, "outputs", to=[-1]), "-1 is no number of 4"),
        (set_at(*GRAPH, "values", 0, 1, to=["float32", [-4, 4]]), "declares dims that are none"),
        (set_at(*FORWARD, "dims", to={"m": 3}), "no dimension 'm'"),
        (set_at(*FORWARD, "dims", to={"n": [8, 1]}), "no extent, nor a range"),
        (set_at(*FORWARD, "info", "opsets", to={"": "18"}), "opsets is no int"),
        (set_at(*FORWARD, "cases", 0, "inputs", to={"q": 0}), "names 'q', which is none of the model's"),
        (set_at(*FORWARD, "cases", 0, "outputs", to={}), "What a case allows of 'y'"),
        (set_at(*FORWARD, "cases", 0, "inputs", to={}), "A case lacks an input"),
        (set_at(*FORWARD, "gaps", to=[7]), r"Its gaps are \[7\], expected sentences"),
        (set_at(*FORWARD, "memories", to=[{"input": "x", "output": "y"}]), "A memory is"),
        (add_input, r"Scan '.*': expected \d inputs, .*; got \d and 2"),
        (drop_capture, r"Scan '.*': expected \d inputs, all but the first 0 of them given"),
        (set_at(*PLAN, "target", to="sm_90"), "A plan for cpu does not hold: it is for 'sm_90'"),
        (set_at(*PLAN, "buffers", 0, "nbytes", to=1), "A plan for cpu does not hold"),
        (set_at(*PLAN, "layout", to=3), "layout is of another type"),
        (set_at(*PLAN, "segment", "edges", to=[[0, 0]]), r"Edge \(0, 0\) does not lead forward"),
    ],
)
def test_altered_program_is_refused_by_name(change: Callable[[Parts], None], message: str) -> None:
    with pytest.raises(gx.ModelError, match=message):
        read(alter(change))


def test_text_nested_too_deep_is_refused() -> None:
    parts = Parts.take_apart(program_bytes())
    with pytest.raises(gx.ModelError, match=r"can't be read|nested too deep"):
        read(parts.put_together(program=b"[" * 200_000))


def test_message_about_a_name_without_end_has_one() -> None:
    parts = Parts.take_apart(program_bytes())
    set_at(*GRAPH, "name", to="a" * 100_000)(parts)
    set_at(*GRAPH, "nodes", to=3)(parts)
    with pytest.raises(gx.ModelError, match=r"Method 'forward': Graph 'aaa.* has no nodes") as caught:
        read(parts.put_together())
    assert len(str(caught.value)) < 2000


def test_bool_that_is_neither_is_refused() -> None:
    parts = Parts.take_apart(program_bytes())
    offset = next(offset for name, _, offset in parts.program["arrays"] if name == "bool")
    parts.weights[offset] = 2
    with pytest.raises(gx.ModelError, match="bytes other than 0 and 1"):
        read(parts.put_together())


def test_onnx_file_is_refused_with_the_command_that_helps() -> None:
    with pytest.raises(gx.ModelError, match="got an ONNX model"):
        read((Path(__file__).resolve().parents[2] / "examples/models/digits.onnx").read_bytes())
    with pytest.raises(gx.ModelError, match="Make one: gpuexec compile"):
        read(safetensors.numpy.save({"x": np.zeros(4, np.uint8)}))


def test_constant_that_is_a_container_is_refused_by_name(tmp_path: Path) -> None:
    model = load_linear()
    value = next(iter(model.graph.constants))
    model.graph = dataclasses.replace(model.graph, constants={value: make_sequence([np.zeros(2, np.float32)])})
    with pytest.raises(gx.InputError, match=rf"%{value.name} can't be stored: it is sequence\(1 of float32\[2\]\)"):
        write_contents(Contents({"m": StoredMethod(model)}), tmp_path / "a.gxp")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "row", "message"),
    [
        (b'["a"]', ["string", [2], 0, 5], "expected 2 texts"),
        (b'["a", 1]', ["string", [2], 0, 8], "expected 2 texts"),
        (b"[", ["string", [2], 0, 1], "can't be read"),
        (b'["a"]', ["string", [1], 0, 600], "outside"),
        (b'["a"]', ["string", [1], 0], "no tensor that a file holds"),
        (b'["a"]', ["sequence", [], 0], "no tensor that a file holds"),
        (b'["a"]', ["string", [1], 0, "5"], "expected \\[dtype, shape, offset\\]"),
    ],
    ids=["few", "number", "cut off", "outside", "no size", "container", "size"],
)
def test_strings_of_another_form_are_refused(content: bytes, row: list[object], message: str) -> None:
    with pytest.raises(gx.ModelError, match=message):
        decode_array(row, memoryview(content), True)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN"])
def test_number_that_is_not_finite_is_refused(number: str) -> None:
    with pytest.raises(gx.ModelError, match=r"It can't be read: .* is no"):
        parse_json(f'{{"rtol": [{number}]}}'.encode(), "It")


def test_half_a_character_is_refused_in_what_is_read_and_written() -> None:
    with pytest.raises(gx.ModelError, match="surrogates not allowed"):
        read(alter(set_at("writer", to="\ud800")))
    with pytest.raises(gx.InputError, match=r"can't be stored: .*surrogates not allowed"):
        write_contents(build_contents({"\ud800": load_linear()}), io.BytesIO())
    file = io.BytesIO()
    write_contents(build_contents({"\U0001f600 \\ud": load_linear()}), file)
    assert list(read(file.getvalue()).methods) == ["\U0001f600 \\ud"]


@pytest.mark.parametrize(("place", "number"), [(0, -1.0), (1, -0.5), (0, 1e400)])
def test_allowance_that_judges_nothing_is_refused(place: int, number: float) -> None:
    with pytest.raises(gx.ModelError, match=r"is a finite number from 0 on|can't be read"):
        read(alter(set_at(*FORWARD, "cases", 0, "allowances", "y", place, to=number)))
