"""Providers on the command line: their options."""

from __future__ import annotations

import argparse

from gpuexec.ir.provider import LIBRARIES


def add_provider_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --providers and --tuning."""
    parser.add_argument(
        "--providers",
        nargs="+",
        default=[],
        choices=LIBRARIES,
        help="libraries that products and convolutions may be computed by on a GPU (default: none)",
    )
    parser.add_argument("--tuning", metavar="FILE", help="times of theirs that `gpuexec tune` measured")
