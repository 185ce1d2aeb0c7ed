"""Model loading: ONNX bytes to a Model, through the importer and the AT_LOAD passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuexec.errors import InputError
from gpuexec.importer.load import load_graph
from gpuexec.importer.origin import ExternalData
from gpuexec.importer.read import Source
from gpuexec.model.editing.choosing import declare_outputs
from gpuexec.model.initial_state import bind_shapes
from gpuexec.model.model import Model
from gpuexec.model.state_spec import make_memory
from gpuexec.passes import AT_LOAD, run_passes
from gpuexec.passes.add_memories import add_memories
from gpuexec.planner.classes import check_declared
from gpuexec.system.phases import phase
from gpuexec.system.progress import ProgressCallback, check_progress_callback


@phase("load model")
def load(
    source: Source,
    *,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    outputs: Sequence[str] | None = None,
    disabled_passes: Iterable[str] = (),
    memories: str | None = None,
    progress: ProgressCallback | None = None,
    external: ExternalData | None = None,
) -> Model:
    """Load an ONNX model.

    Args:
        source: A path, the file's bytes, a binary file object, an onnx.ModelProto, or what holds one as `model_proto`,
            as the ONNXProgram of torch.onnx.export does.
        dims: Free dimensions by name: an extent fixes one (``{"batch": 1}``), a range bounds it (``{"past": (0,
            128)}``), so that one plan serves all of it.
        outputs: Names of the values that become the outputs, inner ones too, in this order; what none of them needs is
            left out, supported or not. None: those the model declares.
        disabled_passes: Names of passes to leave out, at load and when planning.
        memories: ``"implicit"`` lets recurrent layers that start from nothing go on from where the run before left
            them: each is given an input and an output for its state, listed in `Model.memories`.
        progress: Called with a `Progress` for each large weight that is read from the model's own file. Weights in
            files beside it are not read now, but mapped.
        external: Content in place of files beside the model: files by the location that it names, so that a model of
            bytes has them too, or initializers by name.

    Weights of at least 4096 bytes in files beside the model stay there until a device needs them: they are read piece
    by piece on their way to it, or once where the CPU computes from them. So such a file should stay as it is as long
    as the model is used; put a new file in its place to change it. If it is written to or cut, what needs more of it
    raises an AccessError that names the file, and what was read before stays good. A link, or a file outside of the
    model's folder, is refused.

    Raises:
        AccessError: A file was written to or cut while it was read.
        ModelError: The file is broken, or the graph is.
        UnsupportedError: Operators or forms that are not supported; lists all of them with their nodes.
        InputError: A dimension, output or pass of that name does not exist, content given fits no initializer, or
            ``memories`` or ``progress`` is something else.

    Example:
        >>> gx.load("digits.onnx", dims={"batch": (1, 64)}, outputs=["logits"])
        Model('digits', 9 nodes, image: float32[batch,1,8,8] -> logits: float32[batch,10])
    """
    if memories not in (None, "implicit"):
        raise InputError(f"memories takes None or 'implicit', got {memories!r}; bind others by Model.bind_state.")
    check_progress_callback(progress)
    info = load_graph(source, outputs=outputs, progress=progress, external=external)
    info = replace(info, graph=declare_outputs(info.graph))
    declared = check_declared(info.graph, dims or {})
    disabled = frozenset(disabled_passes)
    graph = run_passes(info.graph, AT_LOAD, disabled)
    if memories is None:
        return Model(info, graph, declared, disabled)
    graph, pairs = add_memories(graph)
    kept = [make_memory(held, output, declared, is_implicit=True) for held, output in pairs]
    return Model(info, graph, declared, disabled, bind_shapes(graph, kept, declared))
