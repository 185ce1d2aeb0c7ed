"""Interrupts of Workers at random times: 20 on the CPU here.

``python -m tests.system.interrupts --count 500`` tries more.
"""

from __future__ import annotations

from tests.system.bad_models.command import describe
from tests.system.bad_models.pool import try_mutants
from tests.system.interrupts.child import CHILD

COUNT = 20


def test_worker_that_was_interrupted_is_usable_or_closed() -> None:
    rows = list(try_mutants(range(COUNT), child=CHILD))
    assert not [describe(row) for row in rows if row.outcome.is_bad]
    assert len(rows) == COUNT and {row.outcome.kind for row in rows} <= {"usable", "closed"}
