"""Storage of exported models: the model, and beside it inputs with the exporter's own outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

FOLDER = Path(__file__).resolve().parent.parent / "models"
Array = np.ndarray[Any, Any]


def keep(
    name: str, model: onnx.ModelProto, inputs: Sequence[Sequence[Array]], outputs: Sequence[Sequence[Array]]
) -> None:
    """Write ``<name>.onnx`` and ``<name>.npz``, which holds each case's arrays in the order of inputs and outputs.

    What only documents the model's making (stack traces, names of scopes) is left out, so that the file stays small.
    """
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    for function in model.functions:
        for node in function.node:
            del node.metadata_props[:]
            node.doc_string = ""
    onnx.checker.check_model(model)
    arrays: dict[str, Array] = {}
    for case, (given, made) in enumerate(zip(inputs, outputs, strict=True)):
        arrays |= {f"case{case}_input{i}": np.asarray(array) for i, array in enumerate(given)}
        arrays |= {f"case{case}_output{i}": np.asarray(array) for i, array in enumerate(made)}
    onnx.save_model(model, FOLDER / f"{name}.onnx")
    np.savez_compressed(FOLDER / f"{name}.npz", allow_pickle=False, **arrays)
    nbytes = sum((FOLDER / f"{name}.{kind}").stat().st_size for kind in ("onnx", "npz"))
    print(f"{name}: {len(model.graph.node)} nodes, {len(inputs)} cases, {nbytes} bytes")
