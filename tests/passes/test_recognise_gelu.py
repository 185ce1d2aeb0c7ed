"""The pass recognise_gelu: GELU in the nodes that exporters write it as."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.ir.graphs import Graph
from gpuexec.passes.recognise_gelu import recognise_gelu
from gpuexec.passes.remove_dead import remove_dead
from tests.passes.harness import check_same, load, operators

NUMBERS = "float root = {1.4142135}, float inverse = {0.70710677}, float one = {1}, float half = {0.5}, float two = {2}"
ERF = "s = Div (x, root) e = Erf (s) p = Add (e, one)"
FORMS = {
    "sum first": f"{ERF} m = Mul (x, p) y = Mul (m, half)",
    "numbers first": "s = Mul (inverse, x) e = Erf (s) p = Add (one, e) m = Mul (p, x) y = Mul (half, m)",
    "half of the sum": f"{ERF} m = Mul (half, p) y = Mul (m, x)",
    "half of x": f"h = Mul (x, half) {ERF} y = Mul (h, p)",
}
X = np.linspace(-6, 6, 42, dtype=np.float32).reshape(6, 7)


def make(nodes: str, outputs: str = "float[6, 7] y", numbers: str = NUMBERS) -> Graph:
    return load(f"agraph (float[6, 7] x) => ({outputs}) <{numbers}> {{ {nodes} }}", opset=20)


@pytest.mark.parametrize("form", FORMS)
def test_nodes_of_a_gelu_become_one(form: str) -> None:
    graph = make(FORMS[form])
    after = remove_dead(recognise_gelu(graph))
    assert operators(after) == ["Gelu"]
    check_same(graph, after, rtol=1e-6, x=X)


def test_each_gelu_of_a_graph_is_recognised() -> None:
    second = "h2 = Mul (y, half) s2 = Div (y, root) e2 = Erf (s2) p2 = Add (e2, one) z = Mul (h2, p2)"
    graph = make(f"{FORMS['sum first']} {second}", "float[6, 7] z")
    after = remove_dead(recognise_gelu(graph))
    assert operators(after) == ["Gelu", "Gelu"]
    check_same(graph, after, rtol=1e-6, x=X)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (FORMS["sum first"].replace("root", "two"), "float[6, 7] y"),
        (FORMS["sum first"].replace("one", "two"), "float[6, 7] y"),
        (FORMS["sum first"].replace("half", "two"), "float[6, 7] y"),
        (FORMS["sum first"].replace("Mul (x, p)", "Mul (p, p)"), "float[6, 7] y"),
        (FORMS["sum first"].replace("Mul (m, half)", "Add (m, half)"), "float[6, 7] y"),
        (f"{FORMS['sum first']} z = Neg (e)", "float[6, 7] y, float[6, 7] z"),
        (FORMS["sum first"], "float[6, 7] y, float[6, 7] p"),
        (FORMS["half of x"], "float[6, 7] y, float[6, 7] h"),
        (ERF, "float[6, 7] p"),
    ],
)
def test_what_computes_or_gives_out_more_stays(nodes: str, outputs: str) -> None:
    graph = make(nodes, outputs)
    assert recognise_gelu(graph) is graph


def test_numbers_with_axes_and_of_16_bits_stay() -> None:
    graph = make(FORMS["sum first"], numbers=NUMBERS.replace("float half = {0.5}", "float[1] half = {0.5}"))
    assert recognise_gelu(graph) is graph
    bits = "float16 root = {15784}, float16 one = {15360}, float16 half = {14336}"
    graph = load(f"agraph (float16[6, 7] x) => (float16[6, 7] y) <{bits}> {{ {FORMS['sum first']} }}", opset=20)
    assert recognise_gelu(graph) is graph
