"""Type mutations of declared inputs and outputs: element types, dims, ranks."""

from __future__ import annotations

from tests.system.bad_models.mutant import ABSURD_INTS, HUGE, ODD_STRINGS, Draft, mutation

_TYPES = (*range(27), 99, -1, 2**31 - 1)


@mutation
def set_element_type(draft: Draft) -> None:
    draft.info().type.tensor_type.elem_type = draft.pick(_TYPES)


@mutation
def set_element_type_of_input(draft: Draft) -> None:
    draft.pick(draft.graph.input).type.tensor_type.elem_type = draft.pick((1, 2, 5, 6, 7, 9, 10, 11, 13, 16))


@mutation
def remove_type(draft: Draft) -> None:
    draft.info().ClearField("type")


@mutation
def make_container(draft: Draft) -> None:
    """A sequence, an optional, a map; sequences of sequences of sequences."""
    info, kind = draft.info(), draft.pick(("sequence", "deep", "optional", "map", "sparse"))
    info.ClearField("type")
    if kind == "map":
        info.type.map_type.key_type = draft.pick(_TYPES)
    elif kind == "optional":
        info.type.optional_type.elem_type.tensor_type.elem_type = 1
    elif kind == "sparse":
        info.type.sparse_tensor_type.elem_type = 1
    else:
        inner = info.type
        for _ in range(1 if kind == "sequence" else 30):
            inner = inner.sequence_type.elem_type
        inner.tensor_type.elem_type = 1


@mutation
def set_dim(draft: Draft) -> None:
    dim = draft.pick(draft.info().type.tensor_type.shape.dim)
    dim.dim_value = draft.pick((*ABSURD_INTS, 2, 3, 100))


@mutation
def set_dim_of_input(draft: Draft) -> None:
    dim = draft.pick(draft.pick(draft.graph.input).type.tensor_type.shape.dim)
    dim.dim_value = draft.pick((0, 1, 2, 3, 5, 1000, *HUGE))


@mutation
def name_dim(draft: Draft) -> None:
    dim = draft.pick(draft.info().type.tensor_type.shape.dim)
    dim.dim_param = draft.pick(("N", "batch", *ODD_STRINGS))


@mutation
def name_all_dims_alike(draft: Draft) -> None:
    for info in draft.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            dim.dim_param = "n"


@mutation
def change_rank(draft: Draft) -> None:
    dims = draft.info().type.tensor_type.shape.dim
    if draft.rng.random() < 0.4:
        del dims[draft.rng.randrange(len(dims) or 1) :]
    else:
        for _ in range(draft.pick((1, 1, 2, 70))):
            dims.add(dim_value=1)


@mutation
def remove_shape(draft: Draft) -> None:
    draft.info().type.tensor_type.ClearField("shape")


@mutation
def contradict_output(draft: Draft) -> None:
    """An output of another rank, type and shape than what is computed."""
    tensor = draft.pick(draft.graph.output).type.tensor_type
    tensor.elem_type = draft.pick((1, 7, 9))
    tensor.ClearField("shape")
    for _ in range(draft.pick((0, 1, 7))):
        tensor.shape.dim.add(dim_value=draft.pick((0, 3, 2**40)))


@mutation
def declare_odd_values(draft: Draft) -> None:
    """``value_info`` of names that do and don't exist."""
    names = [name for node in draft.graph.node for name in node.output]
    info = draft.graph.value_info.add(name=draft.pick([*names, "nowhere"]))
    info.type.tensor_type.elem_type = draft.pick(_TYPES)
    info.type.tensor_type.shape.dim.add(dim_value=draft.pick(ABSURD_INTS))
