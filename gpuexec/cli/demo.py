"""gpuexec demo: the model of handwritten digits that comes with the package, on images that it was not trained on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpuexec.cli.feeds import add_run_arguments
from gpuexec.cli.run import add_result_arguments, main
from gpuexec.errors import NotFoundError

_MODEL, _DATA = "digits.onnx", "digits.npz"


def add_parser(commands: Any) -> None:
    """Add the subcommand, which is `run` with other defaults."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo", help="read handwritten digits: a model and 360 images that come with the package"
    )
    add_run_arguments(parser)
    add_result_arguments(parser)
    parser.set_defaults(main=_demonstrate, method=None, repeat=50, show=10)


def _demonstrate(options: argparse.Namespace) -> int:
    model, data = _find_digits()
    options.model = str(model)
    if not (options.input or options.dims or options.shapes):
        options.input, options.labels = [f"image={data}:images"], f"{data}:labels"
        options.rows = options.rows or "-360:"
    return main(options)


def _find_digits() -> tuple[Path, Path]:
    """Return the model and its images: inside an installed package, among the examples of a checkout.

    Raises:
        NotFoundError: Neither is there.
    """
    package = Path(__file__).resolve().parents[1]
    inside, examples = package / "_digits", package.parent / "examples"
    for model, data in ((inside / _MODEL, inside / _DATA), (examples / "models" / _MODEL, examples / "data" / _DATA)):
        if model.is_file() and data.is_file():
            return model, data
    raise NotFoundError(f"The digits are missing: neither {inside} nor {examples} has them. Install gpuexec anew.")
