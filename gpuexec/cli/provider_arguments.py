"""Providers on the command line: their options, and which was taken for each product and convolution, and why."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from gpuexec.execution.profiling.terminal import make_table, print_table
from gpuexec.ir.provider import LIBRARIES, Offer


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


def print_offers(console: Console, offers: Sequence[tuple[str, Offer]]) -> None:
    """Print the provider of each node that had a choice, with the cost of each candidate."""
    table = make_table(("node", "provider", "why"), ())
    for node, offer in offers:
        table.add_row(escape(node), offer.chosen, escape(offer.reason))
    print_table(console, table)


def encode_offers(offers: Sequence[tuple[str, Offer]]) -> list[dict[str, Any]]:
    """Return the same as JSON data."""
    return [
        {
            "node": node,
            "provider": offer.chosen,
            "problem": offer.problem,
            "candidates": [
                {"provider": name, "us": round(us, 3), "is_measured": is_measured}
                for name, us, is_measured in offer.costs
            ],
            "refused": dict(offer.refused),
        }
        for node, offer in offers
    ]
