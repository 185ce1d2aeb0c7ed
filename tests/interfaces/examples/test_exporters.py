"""Models of other projects' exporters, compared with the outputs of the exporters' own frameworks."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.ops.control.control import Loop, Scan

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MODELS = EXAMPLES / "models"
NAMES = (
    "jax_scan", "ndonnx_statistics", "onnxscript_nodes", "skl2onnx_pipeline", "skl2onnx_process", "torch_dynamo",
    "torch_script",
)  # fmt: skip


@pytest.fixture(params=["cpu", "simulator"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(gx.BackendType(request.param))


@pytest.mark.parametrize("name", NAMES)
def test_exported_model_gives_what_its_framework_gives(name: str, backend: Backend) -> None:
    model = gx.load(MODELS / f"{name}.onnx")
    with np.load(MODELS / f"{name}.npz") as kept, gx.Worker(model, backend=backend) as worker:
        cases = len({key.partition("_")[0] for key in kept})
        assert cases >= 2
        for case in range(cases):
            worker.schedule([kept[f"case{case}_input{i}"] for i in range(len(model.inputs))])
            for index, port in enumerate(model.outputs):
                expected = kept[f"case{case}_output{index}"]
                got = worker.peek_output(port.name).readback_and_clone()
                assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
                np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def test_each_kept_model_has_its_script_and_is_small() -> None:
    scripts = "\n".join(path.read_text() for path in sorted((EXAMPLES / "exporters").glob("*.py")))
    for name in NAMES:
        assert f'keep("{name}"' in scripts
        assert (MODELS / f"{name}.onnx").stat().st_size < 20_000


def test_kept_models_have_a_loop_a_scan_and_a_branch() -> None:
    found = {
        node.operator.name
        for name in ("jax_scan", "onnxscript_nodes")
        for node in gx.load(MODELS / f"{name}.onnx").graph.nodes
    }
    assert {Loop.name, "If"} <= found or {Scan.name, "If"} <= found


@pytest.mark.parametrize(
    ("script", "needs"),
    [
        ("jax_scan", ("jax", "jax2onnx")),
        ("ndonnx_statistics", ("ndonnx",)),
        ("onnxscript_nodes", ("onnxscript",)),
        ("skl2onnx_pipeline", ("sklearn", "skl2onnx")),
        ("torch_dynamo", ("torch", "onnxscript")),
        ("torch_script", ("torch",)),
    ],
)
def test_script_makes_the_model_where_its_exporter_is(
    script: str, needs: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = [package for package in needs if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed, which makes this model anew")
    monkeypatch.syspath_prepend(str(EXAMPLES / "exporters"))
    monkeypatch.setattr(importlib.import_module("keeping"), "FOLDER", tmp_path)
    importlib.import_module(script).main()
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made and all((MODELS / name).exists() for name in made)
    for path in tmp_path.glob("*.npz"):
        with np.load(path) as new, np.load(MODELS / path.name) as kept:
            assert set(new) == set(kept)
