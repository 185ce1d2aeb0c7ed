"""Single runs of a model with every node's values observed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.errors import InputError
from gpuexec.execution.engine import Engine
from gpuexec.execution.runs.comparing import Observe
from gpuexec.execution.runs.lists import split_inputs, to_array
from gpuexec.ir.spec import is_host_object
from gpuexec.model.model import Model
from gpuexec.passes.add_random_key import find_keys

Array = np.ndarray[Any, Any]


def observe(model: Model, inputs: object, backend: Backend, look: Observe) -> dict[str, Array]:
    """Run a model and call ``look`` with each node and its arrays, in order, once the device is done with it.

    All values are kept while the run lasts, so that nothing overwrites the observed values. Nodes that the host
    computes by itself (shapes, what has no kernel) are not shown; of a loop, the nodes of its body are, trip by trip.

    Returns:
        The outputs.
    """
    with _opened(model, backend, look) as engine, engine.exclusive:
        return _read_outputs(engine, inputs)


def run_plainly(model: Model, inputs: object, backend: Backend) -> dict[str, Array]:
    """Run a model without observation; return its outputs.

    Raises:
        InputError: One is strings or a container, or an input does not fit.
    """
    _check_numbers(model)
    with _opened(model, backend, None) as engine, engine.exclusive:
        return _read_outputs(engine, inputs)


def name_inputs(model: Model, inputs: object) -> dict[str, Array]:
    """Return inputs by name, given as for `gpuexec.Worker.schedule`, as arrays of the host.

    The state of random operators does not count as one: runs that are compared all draw from seed 0.

    Raises:
        InputError: There are too many, the model has memories, which start from elsewhere, or it takes or gives
            strings or containers.
    """
    _check_numbers(model)
    keys = find_keys(model.graph)
    memories = [memory.input for memory in model.memories if memory.input not in keys]
    if memories:
        raise InputError(
            f"The model has memories ({', '.join(memories)}), which start from elsewhere: take the model as it was"
            " before they were bound, and give them as inputs."
        )
    if isinstance(inputs, Mapping):
        named = {port.name: port for port in model.inputs}
        return {
            str(name): to_array(item, named[name].spec) if name in named else np.asarray(item)
            for name, item in inputs.items()
        }
    given = split_inputs(model.inputs, inputs)
    if len(given) != len(model.inputs):
        raise InputError(
            f"The model takes {len(model.inputs)} inputs ({', '.join(port.name for port in model.inputs)}), got"
            f" {len(given)}."
        )
    return {port.name: to_array(item, port.spec) for port, item in zip(model.inputs, given, strict=True)}


def _check_numbers(model: Model) -> None:
    for port in (*model.inputs, *model.outputs):
        if is_host_object(port.spec.dtype):
            raise InputError(
                f"{port.name!r} is {port.spec}: only tensors of numbers can be compared.",
                value=port.name,
            )


def _read_outputs(engine: Engine, inputs: object) -> dict[str, Array]:
    run = engine.schedule(inputs, copy=True)
    return {name: tensor.readback_and_clone() for name, tensor in run.outputs.items()}


@contextlib.contextmanager
def _opened(model: Model, backend: Backend, look: Observe | None) -> Iterator[Engine]:
    engine = Engine(model, backend, 1, observe=look)
    engine.states.state.seed(0)
    try:
        yield engine
    finally:
        engine.close()
