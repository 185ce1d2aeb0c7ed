"""Class labels of classifiers: integers, or strings looked up on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Node, Value
from gpuexec.ir.operator import Array, build
from gpuexec.ir.spec import STRING

_INT64 = np.dtype(np.int64)


def check_names(ints: tuple[int, ...] | None, strings: tuple[str, ...] | None) -> int:
    """Return the number of classes.

    Raises:
        InputError: Classes have no names, or names of both kinds.
    """
    if bool(ints) == bool(strings):
        raise InputError(
            f"expected labels that are integers or labels that are strings, got {len(ints or ())} and "
            f"{len(strings or ())}."
        )
    return len(ints or strings or ())


def label_dtype(strings: tuple[str, ...] | None) -> np.dtype[Any]:
    """Return the type of the labels."""
    return STRING if strings else _INT64


def list_names(ints: tuple[int, ...] | None, strings: tuple[str, ...] | None) -> tuple[int, ...]:
    """Return an integer for each place of a class: its label, or the place itself where labels are strings.

    Where only one class has a name, the other, of place 0, is 0.
    """
    names = ints or tuple(range(len(strings or ())))
    if len(names) > 1:
        return names
    return (0, names[0] if ints else 1)


def name_places(places: Array, ints: tuple[int, ...] | None, strings: tuple[str, ...] | None) -> Array:
    """Return the labels of places; where only one class has a name, that of the other is empty."""
    if strings:
        return np.array(strings if len(strings) > 1 else ("", *strings), STRING)[places]
    return np.array(list_names(ints, None), _INT64)[places]


def look_up_strings(node: Node, ints_field: str, strings_field: str) -> tuple[Node, ...]:
    """Return a classifier with class indices as labels, and a LabelEncoder of their names.

    So the scores stay on the device. A node whose labels are integers, or unwanted, is returned as it is.
    """
    strings = getattr(node.operator, strings_field)
    if not strings:
        return (node,)
    # A single name is that of the second of two classes.
    places = tuple(range(len(strings))) if len(strings) > 1 else (1,)
    operator: Any = replace(node.operator, **{strings_field: None, ints_field: places})  # type: ignore[type-var]
    labels, *scores = node.outputs
    if labels is None:
        return (Node(operator, node.inputs, node.outputs, node.name),)
    found = Value(f"{labels.name}.place")
    keys = {"keys_int64s": (0, *places) if len(places) == 1 else places}
    names = {"values_strings": ("", *strings) if len(strings) == 1 else strings}
    encoder = build("ai.onnx.ml.LabelEncoder", {**keys, **names})
    return (
        Node(operator, node.inputs, (found, *scores), node.name),
        Node(encoder, (found,), (labels,), f"{node.name}.names"),
    )
