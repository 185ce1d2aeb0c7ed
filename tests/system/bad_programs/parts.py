"""Parts of a program file, to be changed and reassembled with correct hashes and offsets."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

NAMES = ("program", "weights", "code")


@dataclass(slots=True)
class Parts:
    """Parts of a program file that mutations change: metadata and program as JSON data, the others as bytes."""

    metadata: dict[str, Any]
    program: Any
    weights: bytearray
    code: bytearray
    # More tensors by name, as a later release may write them.
    extra: dict[str, bytes] = field(default_factory=dict)

    @staticmethod
    def take_apart(content: bytes) -> Parts:
        """Return the parts of a good file."""
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        bodies = {}
        for name in NAMES:
            low, high = header[name]["data_offsets"]
            bodies[name] = content[8 + length + low : 8 + length + high]
        metadata = json.loads(header["__metadata__"]["gpuexec"])
        return Parts(metadata, json.loads(bodies["program"]), bytearray(bodies["weights"]), bytearray(bodies["code"]))

    def places(self) -> dict[str, tuple[int, int]]:
        """Return where each part lies in the file."""
        content = self.put_together()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        rows = {name: header[name]["data_offsets"] for name in NAMES}
        return {name: (8 + length + low, 8 + length + high) for name, (low, high) in rows.items()}

    def put_together(self, program: bytes | None = None) -> bytes:
        """Return a file of these parts; ``program`` is a text in place of the JSON data."""
        text = json.dumps(self.program, separators=(",", ":")).encode() if program is None else program
        bodies = {"program": _pad(text, b" "), "weights": bytes(self.weights), "code": bytes(self.code), **self.extra}
        rows: dict[str, Any] = {}
        offset = 0
        for name, body in bodies.items():
            rows[name] = {"dtype": "U8", "shape": [len(body)], "data_offsets": [offset, offset + len(body)]}
            offset += len(body)
        hashes = {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items()}
        described = json.dumps({**self.metadata, "sha256": hashes}, separators=(",", ":"))
        header = json.dumps({"__metadata__": {"gpuexec": described}, **rows}, separators=(",", ":")).encode()
        header += b" " * (-(8 + len(header)) % 256)
        return len(header).to_bytes(8, "little") + header + b"".join(bodies.values())


def _pad(text: bytes, filler: bytes) -> bytes:
    return text + filler * (-len(text) % 256)
