"""Alignment check from the command line: each operator family at offsets of 1 to 15 elements, in check mode.

python -m tests.system.every_address

The tests take one offset for each case, in turn; all 18,000 take four minutes of one core.
"""

from __future__ import annotations

import sys
from collections import Counter

from tests.ops.test_addresses import FAMILIES, SHIFTS, check_shifted, list_families


def main() -> int:
    """Return 1 if a case differs or its kernel fails at some offset."""
    counts: Counter[str] = Counter()
    for family in FAMILIES:
        for call in list_families()[family]:
            for shift in SHIFTS:
                counts["checked"] += 1
                try:
                    check_shifted(call, shift)
                except Exception as error:
                    counts["failed"] += 1
                    print(f"{family} {call.operator} at {shift}: {type(error).__name__}: {error}", flush=True)
    print(f"{len(FAMILIES)} families: {counts['checked']} checked, {counts['failed']} failed")
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
