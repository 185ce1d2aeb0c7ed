"""Reference results of a model by onnxruntime where it is installed, else by onnx's reference evaluator."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from gpuexec.errors import InputError, ModelError
from gpuexec.importer.read import Source, read_model
from gpuexec.ir.spec import BFLOAT16

Array = np.ndarray[Any, Any]
ENGINES = ("onnxruntime", "reference")


def run_oracle(source: Source, inputs: Mapping[str, Any], engine: str | None = None) -> tuple[str, dict[str, Any]]:
    """Run a model on arrays by another engine, without graph optimisation.

    Args:
        source: As for `load_graph`; a path where the model has external data.
        inputs: Arrays by input name.
        engine: One of ENGINES; by default onnxruntime where it is installed and runs the model, else the reference.

    Returns:
        The engine that ran, and its outputs by name: arrays; lists, None and dicts for containers.

    Raises:
        InputError: The engine is unknown, or not installed.
        ModelError: No engine runs the model; lists the error of each.
    """
    if engine is not None and engine not in ENGINES:
        raise InputError(f"The engine is one of {', '.join(ENGINES)}, got {engine!r}.")
    has_ort = importlib.util.find_spec("onnxruntime") is not None
    if engine == "onnxruntime" and not has_ort:
        raise InputError("onnxruntime is not installed: pip install onnxruntime.")
    engines = (engine,) if engine else ENGINES if has_ort else ENGINES[1:]
    complaints = []
    for each in engines:
        try:
            return each, (_run_onnxruntime if each == "onnxruntime" else _run_reference)(source, inputs)
        except ModelError:
            raise
        except Exception as error:  # any exception of another engine is a refusal by that engine
            complaints.append(f"{each}: {type(error).__name__}: {error}")
    raise ModelError("No other engine runs the model: " + "; ".join(complaints))


def _run_onnxruntime(source: Source, inputs: Mapping[str, Any]) -> dict[str, Any]:
    import onnxruntime

    if any(isinstance(array, np.ndarray) and array.dtype == BFLOAT16 for array in inputs.values()):
        raise InputError("onnxruntime takes no bfloat16 arrays from NumPy.")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    model = os.fspath(source) if isinstance(source, (str, os.PathLike)) else read_model(source)[0].SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return _as_arrays(names, session.run(names, dict(inputs)))


def _run_reference(source: Source, inputs: Mapping[str, Any]) -> dict[str, Any]:
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else read_model(source)[0]
    evaluator = ReferenceEvaluator(model)
    with np.errstate(all="ignore"):
        results = evaluator.run(None, dict(inputs))
    assert isinstance(results, list)
    return _as_arrays(evaluator.output_names, results)


def _as_arrays(names: Sequence[str], results: Sequence[Any]) -> dict[str, Any]:
    return {
        name: result if result is None or isinstance(result, (list, dict)) else np.asarray(result)
        for name, result in zip(names, results, strict=True)
    }
