"""Stripping of large tensor content from ONNX bytes, with the places of that content.

Protobuf copies all it parses, so a model whose weights are in its own file would take the file twice, and each further
copy of the message once more. Here the message is walked by its wire format before it is parsed; the content of a large
tensor stays where it is, and the tensor says instead that it is elsewhere, at a place only this load knows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from gpuexec.system.mapped import read_view

# Smaller content is not worth stripping.
LARGE_NBYTES = 1 << 16

# Field numbers of onnx.proto, and the wire types of protobuf.
_MODEL_GRAPH, _GRAPH_NODE, _GRAPH_INITIALIZER, _NODE_ATTRIBUTE, _ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH = 7, 1, 5, 5, 5, 6
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION, _SEGMENT = 9, 13, 14, 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EXTERNAL = 1
_DEEPEST = 100
_BLOCK_NBYTES = 1 << 12
# A number has at most 10 bytes; a field begins with its tag, and a length or number may follow.
_HEAD_NBYTES = 20
# New bytes, or a range of the source's.
_Chunk = bytes | range


class MalformedMessageError(Exception):
    """Malformed message, which the walk can't follow; protobuf's parser reports what is wrong."""


@dataclass(frozen=True, slots=True)
class Stripped:
    """A message without large content. ``pieces`` are (offset, bytes) of that, by the location its tensor names."""

    message: bytes
    pieces: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    kind: int
    start: int  # of the tag
    low: int  # of what it holds
    high: int


def strip_weights(content: memoryview) -> Stripped:
    """Return an ONNX model without the content of its large tensors.

    Raises:
        MalformedMessageError: It is no such message, or one that is left to protobuf.
        AccessError: The file it lies in changed, or can't be read.
    """
    if content.nbytes < LARGE_NBYTES:
        return Stripped(bytes(read_view(content)), {})
    walker = _Walker(content)
    chunks = walker.walk_model(0, content.nbytes)
    kept = [read_view(content[c.start : c.stop]) if isinstance(c, range) else c for c in chunks if len(c)]
    return Stripped(b"".join(kept), walker.pieces)


class _Walker:
    def __init__(self, content: memoryview) -> None:
        self._content = content
        # The writer of the file can't guess it.
        self._token = secrets.token_hex(16)
        self._depth = 0
        # The bytes of the content that were read last, and where they begin.
        self._block, self._start = memoryview(b""), 0
        self.pieces: dict[str, tuple[int, int]] = {}

    def walk_model(self, low: int, high: int) -> list[_Chunk]:
        return self._rewrite(low, high, {_MODEL_GRAPH: self._walk_graph})

    def _walk_graph(self, low: int, high: int) -> list[_Chunk]:
        return self._rewrite(low, high, {_GRAPH_NODE: self._walk_node, _GRAPH_INITIALIZER: self._walk_tensor})

    def _walk_node(self, low: int, high: int) -> list[_Chunk]:
        return self._rewrite(low, high, {_NODE_ATTRIBUTE: self._walk_attribute})

    def _walk_attribute(self, low: int, high: int) -> list[_Chunk]:
        return self._rewrite(low, high, {_ATTRIBUTE_TENSOR: self._walk_tensor, _ATTRIBUTE_GRAPH: self._walk_graph})

    def _walk_tensor(self, low: int, high: int) -> list[_Chunk]:
        fields = self._list_fields(low, high)
        raw = [field for field in fields if field.number == _RAW_DATA and field.kind == _BYTES]
        is_plain = {_EXTERNAL_DATA, _DATA_LOCATION, _SEGMENT}.isdisjoint([field.number for field in fields])
        if len(raw) != 1 or not is_plain or raw[0].high - raw[0].low < LARGE_NBYTES:
            return [range(low, high)]
        location = f"{self._token}.{len(self.pieces)}"
        self.pieces[location] = raw[0].low, raw[0].high - raw[0].low
        entry = _pack(1, b"location") + _pack(2, location.encode())
        elsewhere = _pack(_EXTERNAL_DATA, entry) + bytes((_DATA_LOCATION << 3 | _VARINT, _EXTERNAL))
        return [range(low, raw[0].start), range(raw[0].high, high), elsewhere]

    def _rewrite(self, low: int, high: int, inner: dict[int, Callable[[int, int], list[_Chunk]]]) -> list[_Chunk]:
        """Return a message with some of its fields rewritten; small ones stay."""
        if self._depth > _DEEPEST:
            raise MalformedMessageError("messages are nested deeper than protobuf takes them")
        self._depth += 1
        chunks: list[_Chunk] = []
        kept = low
        for field in self._list_fields(low, high):
            if field.kind == _BYTES and field.number in inner and field.high - field.low >= LARGE_NBYTES:
                parts = inner[field.number](field.low, field.high)
                chunks += [range(kept, field.start), _head(field.number, sum(map(len, parts))), *parts]
                kept = field.high
        self._depth -= 1
        return [*chunks, range(kept, high)]

    def _list_fields(self, low: int, high: int) -> list[_Field]:
        fields: list[_Field] = []
        at = low
        while at < high:
            head = _decode(self._peek(at, min(at + _HEAD_NBYTES, high)))
            if not head:
                raise MalformedMessageError("a number has no end")
            (tag, size), (number, behind) = head[0], head[-1]
            kind = tag & 7
            if kind in (_VARINT, _BYTES) and len(head) < 2:
                raise MalformedMessageError("a number has no end")
            if kind == _VARINT:
                first, end = at + size, at + behind
            elif kind == _BYTES:
                first, end = at + behind, at + behind + number
            elif kind in (_FIXED32, _FIXED64):
                first, end = at + size, at + size + (4 if kind == _FIXED32 else 8)
            else:
                raise MalformedMessageError(f"wire type {kind}")
            if end > high:
                raise MalformedMessageError("a field ends behind its message")
            fields.append(_Field(tag >> 3, kind, at, first, end))
            at = end
        return fields

    def _peek(self, low: int, high: int) -> memoryview:
        """Return some bytes; of a file those behind them are read with them."""
        if not self._start <= low <= high <= self._start + self._block.nbytes:
            self._block, self._start = read_view(self._content[low : low + _BLOCK_NBYTES]), low
        return self._block[low - self._start : high - self._start]


def _decode(head: memoryview) -> list[tuple[int, int]]:
    """Return the first two numbers in some bytes, or as many as there are, each with its end."""
    numbers: list[tuple[int, int]] = []
    value = shift = 0
    for place, byte in enumerate(head):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append((value, place + 1))
            value = shift = 0
        if shift >= 70 or len(numbers) == 2:
            break
    return numbers


def _pack(number: int, content: bytes) -> bytes:
    return _head(number, len(content)) + content


def _head(number: int, nbytes: int) -> bytes:
    return _encode(number << 3 | _BYTES) + _encode(nbytes)


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
