"""Memory limit of the host for this process: machine, control group and resource limits."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpuexec.ir.target import ADDRESSABLE_BYTES

# Memory limits of control groups, version 2 and version 1: bytes that a container may hold, or "max".
_CGROUP_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def host_memory_bytes(cgroup_files: tuple[Path, ...] = _CGROUP_FILES) -> int:
    """Return the most memory this process could ever hold: the machine's, or a lower limit set for it.

    Not what is free now: that changes, and a plan must not depend on it.
    """
    if sys.platform == "win32":
        return ADDRESSABLE_BYTES  # which reports neither figure
    import resource

    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limits += [soft for soft, _ in map(resource.getrlimit, (resource.RLIMIT_AS, resource.RLIMIT_DATA)) if soft >= 0]
    for path in cgroup_files:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)
