"""The digits network: its gradients, its export, and the committed file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from examples import train_digits
from examples.train_digits import TEST_IMAGES, Network, export, load_digits, measure_loss, train

COMMITTED = train_digits.FOLDER / "models" / "digits.onnx"


def classify(model: bytes, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return logits and probabilities by onnxruntime."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    logits, probabilities = session.run(["logits", "probabilities"], {"image": images})
    return logits, probabilities


def test_gradients_equal_finite_differences() -> None:
    images, labels = load_digits()
    images, labels = images[:4].astype(np.float64), labels[:4]
    network = Network(seed=3, channels=(2, 3))
    for parameter in network.parameters:
        parameter.value = parameter.value.astype(np.float64)
    network.backward(measure_loss(network.forward(images, training=True), labels)[1])
    rng = np.random.default_rng(0)
    for parameter in network.parameters:
        flat = parameter.value.reshape(-1)
        for index in rng.integers(0, flat.size, 5):
            losses, kept = [], flat[index]
            for step in (1e-6, -1e-6):
                flat[index] = kept + step
                losses.append(measure_loss(network.forward(images, training=True), labels)[0])
            flat[index] = kept
            difference = (losses[0] - losses[1]) / 2e-6
            assert parameter.gradient.reshape(-1)[index] == pytest.approx(difference, rel=1e-5, abs=1e-8)


def test_export_computes_what_the_network_computes() -> None:
    images, labels = load_digits()
    network = train(images[:640], labels[:640], epochs=1)
    logits, probabilities = classify(export(network).SerializeToString(), images[-32:])
    expected = network.forward(images[-32:])
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-6)
    assert (probabilities.argmax(1) == expected.argmax(1)).all()


def test_training_twice_gives_equal_bytes() -> None:
    images, labels = load_digits()
    first, second = (export(train(images[:256], labels[:256], epochs=1)).SerializeToString() for _ in range(2))
    assert first == second


def test_script_prints_accuracy_and_writes_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "digits.onnx"
    monkeypatch.setattr(sys, "argv", ["train_digits.py", "--epochs", "1", "--output", str(output)])
    train_digits.main()
    images, labels = load_digits()
    right = int((classify(output.read_bytes(), images[-TEST_IMAGES:])[0].argmax(1) == labels[-TEST_IMAGES:]).sum())
    assert f"({right} right)" in capsys.readouterr().out


def test_committed_model_reads_the_kept_digits() -> None:
    images, labels = load_digits()
    logits, _ = classify(COMMITTED.read_bytes(), images[-TEST_IMAGES:])
    assert (logits.argmax(1) == labels[-TEST_IMAGES:]).mean() >= 0.97


def test_committed_model_has_the_promised_interface() -> None:
    model = onnx.load(COMMITTED)
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, [(opset.domain, opset.version) for opset in model.opset_import]) == (10, [("", 21)])
    dims = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert dims == {"image": ["batch", 1, 8, 8], "logits": ["batch", 10], "probabilities": ["batch", 10]}
    assert COMMITTED.stat().st_size < 1_000_000


def test_data_are_the_whole_set_with_its_source() -> None:
    with np.load(train_digits.FOLDER / "data" / "digits.npz") as data:
        assert (data["images"].shape, data["images"].dtype, int(data["images"].max())) == ((1797, 8, 8), np.uint8, 16)
        assert np.bincount(data["labels"]).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
        assert "Alpaydin" in str(data["source"])
        assert "CC BY 4.0" in str(data["licence"])
