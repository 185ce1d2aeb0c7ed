"""Numbers of random cases: few where all tests are run; ``DRAWS=20 pytest ...`` draws twenty times as many."""

from __future__ import annotations

import os

_TIMES = int(os.environ.get("DRAWS", "1"))


def draws(few: int) -> range:
    """Return the seeds of random cases, of which a run of all tests draws a few."""
    return range(few * _TIMES)
