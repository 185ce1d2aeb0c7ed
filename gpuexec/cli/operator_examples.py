"""Example calls of operators, from which their element types and blits are derived.

An operator's ``infer`` decides the types it accepts, input by input, and its ``lower`` the launches that become blits;
a list beside them would be a second source of truth. So both are called (`gpuexec.cli.operator_types`) with an example:
by default tensors of one type and of few axes, or else the operator's own:

    example = "float32[1,1,4,4] kernel_shape=(2,2)"

An input is a type and a shape, with its content where shapes depend on it (``int64[2]=3,2``); ``-`` where it is
absent; ``sequence``, ``optional`` or ``map``. An attribute is a literal of Python without blanks. Several examples are
separated by ``|``: together they cover every type of an input.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError, InputError, NeedsHostValue
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.containers import make_blank, make_map, make_optional, make_sequence
from gpuexec.ir.operator import Array, Operator, build
from gpuexec.ir.spec import DTYPES, HOST_OBJECTS, MAP, OPTIONAL, SEQUENCE, STRING, TensorSpec, dtype_row, is_container
from gpuexec.ops.lib.composite import Composite

Specs = tuple[TensorSpec | None, ...]
_INPUT = re.compile(
    rf"(?P<type>{'|'.join(row.name for row in (*DTYPES, *HOST_OBJECTS))})(\[(?P<shape>[\d,]*)\])?(=(?P<content>\S+))?"
)
_ATTRIBUTE = re.compile(r"(?P<key>\w+)=(?P<value>\S+)")
# Inputs tried where there is no example: all of one of these types, in this order, with this many axes of two elements.
_COMMON = ("float32", "int64", "bool", "uint8", "string", "sequence", "optional", "map")
_RANKS, _MAX_INPUTS = (3, 4, 2, 1, 0), 3
# Default content of a container.
_HELD = {
    SEQUENCE: make_sequence([np.zeros(2, np.float32)] * 2),
    OPTIONAL: make_optional(np.zeros(2, np.float32)),
    MAP: make_map({1: np.array(1, np.float32)}),
}


@dataclass(frozen=True, slots=True)
class Example:
    """An operator with attributes, and inputs that it accepts."""

    operator: Operator
    inputs: Specs


def find_examples(cls: type[Operator]) -> tuple[Example, ...]:
    """Return an operator's own examples, else inputs of one type that it accepts, if any.

    Raises:
        InputError: It does not take its own example, or that can't be read.
    """
    if cls.example:
        return tuple([_read_example(cls, text) for text in cls.example.split("|")])
    try:
        op = build(cls.name, {})
    except InputError:  # an attribute is missing
        return ()
    return next(((Example(op, inputs),) for inputs in _list_common(cls) if takes(op, inputs)), ())


def takes(op: Operator, inputs: Sequence[TensorSpec | None], wants_content: bool = False) -> bool:
    """Return whether an operator accepts inputs; with ``wants_content``, also if that depends on their content.

    An operator that asks for content first may still refuse a type afterwards.
    """
    try:
        infer_specs(op, inputs)
    except NeedsHostValue:
        return wants_content
    except GpuexecError:
        return False
    return True


def convert_spec(spec: TensorSpec, dtype: np.dtype[Any]) -> TensorSpec:
    """Return a spec of another type; known content is kept as far as the type can hold it."""
    if is_container(dtype):
        return TensorSpec.of(_HELD[dtype])
    made = TensorSpec(spec.shape, dtype)
    if spec.value is None:
        return made
    if is_container(spec.dtype) or STRING in (spec.dtype, dtype):
        return made.with_value(spec.value.array if spec.dtype == dtype else make_blank(spec.shape, dtype))
    with np.errstate(all="ignore"):
        between = np.float32 if dtype_row(dtype).is_narrow else dtype
        return made.with_value(spec.value.array.astype(between).astype(dtype))


def _read_example(cls: type[Operator], text: str) -> Example:
    inputs: list[TensorSpec | None] = []
    attributes: dict[str, Any] = {}
    for word in text.split():
        try:
            read, pair = _INPUT.fullmatch(word), _ATTRIBUTE.fullmatch(word)
            if pair is not None and read is None:
                attributes[pair["key"]] = ast.literal_eval(pair["value"])
            else:
                inputs.append(None if word == "-" else _read_input(read))
        except (ValueError, SyntaxError) as error:
            what = f"The example of {cls.name} has {word!r}; expected an input, '-' or an attribute."
            raise InputError(what) from error
    example = Example(build(cls.name, attributes), tuple(inputs))
    if not takes(example.operator, inputs, wants_content=True):
        raise InputError(f"{cls.name} does not take its own example {text.strip()!r}.")
    return example


def _read_input(read: re.Match[str] | None) -> TensorSpec:
    if read is None:
        raise ValueError
    dtype = dtype_row(read["type"]).numpy
    if is_container(dtype):
        return TensorSpec.of(_HELD[dtype])
    spec = TensorSpec(tuple([int(word) for word in (read["shape"] or "").split(",") if word]), dtype)
    if read["content"] is None:
        return spec
    content: Array = np.array([float(word) for word in read["content"].split(",")])
    return spec.with_value(content.reshape(spec.shape).astype(dtype))


def _list_common(cls: type[Operator]) -> Iterator[Specs]:
    """Yield inputs of one type, as many as an operator requires; integers get content that may be a shape."""
    call = inspect.signature(cls.draw if issubclass(cls, Composite) else cls.infer)
    parameters = [each for each in call.parameters.values() if each.name not in ("self", "sketch")]
    is_open = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    counts = range(1, _MAX_INPUTS + 1) if is_open else (sum(each.default is each.empty for each in parameters),)
    for name in _COMMON:
        dtype = dtype_row(name).numpy
        for count in counts:
            for ranks in itertools.product(_RANKS, repeat=count) if count <= _MAX_INPUTS else ():
                specs = [TensorSpec((2,) * rank, dtype) for rank in ranks]
                if is_container(dtype):
                    yield (TensorSpec.of(_HELD[dtype]),) * count
                elif dtype.kind in "iu":
                    yield tuple([spec.with_value(np.ones(spec.shape, dtype)) for spec in specs])
                else:
                    yield tuple(specs)
