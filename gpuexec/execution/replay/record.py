"""Recording of a run for replay."""

from __future__ import annotations

from collections.abc import Mapping

from gpuexec.errors import StateError
from gpuexec.execution.engine import Engine
from gpuexec.execution.replay.replay import Replay
from gpuexec.execution.replay.replayable import make_replayable
from gpuexec.execution.resources.caller_stream import check_not_capturing, open_stream
from gpuexec.execution.runs.inputs import describe_inputs


def record_replay(engine: Engine, inputs: object, outputs: Mapping[str, object], stream: object = None) -> Replay:
    """Record a run of an engine.

    Args:
        engine: Whose.
        inputs: Arrays, or shapes in place of those that the first submission gives.
        outputs: As for `Replay.submit`.
        stream: What `Replay.submit` takes where it is not told another one; None: the engine's.

    Raises:
        InputError: An input or output does not fit.
        ImplicitSyncError: The host has a say in the middle of the run; names the nodes.
        StateError: The engine finishes, compares or looks at each command, its model has memories, or the stream is
            capturing.
    """
    memories = engine.model.memories
    if memories:
        raise StateError(
            "A recording reads and writes the same bytes each time, and the memories of this model"
            f" ({', '.join(memory.input for memory in memories)}) move on. Use schedule(), which"
            " launches a plan that runs often as one graph; or record the model with its states as inputs and"
            " outputs, and have two device arrays take turns: submit({input: one}, outputs={output: other})."
        )
    given, arrays = describe_inputs(engine.input_reader, inputs)
    target = engine.stream if stream is None else open_stream(engine.backend, stream)
    if engine.is_synchronous:
        raise StateError("A Worker that is synchronous, or compares, records no replay: make one without.")
    if engine.planning.inspector.exposure:
        raise StateError("A Worker that watches or taps records no replay: make one without watch=, or end tap().")
    check_not_capturing(target)
    stage, planned = engine.choose(given)
    return Replay(engine, make_replayable(engine.model, stage, planned, given), arrays, outputs, target)
