"""Strings, sequences and optionals on their way through a run: they stay on the host, everything else on the device."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.running.binding import count_host_bytes
from gpuexec.running.inputs import HostArray
from gpuexec.spec import STRING, TensorSpec
from tests.objects import BACKENDS, INPUTS, MIXED, ONE, WORDS, are_equal, check_everywhere, parse, run_on

TWO = np.arange(3, dtype=np.float32)
# A graph, its inputs and outputs; onnx's evaluator takes an absent condition for false, so they are worked by hand.
LOOPS: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "sequence carried": (
        """(int64 n, float[k] x) => (seq(float[k]) y) {
          e = SequenceEmpty ()
          y = Loop (n, , e) <body = b (int64 i, bool c, seq(float[k]) s) => (bool d, seq(float[k]) t) {
            d = Identity (c) f = CastLike (i, x) z = Add (x, f) t = SequenceInsert (s, z) }>
        }""",
        {"n": np.int64(3), "x": TWO},
        [[TWO, TWO + 1, TWO + 2]],
    ),
    "optional carried": (
        """(int64 n, optional(seq(float[])) o, float[k] x) => (seq(float[]) y) {
          y = Loop (n, , o) <body = b (int64 i, bool c, optional(seq(float[])) s) => (bool d, seq(float[]) t) {
            d = Identity (c)
            h = OptionalHasElement (s)
            u = If (h) <then_branch = g1 () => (seq(float[]) u1) { u1 = OptionalGetElement (s) },
                        else_branch = g2 () => (seq(float[]) u2) { u2 = SequenceConstruct (x) }>
            t = SequenceInsert (u, x) }>
        }""",
        {"n": np.int64(2), "o": None, "x": TWO},
        [[TWO, TWO, TWO]],
    ),
    "ends by a length": (
        """(seq(float[]) s) => (seq(float[]) y, float[r, 2] rows) {
          c = Constant <value = bool {1}> ()
          m = Constant <value = int64 {3}> ()
          y, rows = Loop ( , c, s) <body = b (int64 i, bool c1, seq(float[]) a)
            => (bool d, seq(float[]) t, float[2] row) <int64 z = {0}> {
            row = SequenceAt (a, z)
            t = SequenceInsert (a, row)
            l = SequenceLength (t)
            d = Less (l, m) }>
        }""",
        {"s": [ONE]},
        [[ONE, ONE, ONE], np.ones((2, 2), np.float32)],
    ),
    "strings stacked": (
        """(int64 n, string[k] x) => (string[r, k] y, string[k] z) {
          z, y = Loop (n, , x) <body = b (int64 i, bool c, string[k] s) => (bool d, string[k] t, string[k] u)
            <int64[1] back = {-1}, int64[1] end = {-9}, int64[1] axis = {0}> {
            d = Identity (c) t = Slice (s, back, end, axis, back) u = Identity (t) }>
        }""",
        {"n": np.int64(3), "x": WORDS},
        [np.stack([WORDS[::-1], WORDS, WORDS[::-1]]), WORDS[::-1]],
    ),
    "no trips": (
        """(int64 n, string[k] x) => (string[r, k] y, string[k] z) {
          z, y = Loop (n, , x) <body = b (int64 i, bool c, string[k] s) => (bool d, string[k] t, string[k] u) {
            d = Identity (c) t = Identity (s) u = Identity (s) }>
        }""",
        {"n": np.int64(0), "x": WORDS},
        [np.empty((0, 3), object), WORDS],
    ),
    # What a first trip would fail at is no error where there is none; rows are as declared then.
    "no trips over nothing": (
        """(int64 n, seq(float[]) s, optional(float[2]) o, float[k, 2] x) => (float[r, 2] y, float[2, q] z) {
          y = Loop (n, ) <body = b (int64 i, bool c) => (bool d, float[2] w) {
            d = Identity (c) e = SequenceAt (s, i) f = OptionalGetElement (o) w = Add (e, f) }>
          z = Scan <num_scan_inputs = 1, scan_output_axes = [1], body = b2 (float[2] a) => (float[2] f2)
            <int64 p = {0}> { e2 = SequenceAt (s, p) f2 = Add (a, e2) }> (x)
        }""",
        {"n": np.int64(0), "s": [], "o": None, "x": np.empty((0, 2), np.float32)},
        [np.empty((0, 2), np.float32), np.empty((2, 0), np.float32)],
    ),
    "no slices": (
        """(seq(float[]) s, float[k, 2] x) => (float[r, 2] y) {
          y = Scan <num_scan_inputs = 1, body = b (float[2] a) => (float[?] f) <int64 p = {0}> {
            e = SequenceAt (s, p) f = Add (a, e) }> (x)
        }""",
        {"s": [ONE], "x": np.empty((0, 2), np.float32)},
        [np.empty((0, 2), np.float32)],
    ),
    "captured": (
        """(int64 n, seq(float[]) s, float[2] x) => (float[2] y) {
          y = Loop (n, , x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
            d = Identity (c) e = SequenceAt (s, i) w = Add (v, e) }>
        }""",
        {"n": np.int64(2), "s": [ONE, ONE * 3], "x": ONE},
        [ONE * 5],
    ),
    "nested": (
        """(int64 n, float[2] x) => (seq(float[2]) y) {
          e = SequenceEmpty ()
          y = Loop (n, , e) <body = b (int64 i, bool c, seq(float[2]) s) => (bool d, seq(float[2]) t) {
            d = Identity (c)
            t = Loop (n, , s) <body = b2 (int64 i2, bool c2, seq(float[2]) s2) => (bool d2, seq(float[2]) t2) {
              d2 = Identity (c2) k = Add (i, i2) f = CastLike (k, x) g = Mul (x, f) t2 = SequenceInsert (s2, g) }> }>
        }""",
        {"n": np.int64(2), "x": ONE},
        [[ONE * 0, ONE, ONE, ONE * 2]],
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loop_with_host_objects(name: str) -> None:
    text, inputs, expected = LOOPS[name]
    check_everywhere(parse(text), inputs, expected)


def test_scan_over_strings_in_either_direction() -> None:
    model = parse(
        """(string[2, k] x, string[2] s) => (string[2] t, string[2, k] y) {
          t, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1], scan_input_directions = [1],
                       scan_output_directions = [1],
                       body = b (string[2] a, string[2] e) => (string[2] c, string[2] f) {
                         c = Identity (e) f = Identity (a) }> (s, x)
        }"""
    )
    x = np.array([["a", "b", "c"], ["d", "e", "f"]], object)
    start = np.array(["u", "v"], object)
    # Walked from the back, each trip gives what the one before took; the last stands first.
    expected = [x[:, 0], np.array([["b", "c", "u"], ["e", "f", "v"]], object)]
    check_everywhere(model, {"x": x, "s": start}, expected)


@pytest.mark.parametrize("condition", [True, False])
def test_branches_give_host_objects(condition: bool) -> None:
    model = parse(
        """(bool c, seq(float[]) s, string[k] w) => (seq(float[]) y, string[k] v) {
          y, v = If (c) <then_branch = a () => (seq(float[]) y1, string[k] v1) { y1 = Identity (s) v1 = Identity (w) },
                         else_branch = b () => (seq(float[]) y2, string[1] v2) <string[1] n = {"none"}> {
                           y2 = SequenceErase (s) v2 = Identity (n) }>
        }"""
    )
    check_everywhere(model, {"c": np.array(condition), "s": [ONE, TWO], "w": WORDS})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "node",
    ["Shape (s)", "Size (s)", "Transpose (s)", "Squeeze (s)", "Dropout (s)", "Expand (s, n)", "Add (s, s)",
     "SequenceConstruct (s)", "Concat <axis = 0> (n, s)"],
)  # fmt: skip
def test_operators_of_tensors_refuse_containers(backend: gx.BackendType, node: str) -> None:
    model = parse(f"(seq(float[]) s, int64[1] n) => (float[] y) {{ y = {node} }}")
    name = node.split()[0]
    place = node.removesuffix(")").split("(")[1].split(", ").index("s")
    with pytest.raises(
        gx.InputError, match=f"{name} '{name}_0': {name} expects tensors, got a sequence as input {place}"
    ):
        run_on(backend, model, {"s": [ONE], "n": np.ones(1, np.int64)})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("kind", "given", "got"),
    [
        ("seq(float[])", [ONE], "sequence"),
        ("string", np.array("a", object), r"string\[\]"),
        ("float", np.float32(1), r"float32\[\]"),
        ("bool[n]", np.array([True, False]), r"bool\[2\]"),
        ("bool[n]", np.empty(0, bool), r"bool\[0\]"),
    ],
)
def test_an_if_takes_one_bool_alone(backend: gx.BackendType, kind: str, given: Any, got: str) -> None:
    model = parse(
        f"""({kind} c, float[n] x) => (float[n] y) {{
          y = If (c) <then_branch = a () => (float[n] y1) {{ y1 = Neg (x) }},
                      else_branch = b () => (float[n] y2) {{ y2 = Abs (x) }}>
        }}"""
    )
    inputs = {"c": given, "x": np.ones(len(given) if kind == "bool[n]" else 2, np.float32)}
    with pytest.raises(gx.InputError, match=f"If 'If_0': the condition must be one bool, got {got}"):
        run_on(backend, model, inputs)


def test_an_if_decided_by_an_optional_takes_its_branch_anew_each_run() -> None:
    model = gx.load(
        parse(
            """(optional(float[n]) o, float[n] x) => (float[n] y) {
              h = OptionalHasElement (o)
              y = If (h) <then_branch = a () => (float[n] y1) { e = OptionalGetElement (o) y1 = Add (e, x) },
                          else_branch = b () => (float[n] y2) { y2 = Neg (x) }>
            }"""
        )
    )
    for backend in BACKENDS:
        with gx.Worker(model, backend=backend) as worker:
            found = [worker.run({"o": each, "x": ONE}) for each in (None, ONE * 4, None, ONE * 2)]
        assert are_equal(found, [-ONE, ONE * 5, -ONE, ONE * 3])


def test_mixed_model_gives_what_its_nodes_say() -> None:
    check_everywhere(
        MIXED,
        INPUTS,
        [
            [ONE * 2, np.array([0, 4, 6], np.float32)],
            np.array([2, 2, 0, 4, 6], np.float32),
            np.append(WORDS, "more"),
            np.array([0, 2, 3], np.float32),
        ],
    )


def test_textures_know_no_host_objects_either() -> None:
    found = run_on(gx.BackendType.SIMULATOR_PIXEL, MIXED, INPUTS)
    assert are_equal(found, run_on(gx.BackendType.CPU, MIXED, INPUTS))


@pytest.mark.parametrize("backend", BACKENDS)
def test_host_objects_are_host_calls_with_their_reason(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        worker.run(INPUTS)
        found = {row.operator: row.why for row in worker.report().host_calls}
    own = "sequences and optionals are containers on the host"
    assert found == {
        **dict.fromkeys(("SequenceInsert", "ConcatFromSequence", "Optional"), own),
        "Concat": "host object",
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_plan_holds_a_host_object(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        worker.run(INPUTS)
        specs = [port.spec for plan in worker.plans for port in (*plan.inputs, *plan.outputs)]
        constants = [buffer.name for plan in worker.plans for buffer in plan.buffers]
    assert specs and not any(spec.dtype.hasobject for spec in specs)
    assert "more" not in constants


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_strings_need_no_other_plan(backend: gx.BackendType) -> None:
    model = gx.load(
        parse(
            """(string[k] w, float[2] x) => (float[2] y, string[1] z) <int64[1] i = {0}, int64[1] o = {1}> {
              y = Exp (x) z = Slice (w, i, o) }"""
        )
    )
    with gx.Worker(model, backend=backend) as worker:
        for words in (["a"], ["b"], ["c", "d"], ["a"]):
            assert worker.run({"w": words, "x": ONE})[1].tolist() == words[:1]
        assert worker.report().plans == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_stay_set_and_are_copied(backend: gx.BackendType) -> None:
    words, rows = WORDS.copy(), [ONE.copy()]
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        worker.schedule({"s": rows, "x": TWO, "w": words})
        words[0], rows[0][:] = "changed", 9
        worker.flush_schedule(blocking=True)
        found = worker.run({"x": TWO})
    assert are_equal(found[0], [ONE * 2, TWO * 2])
    assert found[2].tolist() == [*WORDS, "more"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_read_back_is_the_callers_own(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        run = worker.schedule(INPUTS)
        first = [tensor.readback_and_clone() for tensor in run.outputs.values()]
        first[0][0][:], first[2][0] = 7, "changed"
        again = [tensor.readback_and_clone() for tensor in run.outputs.values()]
    assert are_equal(again[0], [ONE * 2, np.array([0, 4, 6], np.float32)])
    assert again[2][0] == "a"


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_last_beyond_later_runs_and_the_worker(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        requests = [t.readback_request() for t in worker.schedule(INPUTS).outputs.values()]
        for value in range(4):
            worker.run({**INPUTS, "x": np.full(3, value, np.float32), "w": [str(value)]})
    assert are_equal(requests[0].result(), [ONE * 2, np.array([0, 4, 6], np.float32)])
    assert are_equal(requests[2].result(), np.append(WORDS, "more"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_put_into_a_sequence_is_not_written_by_later_runs(backend: gx.BackendType) -> None:
    model = gx.load(parse("(float[n] x) => (seq(float[n]) y) { y = SequenceConstruct (x, x) }"))
    with gx.Worker(model, backend=backend, frames=1) as worker:
        request = worker.schedule({"x": ONE}).peek_output().readback_request()
        worker.run({"x": ONE * 5})
        assert are_equal(request.result(), [ONE, ONE])


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_ways_to_read_agree(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        run = worker.schedule(INPUTS)
        words, sequence = run.outputs["v"], run.outputs["t"]
        wanted = np.append(WORDS, "more")
        awaited = asyncio.run(words.readback_and_clone_async())
        assert all(are_equal(each, wanted) for each in (awaited, np.asarray(words), words[:], worker.read_output("v")))
        assert are_equal(words.download_to_native_array(), wanted)
        assert are_equal(words.download_to_array(np.empty(4, object)), wanted)
        assert (words.shape, words.dtype, len(words), str(words.spec)) == ((4,), np.dtype(object), 4, "string[4]")
        assert are_equal(asyncio.run(sequence.readback_and_clone_async()), worker.read_output("t"))
        assert str(sequence.spec) == "sequence"


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_makes_no_sense_for_host_objects_is_refused(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        run = worker.schedule(INPUTS)
        run.wait()
        words, sequence = run.outputs["v"], run.outputs["t"]
        with pytest.raises(BufferError, match=r"string\[4\], which DLPack does not know"):
            np.from_dlpack(words)
        assert not hasattr(words, "__cuda_array_interface__")
        for act in (
            lambda: words.data_on_backend.max_capacity,
            lambda: worker.copy_output("v"),
            lambda: worker.copy_output("t"),
        ):
            with pytest.raises(gx.InputError, match="has no bytes on a device"):
                act()
        with pytest.raises(gx.InputError, match="nothing to upload to"):
            words.data_on_backend.upload(WORDS)
        with pytest.raises(gx.InputError, match=r"'t' is no array but a sequence: call readback_and_clone\(\)"):
            np.asarray(sequence)
        with pytest.raises(gx.ImplicitSyncError, match="SequenceInsert"):
            worker.record(INPUTS)
        assert are_equal(worker.run()[3], np.array([0, 2, 3], np.float32))  # it goes on


def test_a_memory_of_strings_is_refused() -> None:
    model = gx.load(parse("(string[k] w) => (string[k] v) { v = Identity (w) }"))
    with pytest.raises(gx.InputError, match=r"Memory 'w' .* a memory lies on the device"):
        model.bind_state({"v": "w"})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("s", np.ones(2, np.float32), "Input 's': expected a list of values, got a ndarray"),
        ("s", "text", "Input 's': expected a list of values, got a str"),
        ("s", [np.ones(2, np.int32)], r"element 0: expected float32\[...\], got int32\[2\]"),
        ("w", np.ones(2), "Input 'w': expected strings, got float64"),
        ("w", [b"\xff"], "not text in UTF-8"),
        ("w", ["a", 3, None], "expected strings, got an element of type int"),
        ("w", [["a"]], r"expects string\[k\], got string\[1,1\]"),
        ("x", np.array(["a"]), "expects float32, got str"),
        ("x", None, r"Input 'x': expected float32\[n\], got a NoneType"),
        ("x", {"a": 1}, r"Input 'x': expected float32\[n\], got a dict"),
        ("x", [1.0, None], r"Input 'x': expected float32\[n\], got Python objects"),
        ("s", [{1: 2}], r"element 0: expected float32\[...\], got a dict"),
    ],
)
def test_inputs_of_another_kind_are_refused_and_the_worker_goes_on(
    backend: gx.BackendType, name: str, given: Any, message: str
) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        with pytest.raises(gx.InputError, match=message):
            worker.run({**INPUTS, name: given})
        assert worker.run(INPUTS)[2].tolist() == [*WORDS, "more"]


@pytest.mark.parametrize("words", [["a", "ü"], np.array(["a", "ü"]), [b"a", "ü".encode()], ("a", "ü")])
def test_strings_come_in_any_form(words: Any) -> None:
    model = parse("(string[k] w) => (string[k] v) { v = Identity (w) }")
    for backend in BACKENDS:
        assert run_on(backend, model, {"w": words})[0].tolist() == ["a", "ü"]


@pytest.mark.parametrize("producer", BACKENDS)
@pytest.mark.parametrize("consumer", BACKENDS)
def test_a_pending_tensor_of_host_objects_is_an_input_elsewhere(
    producer: gx.BackendType, consumer: gx.BackendType
) -> None:
    model = gx.load(MIXED)
    with gx.Worker(model, backend=producer) as first, gx.Worker(model, backend=consumer) as second:
        made = first.schedule(INPUTS)
        found = second.run({"s": made.outputs["t"], "x": ONE, "w": made.outputs["v"]})
        again = second.run({"x": ONE})
    assert are_equal(found[0], [ONE * 4, np.array([0, 8, 12], np.float32), ONE * 2])
    assert found[2].tolist() == [*WORDS, "more", "more"]
    assert are_equal(again, found)


def test_a_tensor_of_another_kind_is_refused_as_an_input() -> None:
    model = gx.load(MIXED)
    with gx.Worker(model, backend=gx.BackendType.CPU) as first, gx.Worker(model, backend=gx.BackendType.CPU) as second:
        made = first.schedule(INPUTS)
        with pytest.raises(gx.InputError, match=r"Input 'w' expects string\[k\], got sequence"):
            second.schedule({"s": made.outputs["t"], "x": ONE, "w": made.outputs["t"]})


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_of_a_container_names_its_node_and_ends_the_run_alone(backend: gx.BackendType) -> None:
    model = gx.load(parse("(seq(float[]) s, int64 p) => (float[k] y) { y = SequenceAt (s, p) }"))
    with gx.Worker(model, backend=backend) as worker:
        with pytest.raises(gx.InputError, match=r"SequenceAt 'SequenceAt_0': SequenceAt: position 2 is outside"):
            worker.run({"s": [ONE], "p": np.int64(2)})
        assert are_equal(worker.run({"s": [ONE], "p": np.int64(-1)}), ONE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strict_refuses_host_objects_by_name(backend: gx.BackendType) -> None:
    with (
        gx.Worker(gx.load(MIXED), backend=backend, strict=True) as worker,
        pytest.raises(gx.ImplicitSyncError, match="SequenceInsert 'SequenceInsert_1'"),
    ):
        worker.schedule(INPUTS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_modes_of_a_worker_take_host_objects(backend: gx.BackendType) -> None:
    model, wanted = gx.load(MIXED), run_on(backend, MIXED, INPUTS)
    modes: tuple[dict[str, Any], ...] = (
        {"synchronous": True},
        {"compare_with": gx.BackendType.CPU},
        {"watch": "raise"},
        {"max_bytes": 1 << 20},
        {"frames": 1},
        {"profiler": gx.Profiler()},
    )
    for options in modes:
        with gx.Worker(model, backend=backend, **options) as worker:
            assert are_equal(worker.run(INPUTS), wanted), options


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tap_of_a_host_object_tells_nothing_and_others_go_on(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        worker.tap({"q": ["max"], "v": ["max"], "c": ["max"]})
        run = worker.schedule(INPUTS)
        run.wait()
        assert [each.max for each in run.inspection.history("c")] == [6.0]
        for name in ("q", "v"):
            with pytest.raises(gx.InputError, match=f"no tapped value '{name}'"):
                run.inspection.history(name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_show_host_objects_as_layers(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        names = {name for step in worker.schedule_iterable(INPUTS) for name in step.nodes}
        assert {"SequenceInsert_1", "Concat_4", "ConcatFromSequence_3"} <= names
        assert are_equal(worker.read_output("v"), np.append(WORDS, "more"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_prepare_takes_host_objects_or_nothing_for_them(backend: gx.BackendType) -> None:
    model = gx.load(parse("(string[k] w, float[n] x) => (string[k] v, float[n] y) { v = Identity (w) y = Exp (x) }"))
    with gx.Worker(model, backend=backend) as worker:
        assert worker.prepare({"w": (2,), "x": TWO}) is not None
        assert worker.prepare({"w": ["a", "b"], "x": TWO}) is not None
        worker.run({"w": ["a", "b"], "x": TWO})
        assert worker.report().plans == 1


def test_saved_model_keeps_strings_types_and_bodies(tmp_path: Any) -> None:
    path = tmp_path / "saved.onnx"
    gx.load(MIXED).save(path, external_data=True)
    saved = onnx.load(path)
    onnx.checker.check_model(saved, full_check=True)
    again = gx.load(path)
    assert [str(port.spec) for port in (*again.inputs, *again.outputs)] == [
        str(port.spec) for port in (*gx.load(MIXED).inputs, *gx.load(MIXED).outputs)
    ]
    assert are_equal(run_on(gx.BackendType.CPU, again, INPUTS), run_on(gx.BackendType.CPU, MIXED, INPUTS))


def test_saved_empty_optional_keeps_its_type(tmp_path: Any) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    graph = helper.make_graph(
        [helper.make_node("Optional", [], ["o"], type=kind)],
        "g",
        [],
        [helper.make_value_info("o", helper.make_optional_type_proto(kind))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    gx.load(model).save(tmp_path / "saved.onnx")
    (node,) = onnx.load(tmp_path / "saved.onnx").graph.node
    assert node.attribute[0].tp == kind
    for backend in BACKENDS:
        assert run_on(backend, gx.load(tmp_path / "saved.onnx"), {}) == [None]


@pytest.mark.parametrize("backend", BACKENDS)
def test_strings_of_the_model_are_replaced(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        worker.run(INPUTS)
        for given in (np.array(["x"]), ["x"], np.array([b"x"]), np.array(["x"], object)):
            worker.replace_weights({"more": given})
            assert worker.run()[2].tolist() == [*WORDS, "x"]
        with pytest.raises(gx.InputError, match=r"'more' is string\[1\], got float64\[1\]"):
            worker.replace_weights({"more": [1.0]})
        with pytest.raises(gx.InputError, match="Weight 'more': expected strings, got an element of type int"):
            worker.replace_weights({"more": np.array([1], object)})
        assert worker.run()[2].tolist() == [*WORDS, "x"]


def test_host_objects_take_no_memory_of_a_device() -> None:
    spec = TensorSpec((1000,), STRING)
    assert count_host_bytes({"w": HostArray(spec, np.full(1000, "a", object))}) == 0


def test_strings_are_folded_and_containers_are_not(tmp_path: Any) -> None:
    model = gx.load(
        parse(
            """(int64 p) => (string[k] y) <string[2] a = {"a", "b"}, int64[1] axis = {0}> {
              b = Concat <axis = 0> (a, a)
              s = SequenceConstruct (a, b)
              y = SequenceAt (s, p)
            }"""
        )
    )
    assert [node.operator.name for node in model.graph.nodes] == ["SequenceConstruct", "SequenceAt"]
    assert ["a", "b", "a", "b"] in [array.tolist() for array in model.graph.constants.values()]
    gx.Program.build({"forward": model}).save(tmp_path / "a.gxp")
    for backend in BACKENDS:
        with gx.Program.load(tmp_path / "a.gxp").load_method("forward", backend=backend) as method:
            method.execute({"p": np.int64(1)})
            assert method.get_output(0).readback_and_clone().tolist() == ["a", "b", "a", "b"]
