"""StringNormalizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import gpuexec as gx
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.operator import build
from gpuexec.ir.spec import STRING, TensorSpec
from tests.ops.objects import ObjectCase, check_case, tensor

TEXT = tensor(TensorProto.STRING)
DAYS = np.array(["monday", "Tuesday", "MONDAY", "thursday"], object)


def case(id: str, x: Any, expected: list[str], **attributes: Any) -> ObjectCase:
    given = np.array(x, object)
    wanted = np.array(expected, object).reshape(*given.shape[:-1], len(expected))
    return ObjectCase(id, "StringNormalizer", (given,), (TEXT,), (TEXT,), attributes, [wanted])


CASES = (
    case("nothing", DAYS, list(DAYS)),
    case("lower", DAYS, ["monday", "tuesday", "monday", "thursday"], case_change_action="LOWER"),
    case("upper", [DAYS], ["MONDAY", "TUESDAY", "MONDAY", "THURSDAY"], case_change_action="UPPER"),
    case("stop", DAYS, ["Tuesday", "thursday"], stopwords=["Monday"]),
    case("stop_sensitive", DAYS, ["Tuesday", "MONDAY", "thursday"], stopwords=["monday"], is_case_sensitive=1),
    case(
        "stop_before_change",
        DAYS,
        ["MONDAY", "TUESDAY", "THURSDAY"],
        stopwords=["MONDAY"],
        is_case_sensitive=1,
        case_change_action="UPPER",
    ),
    case("none_left", DAYS, [""], stopwords=["MONDAY", "tuesday", "THURSday"]),
    case("none_left_of_a_row", [DAYS], [""], stopwords=["MONDAY", "tuesday", "THURSday"]),
    case("none_given", DAYS[:0], [""]),
    case("empty_text_stays", ["", "a"], ["", "a"], stopwords=["b"]),
    case(
        "other_letters",
        ["Élan", "ΣΑΣ", "straße"],
        ["ÉLAN", "ΣΑΣ", "STRASSE"],
        case_change_action="UPPER",
        locale="tr_TR",
    ),
    case("folded", ["STRASSE", "ÉLAN", "rue"], ["rue"], stopwords=["straße", "élan"]),
    case("whole_elements", ["a b", "a"], ["a b"], stopwords=["a"]),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_stop_words_go_and_case_changes(case: ObjectCase) -> None:
    check_case(case)


@pytest.mark.parametrize("shape", [(), (2, 3), (1, 1, 2)], ids=str)
def test_more_than_a_row_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(gx.InputError, match=r"expects strings \[count\] or \[1, count\], got string"):
        infer_specs(build("StringNormalizer", {}), [TensorSpec(shape, STRING)])


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(gx.InputError, match="case_change_action expects LOWER, UPPER, NONE, got 'TITLE'"):
        build("StringNormalizer", {"case_change_action": "TITLE"})
