"""A lowering alone, without a planner: what its kernels and windows make of the inputs is what ``compute`` makes."""

from __future__ import annotations

from tests.ops.direct import lower_and_run
from tests.ops.harness import Case, build_operator, compare, const_positions


def check_lowering(case: Case) -> None:
    """Lower a case, run each launch on the simulator at once, and compare all outputs with ``compute``."""
    op, inputs = build_operator(case)
    made = lower_and_run(op, inputs, sorted(const_positions(case, inputs)))
    for index, (got, expected) in enumerate(zip(made, op.compute(*inputs), strict=True)):
        assert expected is not None
        compare(case, op, index, got, expected, inputs)
