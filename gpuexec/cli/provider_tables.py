"""Tables of providers: which was taken for each product and convolution, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from gpuexec.execution.profiling.terminal import make_table, print_table
from gpuexec.ir.provider import Offer


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
