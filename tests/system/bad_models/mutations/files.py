"""File mutations: flipped, cut and repeated bytes; versions and names in the header."""

from __future__ import annotations

import onnx

from tests.system.bad_models.mutant import ABSURD_INTS, ODD_STRINGS, Draft, mutation


@mutation
def flip_bits(draft: Draft) -> None:
    content = bytearray(draft.model.SerializeToString())
    for _ in range(draft.pick((1, 2, 8, 64))):
        content[draft.rng.randrange(len(content))] ^= 1 << draft.rng.randrange(8)
    draft.content = bytes(content)


@mutation
def flip_bits_of_structure(draft: Draft) -> None:
    """Names, types and dims; not the content of tensors, where most bytes are."""
    content = bytearray(draft.model.SerializeToString())
    held = [bytes(tensor.raw_data) for tensor in draft.graph.initializer if len(tensor.raw_data) > 64]
    taken: set[int] = set()
    for data in held:
        start = content.find(data)
        taken.update(range(start, start + len(data)))
    free = [place for place in range(len(content)) if place not in taken]
    for _ in range(draft.pick((1, 1, 2, 4))):
        content[draft.pick(free)] ^= 1 << draft.rng.randrange(8)
    draft.content = bytes(content)


@mutation
def overwrite_bytes(draft: Draft) -> None:
    content = bytearray(draft.model.SerializeToString())
    start, count = draft.rng.randrange(len(content)), draft.pick((1, 4, 32, 500))
    filler = draft.pick((b"\0", b"\xff", b"\x80", b"\x7f"))
    content[start : start + count] = filler * len(content[start : start + count])
    draft.content = bytes(content)


@mutation
def insert_bytes(draft: Draft) -> None:
    content = draft.model.SerializeToString()
    start = draft.rng.randrange(len(content))
    draft.content = content[:start] + draft.rng.randbytes(draft.pick((1, 3, 100))) + content[start:]


@mutation
def delete_bytes(draft: Draft) -> None:
    content = draft.model.SerializeToString()
    start = draft.rng.randrange(len(content))
    draft.content = content[:start] + content[start + draft.pick((1, 2, 50)) :]


@mutation
def repeat_bytes(draft: Draft) -> None:
    content = draft.model.SerializeToString()
    start = draft.rng.randrange(len(content))
    chunk = content[start : start + draft.pick((2, 40, 400))]
    draft.content = content[:start] + chunk * draft.pick((2, 3)) + content[start:]


@mutation
def truncate(draft: Draft) -> None:
    content = draft.model.SerializeToString()
    draft.content = content[: draft.rng.randrange(len(content))]


@mutation
def replace_all(draft: Draft) -> None:
    """Something else than a model: noise, text, a picture's head, a tensor, part of a model."""
    draft.content = draft.pick(
        [
            draft.rng.randbytes(300),
            b'{"model": []}',
            b"\x89PNG\r\n\x1a\n" + bytes(50),
            b"\x80\x05\x95\x10\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system",
            onnx.TensorProto(dims=[1], data_type=1, raw_data=bytes(4)).SerializeToString(),
            draft.graph.SerializeToString(),
        ]
    )


@mutation
def set_opset(draft: Draft) -> None:
    draft.pick(draft.model.opset_import).version = draft.pick((-1, 0, 1, 6, 8, 13, 27, 99, 2**31, -(2**63)))


@mutation
def remove_opsets(draft: Draft) -> None:
    draft.model.ClearField("opset_import")


@mutation
def add_opset(draft: Draft) -> None:
    domain = draft.pick(("", "ai.onnx", "ai.onnx.ml", *ODD_STRINGS))
    draft.model.opset_import.add(domain=domain, version=draft.pick((1, 7, *ABSURD_INTS)))


@mutation
def set_ir_version(draft: Draft) -> None:
    draft.model.ir_version = draft.pick(ABSURD_INTS)


@mutation
def write_odd_text(draft: Draft) -> None:
    """A string of the head, or a name, that is not UTF-8: protobuf lets it through."""
    mark = "marker_of_a_string"
    place = draft.pick(("producer", "graph", "doc", "node", "input", "metadata"))
    if place == "producer":
        draft.model.producer_name = mark
    elif place == "graph":
        draft.graph.name = mark
    elif place == "doc":
        draft.model.doc_string = mark
    elif place == "node":
        draft.pick(draft.graph.node).name = mark
    elif place == "input":
        draft.pick(draft.graph.input).name = mark
    else:
        draft.model.metadata_props.add(key=mark, value=mark)
    draft.content = draft.model.SerializeToString().replace(mark.encode(), b"\xff\xfe\xc3\x28" + b"\x80" * 14)
