"""Tests of gpuexec.

Compiled kernels are kept in the checkout they belong to, so that no other checkout and no user's cache shares them.
"""

import os
from pathlib import Path

os.environ.setdefault("GPUEXEC_CACHE_DIR", str(Path(__file__).resolve().parent.parent / "build" / "cache"))
