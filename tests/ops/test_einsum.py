"""Einsum against NumPy's in double; errors and contraction orders by hand."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.command import Launch
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ops.linalg.einsum import DTYPES, Einsum
from gpuexec.ops.linalg.einsum_equation import order_contractions, parse
from tests.ops.harness import Array, Case, plan_case, run_case

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)


def sample(*shape: int, dtype: Any = np.float32) -> Array:
    values = np.asarray(np.random.default_rng([*shape, 5]).normal(0, 1.5, shape))
    if np.dtype(dtype).kind in "iu":
        return (values * 1000).astype(np.int64).astype(dtype)
    return values.astype(dtype)


SIZES = {"i": 70, "j": 9, "k": 80}


def sized(labels: str) -> Array:
    return sample(*(SIZES[label] for label in labels))


def chain(dtype: Any) -> list[Array]:
    return [sample(*shape, dtype=dtype) for shape in ((3, 4), (4, 5), (5, 6))]


EMPTY = (((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0)))
NOT_FINITE = np.array([[np.inf, 0], [np.nan, 1]], np.float32), np.array([[0, 1], [2, -np.inf]], np.float32)


def case(equation: str, *arrays: Array, id: str = "", terms: int = 0, **options: Any) -> Case:
    """A case with NumPy's own result in double (integers: modulo their width, in 64 bits)."""
    if arrays[0].dtype.kind in "iu":
        wide = [x.astype(np.int64) for x in arrays]
    else:
        wide = [x.astype(np.float64) for x in arrays]
    with np.errstate(all="ignore"):
        expected = np.asarray(np.einsum(equation.replace(" ", ""), *wide)).astype(arrays[0].dtype)
    count = terms or max(1, int(np.prod([max(x.shape, default=1) for x in arrays])))
    return Case(
        f"{id}{equation}", "Einsum", arrays, {"equation": equation}, expected=(expected,), terms=count, **options
    )


def matrices(dtype: Any) -> tuple[Array, Array]:
    return sample(5, 7, dtype=dtype), sample(7, 6, dtype=dtype)


CASES = [
    # Matrix products: every type, every transposition, by batches, with few and many rows.
    *(case("ij,jk->ik", *matrices(t), id=f"{np.dtype(t).name}:", terms=7) for t in (*FLOATS, *INTEGERS)),
    *(case(f"{a},{b}->{y}", sized(a), sized(b), terms=9)
      for a in ("ij", "ji") for b in ("jk", "kj") for y in ("ik", "ki")),
    case("ni,io->no", sample(3, 8), sample(8, 4), terms=8),
    case("a,ab->b", sample(6), sample(6, 5), terms=6),
    case("ab,b->a", sample(6, 5), sample(5), terms=5),
    case("bsd,edh->besh", sample(2, 3, 5), sample(4, 5, 6), terms=5),
    case("besd,bse->bsd", sample(2, 4, 3, 5), sample(2, 3, 4), terms=4),
    case("bhwc,wkc->bhwk", sample(2, 3, 4, 5), sample(4, 6, 5), terms=5),
    case("bij,bjk->ikb", sample(3, 6, 5), sample(3, 5, 7), terms=5),
    case("bij,bjk->kbi", sample(3, 6, 5), sample(3, 5, 7), terms=5),
    case("bqhd,bkhd->bhqk", sample(2, 6, 3, 4), sample(2, 7, 3, 4), terms=4),
    case("bhqk,bkhd->bqhd", sample(2, 3, 6, 7), sample(2, 7, 3, 4), terms=7),
    # Several summed axes: in one run of both operands, of one, of none.
    case("bqhd,hdo->bqo", sample(2, 3, 4, 5), sample(4, 5, 6), terms=20),
    case("bqhd,dho->bqo", sample(2, 3, 4, 5), sample(5, 4, 6), terms=20),
    case("hbdq,dho->bqo", sample(4, 2, 5, 3), sample(5, 4, 6), terms=20),
    case("hbdq,doh->bqo", sample(4, 2, 5, 3), sample(5, 6, 4), terms=20),
    case("ijkl,lkj->i", sample(4, 2, 3, 5), sample(5, 3, 2), terms=30),
    # Rows and columns that don't merge.
    case("ajbk,kcld->ajcbdl", sample(2, 3, 4, 5), sample(5, 2, 3, 2), terms=5),
    # What is no matrix product.
    *(case("ij,ij->ij", sample(4, 5, dtype=t), sample(4, 5, dtype=t), id=f"{np.dtype(t).name}:", terms=1)
      for t in (*FLOATS, np.uint8, np.int64)),
    *(case("i,i->", sample(40, dtype=t), sample(40, dtype=t), id=f"{np.dtype(t).name}:", terms=40)
      for t in (*FLOATS, *INTEGERS)),
    case("i,j->ij", sample(6), sample(7), terms=1),
    case("i,j->ji", sample(6), sample(7), terms=1),
    case("bij,bij->b", sample(3, 20, 30), sample(3, 20, 30), terms=600),
    case("ibj,jbi->b", sample(20, 3, 30), sample(30, 3, 20), terms=600),
    case("ij,ji->", sample(5, 6), sample(6, 5), terms=30),
    case("i,->i", sample(5), sample(), terms=1),
    case(",->", sample(), sample(), terms=1),
    # One operand: views, diagonals, sums.
    case("->", sample()),
    case("ij->ji", sample(3, 4), terms=1),
    case("ij->", sample(3, 4), terms=12),
    case("ij->j", sample(300, 4), terms=300),
    case("ii->i", sample(4, 4), terms=1),
    case("...ii->...i", sample(2, 3, 5, 5), terms=1),
    case("ii", sample(6, 6), terms=6),
    case("iji->j", sample(4, 3, 4), terms=4),
    case("iiij->ij", sample(3, 3, 3, 2), terms=1),
    *(case("ijk->ki", sample(3, 4, 5, dtype=t), id=f"{np.dtype(t).name}:", terms=4) for t in (*FLOATS, *INTEGERS)),
    case("ij->", sample(40, 50, dtype=np.int8), id="int8:"),
    # Sums of one operand before a product; diagonals of one of two.
    *(case("ijx,jk->ik", sample(5, 4, 6, dtype=t), sample(4, 3, dtype=t), id=f"{np.dtype(t).name}:", terms=24)
      for t in (*FLOATS, np.uint8)),
    case("ij,kl->", sample(3, 4), sample(5, 2), terms=120),
    case("iij,jk->ik", sample(4, 4, 5), sample(5, 3), terms=5),
    case("ij,jj->i", sample(4, 5), sample(5, 5), terms=5),
    # Ellipses, implicit outputs, spaces, both cases of letters.
    case("...ij,...jk->...ik", sample(2, 3, 4, 5), sample(2, 3, 5, 6), terms=5),
    case("...ij,...jk", sample(1, 3, 4, 5), sample(2, 1, 5, 6), terms=5),
    case("...ij,jk->...ik", sample(2, 3, 4, 5), sample(5, 6), terms=5),
    case("i...j,j...k->...ki", sample(4, 2, 3, 5), sample(5, 2, 3, 6), terms=5),
    case("...,...->...", sample(3, 4), sample(3, 4), terms=1),
    case("...->...", sample(3, 4), terms=1),
    case("...j->...", sample(3, 4), terms=4),
    case("ij,jk", sample(3, 4), sample(4, 5), terms=4),
    case("ba,ac", sample(3, 4), sample(4, 5), terms=4),
    case("bA,Ac", sample(3, 4), sample(4, 5), terms=4),
    case("bAa,ac", sample(2, 3, 4), sample(4, 5), terms=4),
    case(" i j , jk -> i k ", sample(3, 4), sample(4, 5), terms=4),
    # Axes of extent 1 stretch.
    case("bij,bjk->bik", sample(1, 3, 4), sample(5, 4, 2), terms=4),
    case("ij,jk->ik", sample(3, 1), sample(4, 5), id="stretched_sum:", terms=4),
    case("ijl,jlk->ik", sample(3, 1, 2), sample(4, 2, 5), id="stretched_run:", terms=8),
    case("ij,ij->ij", sample(3, 1), sample(1, 5), id="stretched:", terms=1),
    case("ij,ij->", sample(3, 1), sample(1, 5), id="stretched_both:", terms=15),
    # More operands.
    *(case("ij,jk,kl->il", *chain(t), id=f"{np.dtype(t).name}:", terms=20) for t in (*FLOATS, np.int16, np.int64)),
    case("bhqk,bkhd,hdo->bqo", sample(2, 3, 4, 5), sample(2, 5, 3, 6), sample(3, 6, 7), terms=90),
    case("i,i,i,i->", sample(9), sample(9), sample(9), sample(9), terms=9),
    case("ab,bc,cd,de,ef,fg->ag", *(sample(2 + i, 3 + i) for i in range(6)), terms=2520),
    case("i,j,k->kij", sample(2), sample(3), sample(4), terms=1),
    case("...a,...b,c...->...", sample(2, 3), sample(2, 4), sample(5, 2), terms=60),
    # Nothing, not finite, ranks, strides.
    *(case("ij,jk->ik", sample(*a), sample(*b), id=f"empty{a}{b}:") for a, b in EMPTY),
    case("ijl,jlk->ik", sample(2, 0, 3), sample(0, 3, 4), id="empty_run:"),
    case("i,i->", sample(0), sample(0), id="empty:"),
    case("ij->i", sample(3, 0), id="empty:"),
    case("ij->j", sample(3, 0), id="empty:"),
    case("ij,jk->ik", *NOT_FINITE, id="not_finite:"),
    case("i,i->", np.full(4, 60000, np.float16), np.full(4, 2, np.float16), id="overflows:"),
    case("i,i->", np.full(3, 2**31 - 1, np.int32), np.full(3, 2**31 - 1, np.int32), id="wraps:"),
    case("abcdefgh,hgfedcba->", sample(2, 1, 2, 3, 2, 2, 1, 2), sample(2, 1, 2, 2, 3, 2, 1, 2), terms=96),
    case("abcdefgh,aceg->bdfh", sample(2, 3, 2, 2, 2, 1, 2, 3), sample(2, 2, 2, 2), terms=16),
    case("abcdefgh->hgfedcba", sample(2, 1, 2, 3, 2, 2, 1, 2), terms=1),
    case("bij,bjk->bik", sample(4, 6, 10)[::2, ::-1, 1::2], sample(8, 5, 2).T[:, :, ::2], id="strided:", terms=5),
    case("ij,jk->ik", *matrices(np.float32), id="opset12:", terms=7, opset=12),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_einsum(checks: str, case: Case) -> None:
    run_case(case, checks)


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """One to four operands of rank up to 4 over five labels, diagonals and axes of extent 1 among them."""
    extents = {label: draw(st.integers(1, 4)) for label in "abcde"}
    terms = draw(st.lists(st.text("abcde", max_size=4), min_size=1, max_size=4))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations(used)))[: draw(st.integers(0, len(used)))]
    shapes = []
    for term in terms:
        stretched = draw(st.sets(st.sampled_from("abcde"), max_size=1)) if len(terms) > 1 else set()
        shapes.append(tuple(1 if label in stretched and term.count(label) == 1 else extents[label] for label in term))
    return f"{','.join(terms)}->{output}", shapes


@settings(max_examples=60, deadline=None, derandomize=True)
@given(drawn=equations(), dtype=st.sampled_from((np.float32, np.float16, np.int32, np.int8)))
def test_any_equation(checks: str, drawn: tuple[str, list[tuple[int, ...]]], dtype: Any) -> None:
    equation, shapes = drawn
    extents: dict[str, int] = {}
    for term, shape in zip(equation.partition("->")[0].split(","), shapes, strict=True):
        for label, extent in zip(term, shape, strict=True):
            extents[label] = max(extent, extents.get(label, 1))
    count = int(np.prod([extents[label] for label in extents if label not in equation.partition("->")[2]]))
    run_case(case(equation, *(sample(*shape, dtype=dtype) for shape in shapes), terms=count + len(shapes)), checks)


def launched(equation: str, *shapes: tuple[int, ...], dtype: Any = np.float32) -> list[str]:
    """Return the kernels that an equation launches."""
    one = case(equation, *(sample(*shape, dtype=dtype) for shape in shapes))
    plan = plan_case(one, build("Einsum", one.attributes), one.inputs, set(), Target.named("sm_90")).template.plan
    return [command.kernel.expression for command in plan.segment.commands if isinstance(command, Launch)]


def is_product(kernel: str) -> bool:
    """Return whether a kernel multiplies matrices of float."""
    return kernel.startswith(("simt_gemm<", "gemv_along_"))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bqhd,bkhd->bhqk", [(2, 6, 3, 4), (2, 7, 3, 4)]),
        ("bqhd,hdo->bqo", [(2, 6, 3, 4), (3, 4, 5)]),
        ("ajbk,kcld->ajcbdl", [(2, 3, 4, 5), (5, 2, 3, 2)]),
    ],
)
def test_product_is_one_launch(equation: str, shapes: list[tuple[int, ...]]) -> None:
    (kernel,) = launched(equation, *shapes)
    assert is_product(kernel)


def test_only_the_operand_without_a_run_is_copied() -> None:
    kernels = launched("hbdq,dho->bqo", (4, 2, 5, 3), (5, 4, 6))
    assert len(kernels) == 2 and is_product(kernels[-1])


def test_result_is_never_memory_of_an_operand() -> None:
    """An epilogue works in it."""
    x = sample(3, 4)
    (y,) = Einsum("ij->ji").compute(x)
    assert y is not None and not np.shares_memory(x, y)


def test_diagonal_is_a_view() -> None:
    assert launched("...ii->i...", (2, 3, 3)) == ["copy_strided"]  # to where the plan gives it out


def test_product_rounds_once_where_operands_are_many() -> None:
    kernels = launched("ij,jk,kl->il", (2, 3), (3, 4), (4, 5), dtype=np.float16)
    assert len([kernel for kernel in kernels if is_product(kernel)]) == 2


def test_order_is_the_cheapest() -> None:
    equation = parse("ij,jk,kl->il", (2, 2, 2))
    tall = order_contractions(equation.terms, equation.output, {"i": 1, "j": 500, "k": 500, "l": 500})
    wide = order_contractions(equation.terms, equation.output, {"i": 500, "j": 500, "k": 500, "l": 1})
    assert [(step.left, step.right) for step in tall] == [(0, 1), (0, 1)]
    assert [(step.left, step.right) for step in wide] == [(1, 2), (0, 1)]


def test_order_is_the_same_for_all_sizes_of_a_class() -> None:
    equation = parse("ij,jk,kl->il", (2, 2, 2))
    orders = {
        order_contractions(equation.terms, equation.output, {"i": i, "j": 300, "k": 310, "l": 400})
        for i in range(257, 513)
    }
    assert len(orders) == 1


def test_attributes_are_those_of_the_standard() -> None:
    schema = onnx.defs.get_schema("Einsum")
    assert list(schema.attributes) == ["equation"] and schema.attributes["equation"].required
    (constraint,) = schema.type_constraints
    allowed = {str(text).removeprefix("tensor(").removesuffix(")") for text in constraint.allowed_type_strs}
    spelled = {"float32": "float", "float64": "double"}
    assert {spelled.get(dtype_row(t).name, dtype_row(t).name) for t in DTYPES} == allowed


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3)], "'ij,jk->ik': expected a term for each of 1 operands, got 2"),
        ("ij->i", [(2, 3, 4)], "term 'ij' expects operand 0 of rank 2, got rank 3"),
        ("ijk...->i", [(2, 3)], "expects operand 0 of rank 3 or more, got rank 2"),
        ("i1->i", [(2, 3)], "a term holds letters and at most one ellipsis, got 'i1'"),
        ("i......->i", [(2, 3)], "at most one ellipsis, got 'i......'"),
        ("i.->i", [(2, 3)], "at most one ellipsis, got 'i.'"),
        ("ij->ii", [(2, 3)], "may name each index of the operands once, got 'i'"),
        ("ij->k", [(2, 3)], "may name each index of the operands once, got 'k'"),
        ("ij->i->j", [(2, 3)], "a term holds letters"),
        ("...i,...i->...", [(2, 3), (3,)], "every ellipsis must stand for equally many axes, got [0, 1]"),
        ("...i->i", [(2, 3)], "output 'i' lacks the ellipsis, which stands for 1 axes"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "index 'j' has extent 4 in operand 1 of shape [4, 5], expected 3"),
        ("ii->i", [(2, 3)], "index 'i' has extent 3 in operand 0 of shape [2, 3], expected 2"),
        ("ii,i->i", [(1, 3), (3,)], "index 'i' has extent 3 in operand 0"),
        ("...,...->...", [(2, 3), (2, 4)], "an axis of the ellipsis has extent 4"),
    ],
)  # fmt: skip
def test_infer_refuses(equation: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Einsum(equation).infer(*(TensorSpec(shape, np.dtype(np.float32)) for shape in shapes))
    assert message in str(caught.value) and repr(equation) in str(caught.value)


def test_infer_refuses_other_types() -> None:
    floats, halves = TensorSpec((3,), np.dtype(np.float32)), TensorSpec((3,), np.dtype(np.float16))
    with pytest.raises(InputError, match="operand 1 of type float32"):
        Einsum("i,i->").infer(floats, halves)
    with pytest.raises(InputError, match="operand 0 of type"):
        Einsum("i->").infer(TensorSpec((3,), np.dtype(np.bool_)))
