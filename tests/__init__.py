"""Tests keep compiled kernels in the checkout they belong to, so that no other one, and no user's cache, meets them."""

import os
from pathlib import Path

os.environ.setdefault("GPUEXEC_CACHE_DIR", str(Path(__file__).resolve().parent.parent / "build" / "cache"))
