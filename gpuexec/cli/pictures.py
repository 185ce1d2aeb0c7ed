"""Images in a terminal: a pixel is two character cells, in five shades."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rich.console import Console

Array = np.ndarray[Any, Any]
_SHADES = " ░▒▓█"


def show(console: Console, images: Array, scores: Array, labels: Array | None, count: int) -> None:
    """Print the first ``count`` images side by side, each over its predicted class, a wrong one with the true class.

    Args:
        console: Where to print.
        images: ``[n, 1, height, width]`` or ``[n, height, width]``.
        scores: ``[n, classes]``.
        labels: ``[n]``, or None.
        count: How many; as many as fit in a line of the terminal go side by side.
    """
    images = images.reshape(images.shape[0], *images.shape[-2:])[:count]
    width = 2 * images.shape[-1] + 2
    per_line = max(1, console.width // width)
    low, high = float(images.min()), float(images.max())
    levels = ((images - low) / max(high - low, 1e-30) * (len(_SHADES) - 1)).round().astype(int)
    for start in range(0, len(images), per_line):
        group = levels[start : start + per_line]
        for row in range(group.shape[1]):
            console.print("  ".join("".join(_SHADES[level] * 2 for level in image[row]) for image in group))
        captions = []
        for index in range(start, start + len(group)):
            guess = int(scores[index].argmax())
            wrong = labels is not None and guess != int(labels[index])
            text = f"{guess}" + (f" (is {int(labels[index])})" if wrong and labels is not None else "")
            captions.append(text.center(width - 2))
        console.print("[bold]" + "  ".join(captions) + "[/bold]\n")
