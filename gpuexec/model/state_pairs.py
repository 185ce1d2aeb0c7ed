"""Pairs of a model's outputs and inputs that are state, found by the names that exporters give them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuexec.errors import InputError
from gpuexec.importer.output_selection import shorten
from gpuexec.ir.graphs import Graph, Value

# Words of which one must be in the name of an input that is state.
_STATE_WORDS = frozenset(
    ("past", "cache", "caches", "state", "states", "memory", "memories", "mem", "recurrent", "hidden", "cell", "kv")
    + ("h", "c")
)
# Words that say which side of a run a name is on, or that it is a cache at all.
_SIDES = frozenset(
    ("past", "present", "in", "out", "input", "output", "new", "next", "old", "prev", "previous", "updated", "n")
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Names of the whole, which one side alone may have: past_key_values.0.key beside present.0.key.
_WHOLES = (("key", "values"), ("key", "value"), ("self",), ("decoder",))


def find_pairs(graph: Graph, taken: Sequence[str] = ()) -> dict[str, str]:
    """Return the inputs by the outputs that are their next values.

    An input whose name speaks of state (``past_key_values.0.key``, ``past_k_3``, ``conv_cache``, ``h``) is the partner
    of the output whose name is the same but for the words that tell the sides apart (``present.0.key``,
    ``present_k_3``, ``conv_cache_out``, ``hn``), and whose type and fixed extents fit. What has no partner, such as the
    keys of an encoder, stays an input.

    Args:
        graph: Whose inputs and outputs.
        taken: Names of inputs and outputs that are bound already.

    Raises:
        InputError: There is no pair, or an input has several partners; names them.
    """
    inputs = [value for value in graph.inputs if value.name not in taken]
    outputs = [value for value in graph.outputs if value.name not in taken]
    pairs: dict[str, str] = {}
    for held in inputs:
        if not _STATE_WORDS.isdisjoint(_split(held.name)):
            found = [value for value in outputs if _are_partners(held, value)]
            if len(found) > 1:
                raise InputError(
                    f"Input {held.name!r} may be the state of {' or '.join(value.name for value in found)}; name the"
                    " pairs in bind_state.",
                    value=held.name,
                )
            if found and found[0].name in pairs:
                raise InputError(
                    f"Output {found[0].name!r} may be the next value of {pairs[found[0].name]!r} or {held.name!r}; name"
                    " the pairs in bind_state.",
                    value=found[0].name,
                )
            pairs.update({value.name: held.name for value in found})
    if not pairs:
        raise InputError(
            f"No inputs and outputs of {graph.name!r} are state by their names; it takes"
            f" {shorten([value.name for value in inputs])} and gives"
            f" {shorten([value.name for value in outputs])}. Name the pairs in bind_state."
        )
    return pairs


def _are_partners(held: Value, output: Value) -> bool:
    before, after = held.declared, output.declared
    if before is None or after is None or before.dtype != after.dtype or before.dims is None or after.dims is None:
        return False
    if len(before.dims) != len(after.dims):
        return False
    fixed = zip(before.dims, after.dims, strict=True)
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in fixed):
        return False
    return bool(_list_keys(held.name) & _list_keys(output.name))


def _list_keys(name: str) -> set[tuple[str, ...]]:
    """Return what a name is without the words of its side, and without names of the whole as well."""
    words = [word for word in _split(name) if word not in _SIDES]
    keys = {tuple(words)}
    for whole in _WHOLES:
        for start in range(len(words)):
            if tuple(words[start : start + len(whole)]) == whole:
                keys |= {tuple(words[:start] + words[start + len(whole) :])}
    return {key for key in keys if key}


def _split(name: str) -> list[str]:
    """Return the words and numbers of a name in lower case: ``stateN`` is two words; ``h0`` and ``hn`` are ``h``."""
    known = re.fullmatch(r"([hc])_?[0nN]", name)
    return [part.lower() for part in _WORD.findall(known[1] if known else name)]
