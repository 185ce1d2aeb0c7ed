"""Precision on the command line: its options, and the model that they ask for."""

from __future__ import annotations

import argparse

from gpuexec.ir.precision import PRECISIONS
from gpuexec.model.model import Model, choose_precision


def add_precision_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --precision, --keep and --fuse-rounding."""
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="what products and convolutions of float are computed in (default: a program's own, else strict)",
    )
    parser.add_argument(
        "--keep",
        nargs="+",
        default=[],
        metavar="NODE",
        help="nodes that stay in float: names, or patterns such as 'a/*'",
    )
    parser.add_argument(
        "--fuse-rounding",
        action=argparse.BooleanOptionalAction,
        help="leave out roundings to half and bfloat16 within fused kernels (default: a program's own, else not)",
    )


def take_precision(model: Model, options: argparse.Namespace) -> Model:
    """Return a model in the precision that the options name.

    Raises:
        InputError: A name to keep is that of no node, or the model does not say how to compute in int8.
    """
    return choose_precision(model, options.precision, options.keep, options.fuse_rounding)
