"""Source rewriting for a host compiler, with line numbers kept."""

from __future__ import annotations

import pytest

from gpuexec.devices.kernels.kernel_source import strip_comments
from gpuexec.devices.simulator.rewrite import find_launch_bounds, rewrite_shared
from gpuexec.errors import KernelError


@pytest.mark.parametrize(
    ("declaration", "typed"),
    [
        ("__shared__ float x[2][33];", "typedef float x__type[2][33];"),
        ("__shared__ int n;", "typedef int n__type;"),
        ("__shared__ Pair<Key, 4> tile[kRows * (kCols + 1)];", "typedef Pair<Key, 4> tile__type[kRows * (kCols + 1)];"),
        ("__shared__ typename Acc<T>::type part[32];", "typedef typename Acc<T>::type part__type[32];"),
        ("volatile __shared__ float x[32];", "typedef volatile float x__type[32];"),
        ("static __shared__ float* rows[8];", "typedef float* rows__type[8];"),
    ],
)
def test_shared_variable_becomes_a_reference(declaration: str, typed: str) -> None:
    result = rewrite_shared(declaration, "k.cu")
    name = typed.split("__type")[0].split()[-1]
    assert result.startswith(typed)
    assert f'{name}__type& {name} = gpuexec::shared<{name}__type, 1>(&{name}__key, "{name}");' in result


@pytest.mark.parametrize(
    "declaration",
    [
        "__shared__ __align__(128) float x[4];",
        "__align__(128) __shared__ float x[4];",
        "__shared__ float __align__(128) x[4];",
        "__shared__ alignas(128) float x[4];",
    ],
)
def test_alignment_is_kept_wherever_it_stands(declaration: str) -> None:
    assert "gpuexec::shared<x__type, 128>" in rewrite_shared(declaration, "k.cu")


def test_dynamic_shared_memory_is_the_launch_s() -> None:
    result = rewrite_shared("extern __shared__ __align__(16) unsigned char bytes[];", "k.cu")
    assert result == "unsigned char* const bytes = reinterpret_cast<unsigned char*>(gpuexec_position.dynamic_shared);"


@pytest.mark.parametrize("rest", ["float a[4], b[4]", "int n = 3", "float *p, q"])
def test_statement_it_can_t_read_is_refused_by_name(rest: str) -> None:
    with pytest.raises(KernelError, match=r"softmax.cu: '__shared__ .* one variable per __shared__ statement"):
        rewrite_shared(f"__shared__ {rest};", "softmax.cu")


def test_lines_keep_their_numbers() -> None:
    text = "a; // one\n/* two\nthree */ b;\n__shared__ float\n  x[4];\nc;\n"
    lines = rewrite_shared(strip_comments(text), "k.cu").split("\n")
    assert [lines[i].strip() for i in (0, 1, 2, 4, 5)] == ["a;", "", "b;", "", "c;"]
    assert lines[3].startswith("typedef float x__type[4];")


def test_comments_and_literals_are_distinguished() -> None:
    text = 'x = "// no"; // the __shared__ tile;\ny = \'"\'; z = 1\'000; /* "open */ w;'
    assert strip_comments(text).split() == ["x", "=", '"//', 'no";', "y", "=", "'\"';", "z", "=", "1'000;", "w;"]


def test_launch_bounds_are_numbers_or_named_constants() -> None:
    text = (
        "constexpr int kThreads = 128;\n"
        "__global__ void __launch_bounds__(256) a(int x) {}\n"
        "template <int N> __global__ void __launch_bounds__(kThreads, 2) b(int x) {}\n"
        "__global__ __launch_bounds__(64) void c(int x) {}\n"
        "template <int N> __global__ void __launch_bounds__(N) d(int x) {}\n"
        "__global__ void e(int x) {}\n"
    )
    assert find_launch_bounds(text) == {"a": 256, "b": 128, "c": 64}
