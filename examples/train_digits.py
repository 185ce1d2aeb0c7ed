"""Training of the digits network of this folder in plain NumPy, exported as ONNX.

The data, ``data/digits.npz``, are 1797 handwritten digits of 8 x 8 pixels with values 0 to 16: the test part of
"Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49, CC BY 4.0), in the order of scikit-learn's ``load_digits``. The last 360 images are
kept for testing and never trained on.

The seed is fixed: one machine with one NumPy writes the same file every time. Other BLAS libraries add in another
order, so other machines may end a few bits away.

    python examples/train_digits.py [--epochs 60] [--output examples/models/digits.onnx]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

FOLDER = Path(__file__).resolve().parent
TEST_IMAGES = 360
PIXEL_SCALE = np.float32(1 / 16)
BATCH = 64
WEIGHT_DECAY = 0.3
EPSILON = 1e-5


@dataclass(slots=True)
class Parameter:
    """A trained array with its gradient and Adam's two moments."""

    value: Array
    gradient: Array = field(init=False)
    mean: Array = field(init=False)
    square: Array = field(init=False)

    def __post_init__(self) -> None:
        self.gradient, self.mean, self.square = (np.zeros_like(self.value) for _ in range(3))


class Convolution:
    """A 3 x 3 convolution, stride 1, zero padding 1, no bias (a normalization follows)."""

    def __init__(self, rng: np.random.Generator, channels_in: int, channels_out: int) -> None:
        self.weight = Parameter(_draw(rng, (channels_out, channels_in, 3, 3), fan_in=channels_in * 9))

    def forward(self, x: Array) -> Array:
        n, channels, height, width = x.shape
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))  # [n, c, h, w, 3, 3]
        self._shape = x.shape
        self._columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, channels * 9)  # [n * h * w, c * 9]
        y: Array = self._columns @ self._matrix().T
        return y.reshape(n, height, width, -1).transpose(0, 3, 1, 2)

    def backward(self, gradient: Array) -> Array:
        n, channels, height, width = self._shape
        rows = gradient.transpose(0, 2, 3, 1).reshape(n * height * width, -1)
        self.weight.gradient = (rows.T @ self._columns).reshape(self.weight.value.shape)
        columns = (rows @ self._matrix()).reshape(n, height, width, channels, 3, 3)
        padded = np.zeros((n, channels, height + 2, width + 2), gradient.dtype)
        for row in range(3):
            for column in range(3):
                padded[:, :, row : row + height, column : column + width] += columns[..., row, column].transpose(
                    0, 3, 1, 2
                )
        return padded[:, :, 1:-1, 1:-1]

    def _matrix(self) -> Array:
        return self.weight.value.reshape(len(self.weight.value), -1)


class Normalization:
    """Batch normalization per channel; while training also follows the running mean and variance used later."""

    def __init__(self, channels: int) -> None:
        self.scale = Parameter(np.ones(channels, np.float32))
        self.bias = Parameter(np.zeros(channels, np.float32))
        self.mean = np.zeros(channels, np.float32)
        self.variance = np.ones(channels, np.float32)

    def forward(self, x: Array, training: bool) -> Array:
        mean, variance = self.mean, self.variance
        if training:
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
            self.mean = 0.9 * self.mean + 0.1 * mean
            self.variance = 0.9 * self.variance + 0.1 * variance
        self._deviation = np.sqrt(variance + np.asarray(EPSILON, x.dtype))
        self._normal = (x - _per_channel(mean)) / _per_channel(self._deviation)
        return self._normal * _per_channel(self.scale.value) + _per_channel(self.bias.value)

    def backward(self, gradient: Array) -> Array:
        self.bias.gradient = gradient.sum((0, 2, 3))
        self.scale.gradient = (gradient * self._normal).sum((0, 2, 3))
        count = gradient.size // gradient.shape[1]
        drift = _per_channel(self.bias.gradient) + self._normal * _per_channel(self.scale.gradient)
        centred: Array = gradient - drift / count
        return centred * _per_channel(self.scale.value) / _per_channel(self._deviation)


class Network:
    """Convolution, normalization, Relu and 2 x 2 maximum, twice; then one matrix to ten logits."""

    def __init__(self, seed: int, channels: tuple[int, int] = (40, 80)) -> None:
        rng = np.random.default_rng(seed)
        first, second = channels
        self.convolutions = (Convolution(rng, 1, first), Convolution(rng, first, second))
        self.normalizations = (Normalization(first), Normalization(second))
        self.weight = Parameter(_draw(rng, (second * 4, 10), fan_in=second * 4))
        self.bias = Parameter(np.zeros(10, np.float32))

    @property
    def parameters(self) -> list[Parameter]:
        """All trained arrays."""
        norms = [parameter for norm in self.normalizations for parameter in (norm.scale, norm.bias)]
        return [*(convolution.weight for convolution in self.convolutions), *norms, self.weight, self.bias]

    def forward(self, images: Array, training: bool = False) -> Array:
        """Return logits ``[n, 10]`` of images ``[n, 1, 8, 8]`` with values 0 to 16."""
        x = images * PIXEL_SCALE
        self._pooled: list[tuple[Array, Array]] = []
        for convolution, normalization in zip(self.convolutions, self.normalizations, strict=True):
            active: Array = np.maximum(normalization.forward(convolution.forward(x), training), 0)
            n, channels, height, width = active.shape
            cells = active.reshape(n, channels, height // 2, 2, width // 2, 2)
            x = cells.max((3, 5))
            self._pooled.append((cells, x))
        self._features: Array = x.reshape(len(x), -1)  # [n, channels * 4]
        logits: Array = self._features @ self.weight.value + self.bias.value
        return logits

    def backward(self, gradient: Array) -> None:
        """Fill the gradients of all parameters from that of the logits."""
        self.weight.gradient = self._features.T @ gradient
        self.bias.gradient = gradient.sum(0)
        x = (gradient @ self.weight.value.T).reshape(self._pooled[-1][1].shape)
        layers = zip(self.convolutions, self.normalizations, self._pooled, strict=True)
        for convolution, normalization, (cells, top) in reversed(list(layers)):
            chosen = cells == top[:, :, :, None, :, None]
            share = x / chosen.sum((3, 5), dtype=x.dtype)  # an empty background ties, and its cells move together
            spread = np.where(chosen & (cells > 0), share[:, :, :, None, :, None], x.dtype.type(0))
            n, channels, height, _, width, _ = cells.shape
            x = convolution.backward(normalization.backward(spread.reshape(n, channels, height * 2, width * 2)))


def load_digits() -> tuple[Array, Labels]:
    """Return images ``[1797, 1, 8, 8]`` with values 0 to 16 and labels ``[1797]``."""
    with np.load(FOLDER / "data" / "digits.npz") as data:
        return data["images"][:, None].astype(np.float32), data["labels"].astype(np.int64)


def train(images: Array, labels: Labels, epochs: int, seed: int = 0) -> Network:
    """Train with Adam and a cosine schedule, every image drawn anew each time, a little moved and bent."""
    network, rng = Network(seed), np.random.default_rng(seed + 1)
    steps = epochs * (len(images) // BATCH)
    batches = (batch for _ in range(epochs) for batch in _draw_batches(rng, images, labels))
    for step, (x, y) in enumerate(batches):
        _, gradient = measure_loss(network.forward(x, training=True), y)
        network.backward(gradient)
        _adam(network.parameters, step + 1, rate=2e-3 * (1 + math.cos(math.pi * step / steps)))
    return network


def measure_loss(logits: Array, labels: Labels) -> tuple[float, Array]:
    """Return the mean cross entropy and its gradient by the logits."""
    shifted = logits - logits.max(1, keepdims=True)
    probabilities = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(probabilities[rows, labels]).mean())
    probabilities[rows, labels] -= 1
    return loss, probabilities / len(labels)


def export(network: Network) -> onnx.ModelProto:
    """Return the network as ONNX; normalizations stay nodes of their own, pixels are scaled inside."""
    arrays = {
        "pixel_scale": np.asarray(PIXEL_SCALE),
        "head.weight": network.weight.value,
        "head.bias": network.bias.value,
    }
    nodes = [helper.make_node("Mul", ["image", "pixel_scale"], ["scaled"], name="scale")]
    x = "scaled"
    for index, (convolution, normalization) in enumerate(
        zip(network.convolutions, network.normalizations, strict=True), 1
    ):
        layer = f"layer{index}"
        norm = {"scale": normalization.scale.value, "bias": normalization.bias.value}
        norm |= {"mean": normalization.mean, "variance": normalization.variance}
        arrays[f"{layer}.weight"] = convolution.weight.value
        arrays |= {f"{layer}.{name}": array for name, array in norm.items()}
        weight, normal, active, pooled = (f"{layer}.{part}" for part in ("conv", "normal", "active", "pooled"))
        nodes += [
            helper.make_node(
                "Conv", [x, f"{layer}.weight"], [weight], f"{layer}/conv", kernel_shape=[3, 3], pads=[1] * 4
            ),
            helper.make_node(
                "BatchNormalization",
                [weight, *(f"{layer}.{name}" for name in norm)],
                [normal],
                f"{layer}/norm",
                epsilon=EPSILON,
            ),
            helper.make_node("Relu", [normal], [active], f"{layer}/relu"),
            helper.make_node("MaxPool", [active], [pooled], f"{layer}/pool", kernel_shape=[2, 2], strides=[2, 2]),
        ]
        x = pooled
    nodes += [
        helper.make_node("Flatten", [x], ["features"], name="flatten"),
        helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["logits"], name="head"),
        helper.make_node("Softmax", ["logits"], ["probabilities"], name="softmax", axis=-1),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 10]) for name in ("logits", "probabilities")
    ]
    weights = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "digits", [image], outputs, weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="train_digits"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train, print the accuracy on the kept images, write the model."""
    parser = argparse.ArgumentParser(description="Train the digits network and export it as ONNX.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--output", type=Path, default=FOLDER / "models" / "digits.onnx")
    options = parser.parse_args()
    images, labels = load_digits()
    network = train(images[:-TEST_IMAGES], labels[:-TEST_IMAGES], options.epochs)
    right = int((network.forward(images[-TEST_IMAGES:]).argmax(1) == labels[-TEST_IMAGES:]).sum())
    options.output.write_bytes(export(network).SerializeToString(deterministic=True))
    print(f"accuracy on the last {TEST_IMAGES} images: {right / TEST_IMAGES:.2%} ({right} right)")
    print(f"wrote {options.output} ({options.output.stat().st_size:,} bytes)")


def _draw(rng: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> Array:
    return rng.standard_normal(shape, np.float32) * np.float32(math.sqrt(2 / fan_in))


def _draw_batches(rng: np.random.Generator, images: Array, labels: Labels) -> Iterator[tuple[Array, Labels]]:
    order = rng.permutation(len(images))
    for start in range(0, len(images) - BATCH + 1, BATCH):
        chosen = order[start : start + BATCH]
        yield _warp(rng, images[chosen]), labels[chosen]


def _warp(rng: np.random.Generator, images: Array) -> Array:
    """Rotate, scale, shear and shift each image by its own small amounts, bilinearly; outside is 0."""
    n = len(images)
    angle, shear = rng.uniform(-0.2, 0.2, n), rng.uniform(-0.2, 0.2, n)
    scale, shift = np.exp(rng.uniform(-0.1, 0.1, (n, 2))), rng.uniform(-0.7, 0.7, (n, 2))
    rows = np.stack([np.cos(angle) * scale[:, 0], -np.sin(angle) * scale[:, 1]], 1)
    columns = np.stack([np.sin(angle) * scale[:, 0] + shear, np.cos(angle) * scale[:, 1]], 1)
    pixels = np.stack(np.meshgrid(np.arange(8), np.arange(8), indexing="ij"), -1).reshape(-1, 2) - 3.5
    places = np.einsum("nij,pj->npi", np.stack([rows, columns], 1), pixels) + 3.5 + shift[:, None]  # [n, 64, 2]
    corner = np.floor(places).astype(np.int64)
    part = places - corner
    padded = np.pad(images[:, 0], ((0, 0), (4, 4), (4, 4)))
    warped = np.zeros((n, 64))
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        share = np.abs(1 - down - part[..., 0]) * np.abs(1 - right - part[..., 1])
        row, column = (np.clip(corner[..., axis] + step + 4, 0, 15) for axis, step in enumerate((down, right)))
        warped += share * padded[np.arange(n)[:, None], row, column]
    return warped.reshape(n, 1, 8, 8).astype(np.float32)


def _adam(parameters: list[Parameter], step: int, rate: float) -> None:
    for parameter in parameters:
        if parameter.value.ndim > 1:
            parameter.value *= 1 - rate * WEIGHT_DECAY
        parameter.mean += 0.1 * (parameter.gradient - parameter.mean)
        parameter.square += 0.01 * (parameter.gradient**2 - parameter.square)
        root = np.sqrt(parameter.square / (1 - 0.99**step)) + 1e-8
        parameter.value -= rate / (1 - 0.9**step) * parameter.mean / root


def _per_channel(vector: Array) -> Array:
    return vector[:, None, None]


if __name__ == "__main__":
    main()
