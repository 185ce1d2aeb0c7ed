"""The pass recognise_activations: activations in the nodes that exporters write them as."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.ir.graphs import Graph
from gpuexec.passes.recognise_activations import recognise_activations
from gpuexec.passes.remove_dead import remove_dead
from tests.passes.harness import check_computed, load, operators

NUMBERS = (
    "float root = {1.4142135}, float inverse = {0.70710677}, float one = {1}, float half = {0.5}, float two = {2}, "
    "float three = {3}, float cubic = {0.044715}, float slope = {0.7978846}, float both = {0.035677407}, "
    "float quick = {1.702}, float six = {6}, float zero = {0}"
)
ERF = "s = Div (x, root) e = Erf (s) p = Add (e, one)"
TANH = "i = Mul (slope, q) e = Tanh (i) p = Add (e, one) m = Mul (x, half) y = Mul (m, p)"
GELU = {
    "sum first": f"{ERF} m = Mul (x, p) y = Mul (m, half)",
    "numbers first": "s = Mul (inverse, x) e = Erf (s) p = Add (one, e) m = Mul (p, x) y = Mul (half, m)",
    "half of the sum": f"{ERF} m = Mul (half, p) y = Mul (m, x)",
    "half of x": f"h = Mul (x, half) {ERF} y = Mul (h, p)",
    "by two": f"{ERF} m = Mul (x, p) y = Div (m, two)",
    "negative": "n = Neg (x) s = Div (n, root) e = Erf (s) p = Sub (one, e) h = Mul (x, half) y = Mul (h, p)",
}
GELU_TANH = {
    "power": f"c = Pow (x, three) k = Mul (c, cubic) q = Add (x, k) {TANH}",
    "products": f"k = Mul (cubic, x) k2 = Mul (x, k) k3 = Mul (x, k2) q = Add (x, k3) {TANH}",
    "square": f"k = Mul (x, x) k2 = Mul (k, cubic) k3 = Add (k2, one) q = Mul (k3, x) {TANH}",
    "slope inside": "k = Mul (x, slope) k2 = Pow (x, three) k3 = Mul (k2, both) i = Add (k, k3) e = Tanh (i) "
    "p = Add (one, e) m = Mul (half, p) y = Mul (x, m)",
}
OTHERS = {
    "Swish": {
        "sigmoid": "s = Sigmoid (x) y = Mul (x, s)",
        "sigmoid first": "s = Sigmoid (x) y = Mul (s, x)",
        "quick": "k = Mul (x, quick) s = Sigmoid (k) y = Mul (x, s)",
    },
    "HardSwish": {
        "alpha": "s = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul (x, s)",
        "default": "s = HardSigmoid <alpha = 0.1666666716> (x) y = Mul (s, x)",
    },
    "Mish": {"softplus": "s = Softplus (x) t = Tanh (s) y = Mul (x, t)"},
}
FORMS = {
    **{("Gelu", form): nodes for form, nodes in {**GELU, **GELU_TANH}.items()},
    **{(name, form): nodes for name, forms in OTHERS.items() for form, nodes in forms.items()},
}
X = np.linspace(-6, 6, 42, dtype=np.float32).reshape(6, 7)


def make(nodes: str, outputs: str = "float[6, 7] y", numbers: str = NUMBERS) -> Graph:
    return load(f"agraph (float[6, 7] x) => ({outputs}) <{numbers}> {{ {nodes} }}", opset=20)


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_nodes_of_an_activation_become_one(name: str, form: str) -> None:
    graph = make(FORMS[name, form])
    after = remove_dead(recognise_activations(graph))
    assert operators(after) == [name]
    assert after.nodes[0].name == graph.nodes[-1].name
    check_computed(graph, after, rtol=1e-6, x=X)


def test_numbers_become_attributes() -> None:
    quick, tanh = (
        recognise_activations(make(nodes)).nodes[0] for nodes in (OTHERS["Swish"]["quick"], GELU_TANH["power"])
    )
    assert quick.operator.alpha == pytest.approx(1.702)  # type: ignore[attr-defined]
    assert tanh.operator.approximate == "tanh"  # type: ignore[attr-defined]


def test_each_activation_of_a_graph_is_recognised() -> None:
    second = "h2 = Mul (y, half) s2 = Div (y, root) e2 = Erf (s2) p2 = Add (e2, one) z = Mul (h2, p2)"
    graph = make(f"{GELU['sum first']} {second} t = Sigmoid (z) u = Mul (t, z)", "float[6, 7] u")
    after = remove_dead(recognise_activations(graph))
    assert operators(after) == ["Gelu", "Gelu", "Swish"]
    check_computed(graph, after, rtol=1e-6, x=X)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (GELU["sum first"].replace("root", "two"), "float[6, 7] y"),
        (GELU["sum first"].replace("one", "two"), "float[6, 7] y"),
        (GELU["sum first"].replace("half", "two"), "float[6, 7] y"),
        (GELU["sum first"].replace("Mul (x, p)", "Mul (p, p)"), "float[6, 7] y"),
        (GELU["sum first"].replace("Mul (m, half)", "Add (m, half)"), "float[6, 7] y"),
        (f"o = Abs (x) {GELU['sum first'].replace('Mul (x, p)', 'Mul (o, p)')}", "float[6, 7] y"),
        (GELU_TANH["power"].replace("three", "two"), "float[6, 7] y"),
        (GELU_TANH["power"].replace("Add (x, k)", "Sub (x, k)"), "float[6, 7] y"),
        (f"o = Abs (x) {GELU_TANH['power'].replace('Pow (x', 'Pow (o')}", "float[6, 7] y"),
        (OTHERS["Swish"]["sigmoid"].replace("Mul (x, s)", "Mul (s, s)"), "float[6, 7] y"),
        (OTHERS["Swish"]["sigmoid"].replace("Mul (x, s)", "Add (x, s)"), "float[6, 7] y"),
        (OTHERS["HardSwish"]["alpha"].replace("0.16666667", "0.168"), "float[6, 7] y"),
        (OTHERS["HardSwish"]["alpha"].replace("0.5", "0.505"), "float[6, 7] y"),
        (OTHERS["Mish"]["softplus"].replace("Tanh", "Sigmoid"), "float[6, 7] y"),
        ("a = Add (x, three) c = Clip (a, zero, six) m = Mul (x, c) y = Div (m, six)", "float[6, 7] y"),
    ],
)
def test_other_formulas_stay(nodes: str, outputs: str) -> None:
    graph = make(nodes, outputs)
    assert recognise_activations(graph) is graph


@pytest.mark.parametrize("name", ["root", "half", "one"])
def test_a_number_that_is_off_by_a_hundredth_stays(name: str) -> None:
    value = {"root": 1.4142135, "half": 0.5, "one": 1}[name]
    numbers = NUMBERS.replace(f"float {name} = {{{value}}}", f"float {name} = {{{value * 1.01}}}")
    assert numbers != NUMBERS
    graph = make(GELU["sum first"], numbers=numbers)
    assert recognise_activations(graph) is graph


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (f"{GELU['sum first']} z = Neg (e)", "float[6, 7] y, float[6, 7] z"),
        (GELU["sum first"], "float[6, 7] y, float[6, 7] p"),
        (GELU["half of x"], "float[6, 7] y, float[6, 7] h"),
        (ERF, "float[6, 7] p"),
        (OTHERS["Swish"]["sigmoid"], "float[6, 7] y, float[6, 7] s"),
        (f"{OTHERS['Swish']['sigmoid']} z = Relu (s)", "float[6, 7] y, float[6, 7] z"),
    ],
)
def test_what_gives_out_more_stays(nodes: str, outputs: str) -> None:
    graph = make(nodes, outputs)
    assert recognise_activations(graph) is graph


def test_numbers_with_axes_and_of_16_bits_stay() -> None:
    graph = make(GELU["sum first"], numbers=NUMBERS.replace("float half = {0.5}", "float[1] half = {0.5}"))
    assert recognise_activations(graph) is graph
    bits = "float16 root = {15784}, float16 one = {15360}, float16 half = {14336}"
    for nodes in (GELU["sum first"], OTHERS["Swish"]["sigmoid"]):
        graph = load(f"agraph (float16[6, 7] x) => (float16[6, 7] y) <{bits}> {{ {nodes} }}", opset=20)
        assert recognise_activations(graph) is graph
