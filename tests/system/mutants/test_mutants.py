"""Mutation testing itself: the mutator, the list of equivalents, and mutants that must be caught."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import gpuexec.ops  # noqa: F401  (fills the table)
from gpuexec.devices.kernels.kernel_source import kernels_dir
from gpuexec.ir.command import Kernel
from tests.system.mutants import __main__ as main
from tests.system.mutants.__main__ import list_files, rows_of, try_all, try_left
from tests.system.mutants.choose import Trial, choose_apart, choose_calling, choose_trial, choose_trials
from tests.system.mutants.equivalents import EQUIVALENTS
from tests.system.mutants.mutate import CHANGES, Mutant, find_mutants
from tests.system.mutants.plugin import Report
from tests.system.mutants.results import RESULTS, Row, find_unlike, format_rows, identify, rate_of, read_rows, store
from tests.system.mutants.trials import Attempt

SOURCE = """#include "other.cuh"
// for (i < n) __syncthreads();
template <class T>
__global__ void f(const T* x, T* y, int n) {
  __shared__ T shared[32][33];
  for (int i = 0; i < n; ++i) {
    if (i >= n) continue;
    shared[row][i] = x[n - 1];
    __syncthreads();
    if (i < 3) y[i] = shared[i][row];
  }
  int least = a < b ? a : b;
  y[row * (kTile + 1) + column] = is_inside ? x[i] : T(0);
  int held = low < 0 ? 0 : low > n ? n : int(low);
  int next = i < 0 ? 0 : i + 1;
}
"""
EXPECTED = {
    (5, "shared array shorter", "__shared__ T shared[32 - 1][33];"),
    (5, "shared array shorter", "__shared__ T shared[32][33 - 1];"),
    (6, "bound moved", "for (int i = 0; i <= n; ++i) {"),
    (7, "bound moved", "if (i > n) continue;"),
    (7, "guard removed", ""),
    (8, "- 1 forgotten", "shared[row][i] = x[n];"),
    (8, "indices swapped", "shared[i][row] = x[n - 1];"),
    (9, "wait removed", ""),
    (10, "bound moved", "if (i <= 3) y[i] = shared[i][row];"),
    (10, "guard removed", "y[i] = shared[i][row];"),
    (10, "indices swapped", "if (i < 3) y[i] = shared[row][i];"),
    (13, "guard removed", "y[row * (kTile + 1) + column] = x[i];"),
    (15, "bound moved", "int next = i <= 0 ? 0 : i + 1;"),
    (13, "indices swapped", "y[column * (kTile + 1) + row] = is_inside ? x[i] : T(0);"),
}
# Some of each kind, of which `python -m tests.system.mutants` tries all, by file, kind, what the changed line has, and
# which of those; and what tries the mutants of a file.
HANDFUL = (
    ("tile.cuh", "indices swapped", "slab[x + i * dx][k + i * dk] = part[i]", 0),
    ("lp_norm.cu", "bound moved", "column <= end", 0),
    ("lp_norm.cu", "shared array shorter", "kBlockThreads - 1", 0),
    ("pad.cu", "- 1 forgotten", "2 * (extent) - folded", 0),
    ("pad.cu", "bound moved", "if (i > walk.count) return;", 0),
    ("reduce.cuh", "wait removed", "", 3),  # in the loop of a fold over columns
    ("pixel/texture.cuh", "guard removed", "", 0),
    ("pixel/trilu.cu", "bound moved", "distance > diagonal", 0),
    ("trilu.cu", "guard removed", "", 0),
    *(("simt_tile.cuh", "wait removed", "", index) for index in (0, 3)),
    *(("mma_tile.cuh", "wait removed", "", index) for index in (1, 3, 5)),  # the first one is an equivalent
)
COPY = {"copy.cu": ("copy_strided",)}  # for windows with gaps
LONG = "tests/ops/test_lp_norm.py::test_lp_normalization[plan-long-columns]"
TRILU = "tests/ops/test_trilu.py::test_trilu[plan-float32]"
BLITS = Trial((TRILU,), {"pixel/trilu.cu": ("draw_trilu<u32>",)})
TRIALS = {
    "tile.cuh": Trial(("tests/ops/test_matmul.py::test_case[plan-gemm_float64]",), {"matmul.cu": ("gemm<double>",)}),
    "lp_norm.cu": Trial((LONG,), {"lp_norm.cu": ("normalize_lp<float>",), **COPY}),
    "pad.cu": Trial(
        tuple(f"tests/ops/test_pad.py::test_pad[plan-{case}]" for case in ("constant_two_axes", "reflect_inner")),
        {"pad.cu": ("pad<u32>",)},
    ),
    "reduce.cuh": Trial((LONG,), {"lp_norm.cu": ("normalize_lp<float>",), **COPY}),
    "pixel/texture.cuh": BLITS,
    "pixel/trilu.cu": BLITS,
    "trilu.cu": Trial((TRILU,), {"trilu.cu": ("trilu<u32>",)}),
    "simt_tile.cuh": Trial(
        ("tests/ops/test_matmul.py::test_case[plan-matmul_slices]",),
        {"simt_gemm.cu": ("simt_gemm<SmallTile, Copies::kAny>",)},
    ),
    "mma_tile.cuh": Trial(
        ("tests/ops/test_matmul.py::test_case[plan-matmul_slices_half]",),
        {
            "mma_gemm.cu": tuple(
                f"mma_gemm<half, half, FlatDeepMma, Lie::kAlongK, Lie::k{lie}>" for lie in ("AlongK", "Across")
            )
        },
    ),
}


def test_find_mutants_makes_each_mistake_once(tmp_path: Path) -> None:
    (tmp_path / "f.cu").write_text(SOURCE)
    mutants = find_mutants(tmp_path, "f.cu")
    assert {(mutant.line, mutant.kind, mutant.after.strip()) for mutant in mutants} == EXPECTED
    assert len(mutants) == len(EXPECTED)
    assert {mutant.kind for mutant in mutants} == set(CHANGES)


def test_what_the_simulator_does_not_compile_has_no_mutants(tmp_path: Path) -> None:
    conditionals = (
        "#ifdef GPUEXEC_SIM",
        "#else",
        "#endif",
        "#ifndef GPUEXEC_SIM",
        "#else",
        "#endif",
        "#if 1",
        "#endif",
    )
    (tmp_path / "f.cu").write_text("".join(f"{each}\nif (i >= n) return;\n" for each in conditionals))
    assert sorted({mutant.line // 2 for mutant in find_mutants(tmp_path, "f.cu")}) == [1, 3, 5, 6, 7, 8]


def test_handful_is_caught() -> None:
    mutants = [pick(*row) for row in HANDFUL]
    assert {mutant.kind for mutant in mutants} == set(CHANGES)
    rows = try_all(mutants, [TRIALS])
    assert [f"{row}" for row in rows if row.outcome != "caught"] == []


def pick(file: str, kind: str, text: str, index: int) -> Mutant:
    return [m for m in find_mutants(kernels_dir(), file) if m.kind == kind and text in m.after][index]


def test_apply_changes_one_line(tmp_path: Path) -> None:
    (tmp_path / "f.cu").write_text(SOURCE)
    for mutant in find_mutants(tmp_path, "f.cu"):
        changed = [
            number
            for number, (old, new) in enumerate(
                zip(SOURCE.splitlines(), mutant.apply(SOURCE).splitlines(), strict=True), 1
            )
            if old != new
        ]
        assert changed == [mutant.line]


def test_every_equivalent_is_a_mutant_of_today() -> None:
    mutants = [mutant for file in list_files(kernels_dir()) for mutant in find_mutants(kernels_dir(), file)]
    for row in EQUIVALENTS:
        assert {mutant.nth for mutant in mutants if row.is_of(mutant)} == set(row.nth), row


def test_choose_trial_takes_own_tests_first_and_all_instances_they_launch(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text('#include "h.cuh"\n')
    (tmp_path / "h.cuh").write_text("\n")
    (tmp_path / "b.cu").write_text("\n")
    own, other = "tests/ops/test_a.py::t[plan-1]", "tests/ops/test_b.py::t[plan-1]"
    tests_of = {
        Kernel("a.cu", "f<int>"): (own, other),
        Kernel("b.cu", "g"): (other, own),
        Kernel("b.cu", "h"): (other,),
        Kernel("c.cu", "g<Epilogue>", "struct Epilogue {};"): (own,),  # compiled with the plan
    }
    assert choose_trial("a.cu", tmp_path, tests_of) == Trial((own,), {"a.cu": ("f<int>",), "b.cu": ("g",)})
    assert choose_trial("h.cuh", tmp_path, tests_of).tests == (own,)
    assert choose_trial("b.cu", tmp_path, tests_of).tests == (other,)
    assert choose_trials("a.cu", tmp_path, tests_of)[2].tests == (other,)


def test_header_is_tried_by_kernels_and_one_of_blits_by_blits(tmp_path: Path) -> None:
    (tmp_path / "pixel").mkdir()
    for file, text in {
        "a.cu": '#include "h.cuh"\n',
        "h.cuh": "\n",
        "pixel/h.cuh": "\n",
        "pixel/a.cu": '#include "../a.cu"\n#include "h.cuh"\n',
    }.items():
        (tmp_path / file).write_text(text)
    kernel, blit = "tests/ops/test_a.py::t[plan-1]", "tests/ops/test_a.py::t[plan-2]"
    tests_of = {Kernel("a.cu", "f<int>"): (kernel,), Kernel("pixel/a.cu", "draw_f<int>"): (blit,)}
    assert list_files(tmp_path) == ["a.cu", "h.cuh", "pixel/a.cu", "pixel/h.cuh"]
    assert choose_trial("h.cuh", tmp_path, tests_of).tests == (kernel,)
    assert choose_trial("pixel/h.cuh", tmp_path, tests_of).tests == (blit,)
    assert choose_trial("pixel/a.cu", tmp_path, tests_of).tests == (blit,)


def test_header_that_generated_text_calls_is_tried_by_each_set_of_its_functions_first(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text('#include "h.cuh"\n')
    (tmp_path / "h.cuh").write_text(
        "template <class X>\n__device__ inline X read(X x) {\n__device__ int write(int x) {"
    )
    tests = [f"tests/ops/test_a.py::t[plan-{i}]" for i in range(6)]
    tests_of = {
        Kernel("a.cu", "f<int>"): (tests[0], tests[1]),
        Kernel("a.cu", "f<A>", "struct A { read(x); };"): (tests[1], tests[2]),
        Kernel("b.cu", "f<B>", "struct B { read(x); };"): (tests[3],),
        Kernel("a.cu", "f<C>", "struct C { write(read(x)); };"): (tests[4],),
        Kernel("a.cu", "f<D>", "struct D { reads(x); };"): (tests[5],),
        Kernel("pixel/a.cu", "f<C>", "struct E { write(x); };"): (tests[5],),
    }
    first = Trial((tests[1], tests[4], tests[3]), {"a.cu": ("f<int>",)})
    assert choose_calling("h.cuh", tmp_path, tests_of) == choose_trials("h.cuh", tmp_path, tests_of)[0] == first
    assert choose_calling("a.cu", tmp_path, tests_of).tests == ()


def test_kernel_that_waits_no_more_is_tried_by_what_overlaps_it(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text('#include "h.cuh"\n')
    (tmp_path / "h.cuh").write_text("\n")
    own, waits = "tests/ops/test_a.py::t[plan-1]", "tests/ops/test_dependent_launch.py::t[f]"
    tests_of = {Kernel("a.cu", "f<int>"): (own, waits)}
    assert choose_trial("a.cu", tmp_path, tests_of).tests == (own, waits)
    assert choose_trial("h.cuh", tmp_path, tests_of).tests == (own,)


def test_rounds_are_ever_broader_and_repeat_no_test(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("\n")
    tests = {
        Kernel("a.cu", f"f<int, {i}>"): tuple(f"tests/ops/test_a.py::t[plan-{i}-{k}]" for k in range(50))
        for i in range(3)
    }
    few, many, thorough, apart = choose_trials("a.cu", tmp_path, tests)
    assert (len(few.tests), len(many.tests), len(thorough.tests), len(apart.tests)) == (3, 39, 108, 0)
    assert {*few.tests, *many.tests, *thorough.tests} == {test for row in tests.values() for test in row}
    assert few.instances == {"a.cu": ("f<int, 0>",)} and thorough.instances == {
        "a.cu": tuple(k.expression for k in tests)
    }


def test_few_tests_of_a_header_are_those_of_one_file(tmp_path: Path) -> None:
    tests = {}
    for file, count in (("a.cu", 2), ("b.cu", 9)):
        (tmp_path / file).write_text('#include "h.cuh"\n')
        tests[Kernel(file, "f")] = tuple(f"tests/ops/test_{file[0]}.py::t[plan-{k}]" for k in range(count))
    (tmp_path / "h.cuh").write_text("\n")
    few, many, *_ = choose_trials("h.cuh", tmp_path, tests)
    assert set(few.instances or {}) == {"b.cu"} and len(few.tests) == 3
    assert set(many.instances or {}) == {"a.cu", "b.cu"}


def test_last_round_is_test_files_that_name_the_kernel_file(tmp_path: Path) -> None:
    for file in ("a.cu", "b.cu"):
        (tmp_path / file).write_text('#include "h.cuh"\n')
    (tmp_path / "h.cuh").write_text("\n")
    folder = tmp_path / "tests" / "ops"
    folder.mkdir(parents=True)
    (folder / "test_launch.py").write_text('Kernel("a.cu", "f")\n')
    (folder / "test_other.py").write_text('Kernel("c.cu", "f")\n')
    (folder / "test_b.py").write_text("\n")
    (folder / "test_facts.py").write_text('FILES = ["a.cu", "b.cu"]\n')
    tests = {Kernel("a.cu", "f"): ("t",), Kernel("b.cu", "f"): ()}
    apart = Trial(("tests/ops/test_launch.py",), None)
    assert choose_apart("a.cu", tmp_path, tests, folder) == apart
    assert choose_apart("h.cuh", tmp_path, tests, folder) == apart
    assert choose_apart("b.cu", tmp_path, tests, folder) == Trial(("tests/ops/test_b.py",), None)


def test_rate_counts_what_could_be_caught() -> None:
    mutant = Mutant("f.cu", 1, "bound moved", "i < n", "i <= n")
    rows = [Row(mutant, outcome, "why") for outcome in ("caught", "caught", "survived", "equivalent", "refused")]
    assert rate_of(rows) == pytest.approx(2 / 3)
    assert "66.7% caught" in format_rows(rows)


def test_results_are_read_as_they_were_written() -> None:
    text = RESULTS.read_text()
    rows = read_rows(text)
    assert len(rows) == text.count("  ->  ")
    assert text.endswith("\n\n" + "\n".join(map(str, rows)) + "\n")


def test_results_of_a_file_take_the_place_of_those_it_had(tmp_path: Path) -> None:
    files, path = ["a.cu", "b.cu", "c.cu"], tmp_path / "results.txt"
    for file in files:
        (tmp_path / file).write_text(SOURCE)
    tried = {file: [Row(mutant, "caught", file) for mutant in find_mutants(tmp_path, file)] for file in files}
    store(path, {"b.cu": tried["b.cu"], "c.cu": tried["c.cu"]}, tmp_path, files)
    store(path, {"a.cu": tried["a.cu"], "b.cu": tried["b.cu"][:1]}, tmp_path, files)
    expected = [*tried["a.cu"], tried["b.cu"][0], *tried["c.cu"]]
    assert [*map(str, read_rows(path.read_text()))] == [*map(str, expected)]
    store(path, {}, tmp_path, ["a.cu", "c.cu"])
    assert "b.cu" not in path.read_text()


def test_results_name_the_files_that_have_other_mutants(tmp_path: Path) -> None:
    files = ["new.cu", "changed.cu", "moved.cu", "plain.cu"]
    for file in files:
        (tmp_path / file).write_text("// nothing to break\n" if file == "plain.cu" else SOURCE)
    rows = [Row(mutant, "caught", "why") for file in files[1:] for mutant in find_mutants(tmp_path, file)]
    (tmp_path / "changed.cu").write_text(SOURCE.replace("i < 3", "i < 4"))
    (tmp_path / "moved.cu").write_text("// further down\n" + SOURCE)
    assert find_unlike(rows, tmp_path, files) == ["new.cu", "changed.cu"]
    assert "not tried since: new.cu, changed.cu\n" in format_rows(rows, files[:2])


def test_results_distinguish_mutants_that_read_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text(SOURCE + SOURCE)
    mutants = find_mutants(tmp_path, "a.cu")
    rows = read_rows(format_rows([Row(mutant, "caught", "why") for mutant in mutants]))
    assert list(map(identify, mutants)) == [identify(row.mutant) for row in rows]
    assert {mutant.nth for mutant in mutants} == {0, 1}


def test_what_was_caught_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text(SOURCE)
    first, *others = find_mutants(tmp_path, "a.cu")
    known = [Row(first, "caught", "why"), *(Row(mutant, "survived", "") for mutant in others)]
    rows = try_left([first, *others], {identify(row.mutant): row for row in known}, [])
    assert rows_of([first, *others], rows) == [known[0], *(Row(mutant, "untried", "") for mutant in others)]


def test_round_without_tests_leaves_survivors_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.cu").write_text(SOURCE)
    mutants = find_mutants(tmp_path, "a.cu")[:2]
    tried: list[Attempt] = []

    def pass_all(attempts: Sequence[Attempt]) -> list[Report]:
        tried.extend(attempts)
        return [Report("survived")] * len(attempts)

    monkeypatch.setattr(main, "try_mutants", pass_all)
    try_all(mutants, [{"a.cu": Trial((), {})}, {"a.cu": Trial(("test_a.py",), None)}])
    assert [attempt.mutant for attempt in tried] == [None, *mutants]
