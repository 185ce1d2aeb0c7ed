"""Kernels of images channels last: plans in which each instance runs between convolutions on tensor cores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.ir.command import Kernel
from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ops.elementwise.epilogue import FINISHED, without_epilogue
from gpuexec.ops.nn.conv_depthwise_last import LAST_FORMS, LAST_TYPES, name_last
from tests.ir.graph_builder import GraphBuilder
from tests.ops.harness import keep_plans

HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
PRECISIONS = {HALF: "fp16", BFLOAT16: "bf16"}
CHANNELS = 16
# What a kernel has behind it: nothing, steps, or steps that end in a Cast to the type.
ENDS = [None, "steps", HALF, BFLOAT16]
MULTIPLY: tuple[Any, ...] = (("Mul", (), (-1, 3)), ("Relu", (), (-2,)))


def find_launched(
    op: Operator, types: tuple[Any, Any], others: list[Any], extents: tuple[int, ...], *, is_alone: bool = False
) -> set[Kernel]:
    """Return what plans launch in which an operator lies between two convolutions, or alone.

    Args:
        op: The operator.
        types: Of its image and its result.
        others: Its other inputs.
        extents: Of its image.
        is_alone: Whether it is the only operator, whose image is row-major.
    """
    graph, (dtype, result) = GraphBuilder(), types
    stored = next((each for each in (dtype, result) if each != FLOAT), HALF)
    weight = graph.constant(np.ones((CHANNELS, CHANNELS, *(1,) * len(extents)), stored))
    value = graph.input("x", 2, CHANNELS, *extents, dtype=dtype if is_alone else stored)
    if not is_alone:
        value = graph.node(build("Conv", {} if dtype == stored else {"precision": PRECISIONS[stored]}), value, weight)
    value = graph.node(op, value, *[None if each is None else graph.constant(each) for each in others])
    if not is_alone:
        if result != stored:
            value = graph.node(build("Cast", {"to": dtype_row(stored).code}), value)
        value = graph.node(build("Conv", {}), value, weight)
    spec = TensorSpec((2, CHANNELS, *extents), dtype if is_alone else stored)
    plans = keep_plans(graph.graph(value), {"x": spec})
    return {kernel for plan in plans for kernel in plan.kernels()}


def end(name: str, attributes: dict[str, Any], result: Any, ending: Any) -> tuple[Operator, Any]:
    """Return an operator with what is behind it, and the type of its result."""
    if ending is None:
        return build(name, attributes), result
    steps = MULTIPLY
    if ending != "steps":
        steps, result = (*steps, ("Cast", (("to", dtype_row(ending).code),), (-3,))), ending
    return build(f"gpuexec.Fused{name}", {**attributes, "steps": steps, "results": (len(steps),)}), result


def has_ending(kernel: Kernel, ending: Any) -> bool:
    """Return whether a kernel has an instance with what is behind it."""
    return ending in (None, "steps") or ending in FINISHED[kernel].stored


def list_cases() -> list[Any]:
    """Return each kernel, and what to plan for it: form or lie, types, ending."""
    rows: list[Any] = []
    for ending in ENDS:
        for types in LAST_TYPES:
            rows += [(name_last(types, form), form, types, ending) for form in LAST_FORMS]
        for dtype in (FLOAT, HALF, BFLOAT16):
            code = dtype_row(dtype).cuda
            for lies, name in (
                ("small", f"normalize_small_channels<{code}>"),
                ("large", f"normalize_large_channels<{code}, true>"),
                ("large, row-major", f"normalize_large_channels<{code}, false>"),
            ):
                rows.append((Kernel("norm_channels.cu", name), lies, (dtype, dtype), ending))
            for mode, is_blended in (("nearest", "false"), ("linear", "true")):
                rows.append((Kernel("resize.cu", f"resize_units<{code}, {is_blended}>"), mode, (dtype, dtype), ending))
    return [pytest.param(*row, id=f"{row[0].expression}-{row[3]}") for row in rows if has_ending(row[0], row[3])]


@pytest.mark.plans
@pytest.mark.parametrize(("wanted", "form", "types", "ending"), list_cases())
def test_instances_are_launched(wanted: Kernel, form: Any, types: tuple[Any, Any], ending: Any) -> None:
    dtype, result = types
    attributes = dict[str, Any]()
    others: list[Any] = [np.ones(CHANNELS, dtype), np.zeros(CHANNELS, dtype)]
    name, extents = "InstanceNormalization", (32, 32) if form == "small" else (72, 64)
    if isinstance(form, tuple):
        name, extents, (extent, stride) = "Conv", (32, 32), form if form != LAST_FORMS[0] else (5, 1)
        attributes = {"group": CHANNELS, "strides": (stride,) * 2}
        if dtype != result:
            attributes["precision"] = PRECISIONS[dtype]
        others = [np.ones((CHANNELS, 1, extent, extent), dtype), np.ones(CHANNELS, result)]
    if form in ("nearest", "linear"):
        name, extents, attributes, others = "Resize", (8, 8), {"mode": form}, [None, np.array([1, 1, 2, 2], np.float32)]
    if ending is not None:
        others.append(np.ones((CHANNELS, 1, 1), result))
    op, made = end(name, attributes, result, ending)
    launched = find_launched(op, (dtype, made), others, extents, is_alone=form == "large, row-major")
    if ending is None:
        assert wanted in launched
        return
    (finished,) = [each for each in launched if each.text and without_epilogue(each.expression) == wanted.expression]
    assert f"typedef {dtype_row(made).cuda} Stored;" in finished.text
