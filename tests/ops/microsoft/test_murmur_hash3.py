"""MurmurHash3: by onnxruntime, numbers on every device and strings on the host."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case
from tests.ops.microsoft.composed import DOMAIN
from tests.ops.objects import ObjectCase, check_case, tensor

TYPES = (np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64)
NUMBERS = np.array([[0, 1, 3], [77, 1 << 20, 123456789]])
EXTREMES = np.array([0, -1, 2**31 - 1, -(2**31)], np.int32)
# Lengths of 0 to 9 bytes, and characters of several.
WORDS = np.array(["abcdefghi"[:length] for length in range(10)] + ["ü", "日本語", "\U0001f600 x"], object)


def murmur(id: str, x: Array, positive: int = 1, seed: int = 0) -> Case:
    """Return a case by onnxruntime, which takes seeds of 32 bits."""
    fields = {"positive": positive, "seed": seed}
    return Case(id, "MurmurHash3", (x,), fields, opset=1, oracle="onnxruntime", domain=DOMAIN)


CASES = [
    *(murmur(f"{np.dtype(t)}-{positive}", NUMBERS.astype(t), positive) for t in TYPES for positive in (0, 1)),
    *(murmur(f"seed{seed}", EXTREMES, seed=seed) for seed in (7, 2**31, 2**32 - 1)),
    murmur("floats", np.array([0.0, -0.0, 1.5, np.inf, -1e-40, 3e38], np.float32)),
    murmur("many", np.arange(700, dtype=np.int64) * 0x1_0000_0001),
    murmur("number", np.array(5, np.int32)),
    murmur("nothing", NUMBERS[:0].astype(np.int32)),
    murmur("strided", NUMBERS.astype(np.float64)[::-1, ::2].T),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_numbers(checks: str, case: Case) -> None:
    run_case(case, checks)


def of_words(id: str, x: Array, positive: int, seed: int = 7) -> ObjectCase:
    """Return a case of strings, by onnxruntime."""
    import onnxruntime

    attributes = {"positive": positive, "seed": seed}
    made = tensor(TensorProto.UINT32 if positive else TensorProto.INT32)
    case = ObjectCase(id, "MurmurHash3", (x,), (tensor(TensorProto.STRING),), (made,), attributes, [], 1, DOMAIN)
    model = case.make_model().SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x0": x})
    return ObjectCase(id, "MurmurHash3", (x,), case.types, case.outputs, attributes, expected, 1, DOMAIN)


STRINGS = (
    of_words("words", WORDS, 1),
    of_words("words_signed", WORDS.reshape(1, -1), 0),
    of_words("words_0d", np.array("word", object), 1, 0),
    of_words("no_words", WORDS[:0], 1),
)


@pytest.mark.parametrize("case", STRINGS, ids=lambda case: case.id)
def test_strings(case: ObjectCase) -> None:
    check_case(case)


def test_the_low_bits_of_a_seed_count() -> None:
    hashes = [build(f"{DOMAIN}.MurmurHash3", {"seed": seed}).compute(EXTREMES)[0] for seed in (1, 2**32 + 1, 1 - 2**32)]
    np.testing.assert_array_equal(hashes[1], hashes[0])
    np.testing.assert_array_equal(hashes[2], hashes[0])


def test_what_has_no_hash_is_refused() -> None:
    with pytest.raises(InputError, match=r"MurmurHash3 expects input of type int32, .*string, got bool"):
        build(f"{DOMAIN}.MurmurHash3", {}).infer(TensorSpec((2,), np.dtype(np.bool_)))
