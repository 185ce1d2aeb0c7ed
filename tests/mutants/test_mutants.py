"""The mutator, the list of equivalents, and a handful of mutants that must be caught."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpuexec.ops  # noqa: F401  (fills the table)
from gpuexec.command import Kernel
from gpuexec.runtime.kernel_source import kernels_dir
from tests.mutants.__main__ import Row, format_rows, list_files, rate_of, try_all
from tests.mutants.choose import Trial, choose_trial
from tests.mutants.equivalents import EQUIVALENTS
from tests.mutants.mutate import CHANGES, Mutant, find_mutants

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
    (13, "indices swapped", "y[column * (kTile + 1) + row] = is_inside ? x[i] : T(0);"),
}
# One of each kind, by file, kind, what the changed line has, and which of those; and what tries the mutants of a file.
HANDFUL = (
    ("gemm_simt.cuh", "indices swapped", "slab[x + i * dx][k + i * dk] = part[i]", 0),
    ("lp_norm.cu", "bound moved", "column <= end", 0),
    ("lp_norm.cu", "shared array shorter", "kBlockThreads - 1", 0),
    ("pad.cu", "- 1 forgotten", "2 * (extent) - folded", 0),
    ("pad.cu", "bound moved", "if (i > walk.count) return;", 0),
    ("reduce.cuh", "wait removed", "", 3),  # in the loop of a fold over columns
    ("pixel/texture.cuh", "guard removed", "", 0),
    ("pixel/trilu.cu", "bound moved", "distance > diagonal", 0),
    ("trilu.cu", "guard removed", "", 0),
)
COPY = {"copy.cu": ("copy_strided",)}  # for windows with gaps
LONG = "tests/ops/test_lp_norm.py::test_lp_normalization[plan-long-columns]"
TRILU = "tests/ops/test_trilu.py::test_trilu[plan-float32]"
BLITS = Trial((TRILU,), {"pixel/trilu.cu": ("draw_trilu<u32>",)})
TRIALS = {
    "gemm_simt.cuh": Trial(("tests/ops/test_matmul.py::test_case[plan-matmul_2d]",), {"matmul.cu": ("gemm<float>",)}),
    "lp_norm.cu": Trial((LONG,), {"lp_norm.cu": ("normalize_lp<float>",), **COPY}),
    "pad.cu": Trial(
        tuple(f"tests/ops/test_pad.py::test_pad[plan-{case}]" for case in ("constant_two_axes", "reflect_inner")),
        {"pad.cu": ("pad<u32>",)},
    ),
    "reduce.cuh": Trial((LONG,), {"lp_norm.cu": ("normalize_lp<float>",), **COPY}),
    "pixel/texture.cuh": BLITS,
    "pixel/trilu.cu": BLITS,
    "trilu.cu": Trial((TRILU,), {"trilu.cu": ("trilu<u32>",)}),
}


def test_find_mutants_makes_each_mistake_once(tmp_path: Path) -> None:
    (tmp_path / "f.cu").write_text(SOURCE)
    mutants = find_mutants(tmp_path, "f.cu")
    assert {(mutant.line, mutant.kind, mutant.after.strip()) for mutant in mutants} == EXPECTED
    assert len(mutants) == len(EXPECTED)
    assert {mutant.kind for mutant in mutants} == set(CHANGES)


def test_handful_is_caught() -> None:
    mutants = [pick(*row) for row in HANDFUL]
    assert {mutant.kind for mutant in mutants} == set(CHANGES)
    rows = try_all(mutants, [TRIALS], sorted({test.partition("::")[0] for t in TRIALS.values() for test in t.tests}))
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
    (tmp_path / "b.cu").write_text("\n")
    own, other = "tests/ops/test_a.py::t[plan-1]", "tests/ops/test_b.py::t[plan-1]"
    tests_of = {
        Kernel("a.cu", "f<int>"): (own, other),
        Kernel("b.cu", "g"): (other, own),
        Kernel("b.cu", "h"): (other,),
    }
    assert choose_trial("a.cu", tmp_path, tests_of) == Trial((own,), {"a.cu": ("f<int>",), "b.cu": ("g",)})
    assert choose_trial("h.cuh", tmp_path, tests_of).tests == (own,)
    assert choose_trial("b.cu", tmp_path, tests_of).tests == (other,)


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


def test_thorough_trial_leaves_no_test_out(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("\n")
    tests = {
        Kernel("a.cu", f"f<int, {i}>"): tuple(f"tests/ops/test_a.py::t[plan-{i}-{k}]" for k in range(50))
        for i in range(3)
    }
    assert len(choose_trial("a.cu", tmp_path, tests).tests) == 40
    thorough = choose_trial("a.cu", tmp_path, tests, is_thorough=True)
    assert len(thorough.tests) == 150 and len(thorough.instances["a.cu"]) == 3


def test_rate_counts_what_could_be_caught() -> None:
    mutant = Mutant("f.cu", 1, "bound moved", "i < n", "i <= n")
    rows = [Row(mutant, outcome, "why") for outcome in ("caught", "caught", "survived", "equivalent", "refused")]
    assert rate_of(rows) == pytest.approx(2 / 3)
    assert "66.7% caught" in format_rows(rows)
