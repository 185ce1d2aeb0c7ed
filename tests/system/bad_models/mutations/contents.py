"""Initializer mutations: dims and types that do not match content, external files, sparse tensors."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto

from tests.system.bad_models.mutant import ABSURD_INTS, HUGE, Draft, mutation

_CONTENT = b"0123456789abcdef" * 64


def pick_tensor(draft: Draft) -> TensorProto:
    """Choose an initializer or a tensor that is an attribute."""
    inner = [a.t for node in draft.graph.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
    return draft.pick([*draft.graph.initializer, *inner])


@mutation
def set_dim_of_tensor(draft: Draft) -> None:
    dims = pick_tensor(draft).dims
    dims[draft.rng.randrange(len(dims) or 1)] = draft.pick((*ABSURD_INTS, 2, 3))


@mutation
def change_rank_of_tensor(draft: Draft) -> None:
    tensor = pick_tensor(draft)
    tensor.dims[:] = draft.pick(([], [1] * 70, [*tensor.dims, 1], list(tensor.dims)[:-1], [0], [2] * 40))


@mutation
def make_tensor_huge(draft: Draft) -> None:
    """Much is declared, and nothing is there."""
    tensor = pick_tensor(draft)
    tensor.ClearField("raw_data")
    tensor.dims[:] = [draft.pick(HUGE)] * draft.pick((1, 2, 5))


@mutation
def make_tensor_empty(draft: Draft) -> None:
    """A shape of no elements beside one of too many."""
    tensor = pick_tensor(draft)
    tensor.ClearField("raw_data")
    tensor.dims[:] = [0, draft.pick((0, 1, *HUGE))]


@mutation
def set_type_of_tensor(draft: Draft) -> None:
    pick_tensor(draft).data_type = draft.pick((*range(27), 99, -1))


@mutation
def cut_content(draft: Draft) -> None:
    tensor = draft.pick(tensor for tensor in draft.graph.initializer if tensor.raw_data)
    tensor.raw_data = tensor.raw_data[: draft.rng.randrange(len(tensor.raw_data))]


@mutation
def lengthen_content(draft: Draft) -> None:
    tensor = draft.pick(tensor for tensor in draft.graph.initializer if tensor.raw_data)
    tensor.raw_data = tensor.raw_data + bytes(draft.pick((1, 4, 4096)))


@mutation
def put_content_elsewhere(draft: Draft) -> None:
    """In the field of another type, or in two at once."""
    tensor = pick_tensor(draft)
    if draft.rng.random() < 0.5:
        tensor.ClearField("raw_data")
    draft.pick((tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.uint64_data)).extend([1] * 6)
    if draft.rng.random() < 0.3:
        tensor.string_data.append(b"\xff")


@mutation
def fill_with_absurd_values(draft: Draft) -> None:
    """Replace axes, sizes or pads by absurd numbers."""
    tensor = draft.pick(t for t in draft.graph.initializer if t.data_type == TensorProto.INT64)
    count = len(tensor.raw_data) // 8 or len(tensor.int64_data)
    tensor.ClearField("raw_data")
    tensor.int64_data[:] = [draft.pick((*ABSURD_INTS, 2, 1000, 100_000)) for _ in range(count)]


fill_again = mutation(fill_with_absurd_values)


@mutation
def fill_with_odd_floats(draft: Draft) -> None:
    tensor = draft.pick(t for t in draft.graph.initializer if t.data_type == TensorProto.FLOAT and t.raw_data)
    odd = draft.pick((b"\xff\xff\xff\xff", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\x01\0\0\0", b"\0\0\0\x80"))
    tensor.raw_data = odd * (len(tensor.raw_data) // 4)


@mutation
def rename_tensor(draft: Draft) -> None:
    draft.pick(draft.graph.initializer).name = draft.pick(("", "nowhere", *(i.name for i in draft.graph.input)))


@mutation
def set_segment(draft: Draft) -> None:
    pick_tensor(draft).segment.end = draft.pick(ABSURD_INTS)


@mutation
def remove_initializer(draft: Draft) -> None:
    del draft.graph.initializer[draft.rng.randrange(len(draft.graph.initializer) or 1)]


@mutation
def make_sparse(draft: Draft) -> None:
    dense = draft.pick(draft.graph.initializer)
    sparse = draft.graph.sparse_initializer.add()
    sparse.dims[:] = [draft.pick((*HUGE, 3)), 4]
    sparse.values.CopyFrom(TensorProto(name=dense.name, dims=[2], data_type=1, raw_data=bytes(8)))
    indices = [draft.pick(ABSURD_INTS), 1]
    sparse.indices.CopyFrom(TensorProto(dims=[2], data_type=7, int64_data=indices))
    draft.graph.initializer.remove(dense)


@mutation
def put_content_in_a_file(draft: Draft) -> None:
    """Absent, outside of the folder, by a link, a folder, a pipe, too short; odd offsets and lengths."""
    tensor = draft.pick(tensor for tensor in draft.graph.initializer if tensor.name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    draft.beside.update({"data.bin": _CONTENT, "short.bin": b"", "link.bin": Path("/etc/passwd"), "pipe.bin": None})
    draft.beside["loop.bin"] = Path("loop.bin")
    places = (
        "data.bin",
        "data.bin",
        "data.bin",
        "short.bin",
        "link.bin",
        "pipe.bin",
        "loop.bin",
        "absent.bin",
        ".",
        "",
    )
    odd = ("../data.bin", "/etc/passwd", "/dev/zero", "data.bin/x", "\0", "a" * 5000, "..", "model.onnx", "C:\\x")
    rows = {"location": draft.pick((*places, *odd))}
    if draft.rng.random() < 0.6:
        rows["offset"] = draft.pick(("0", "4", "1000", "-1", "99999", str(2**63), "1e3", "x", ""))
    if draft.rng.random() < 0.6:
        rows["length"] = draft.pick(("0", "16", str(2**40), "-1", "99999999999999999999", "x", ""))
    if draft.rng.random() < 0.1:
        rows["mystery"] = "x"
    for key, value in rows.items():
        tensor.external_data.add(key=key, value=value)


put_content_in_a_file_again = mutation(put_content_in_a_file)
