"""Precision of a model's products and convolutions: its names, and what is left out of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpuexec.errors import InputError

REFERENCE, STRICT, TF32, FP8, INT8 = "reference", "strict", "tf32", "fp8", "int8"
PRECISIONS = (REFERENCE, STRICT, TF32, "fp16", "bf16", FP8, INT8)
# Those whose operands are rounded, in what float holds of them.
ROUNDED = (TF32, "fp16", "bf16", FP8)
# Those whose operands are stored in the type that they are rounded to, by the name of the type.
STORED = {"fp16": "float16", "bf16": "bfloat16"}
# The one whose range is less than that of what is rounded to it, and its largest number. fp8 has scales.
OVERFLOWING, LARGEST_FP16 = "fp16", 65504


@dataclass(frozen=True, slots=True)
class Precision:
    """What products and convolutions of float are computed in.

    Attributes:
        name: ``"reference"``: float, and every sum in the order of its terms. ``"strict"``: float, in any order.
            ``"tf32"``, ``"bf16"``, ``"fp16"``, ``"fp8"``: operands rounded to that type, sums in float. ``"int8"``: as
            the model's QuantizeLinear and DequantizeLinear say.
        keep: Names of nodes that stay in float, or patterns of them as in a shell (``"decoder/*"``).
        fuse_rounding: Whether what passes from step to step within a fused kernel stays as it is computed, in float for
            half and bfloat16. False: it is rounded to its type, as if it was stored.
    """

    name: str = STRICT
    keep: frozenset[str] = frozenset()
    fuse_rounding: bool = False

    @staticmethod
    def of(name: str, keep: Collection[str] = (), fuse_rounding: bool = False) -> Precision:
        """Return the precision of a name, with what is left out of it.

        Raises:
            InputError: There is no such precision, ``keep`` is no collection of names, or ``fuse_rounding`` no bool.
        """
        if name not in PRECISIONS:
            raise InputError(f"precision takes one of {', '.join(map(repr, PRECISIONS))}, got {name!r}.")
        if isinstance(keep, str) or not all(isinstance(each, str) for each in keep):
            raise InputError(f"keep takes names of nodes or patterns of them, as in {{'lm_head'}}, got {keep!r}.")
        if not isinstance(fuse_rounding, bool):
            raise InputError(f"fuse_rounding takes True or False, got {fuse_rounding!r}.")
        return Precision(name, frozenset(keep), fuse_rounding)

    def keeps(self, node: str) -> bool:
        """Return whether the node of a name stays in float: one that stands for several, if one of those does."""
        return any(has_name(each, node) for each in self.keep)

    def __str__(self) -> str:
        kept = f", but for {', '.join(sorted(self.keep))}" if self.keep else ""
        return self.name + kept + (", without roundings inside of kernels" if self.fuse_rounding else "")


def has_name(pattern: str, node: str) -> bool:
    """Return whether a node has a name, or one that fits a pattern; a merged node has those of its parts, too."""
    return any(each == pattern or fnmatchcase(each, pattern) for each in (node, *node.split("+")))


DEFAULT_PRECISION = Precision()
