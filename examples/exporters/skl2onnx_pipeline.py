"""Exporter script for two models of skl2onnx: principal components with perceptrons, and a Gaussian process.

They go to ``models/skl2onnx_pipeline.onnx`` and ``models/skl2onnx_process.onnx``. Needs scikit-learn and skl2onnx:
``pip install scikit-learn skl2onnx``. Run it as ``python examples/exporters/skl2onnx_pipeline.py``.
"""

from __future__ import annotations

import numpy as np
from keeping import keep
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import FeatureUnion, make_pipeline


def main() -> None:
    """Train on irises, export, and keep the model with what scikit-learn gives for two sizes."""
    data = load_iris()
    rows, lengths = data.data[:, :3].astype(np.float32), data.data[:, 3].astype(np.float32)
    parts = [("principal", PCA(2, whiten=True, random_state=0)), ("singular", TruncatedSVD(2, random_state=0))]
    perceptrons = MLPRegressor(hidden_layer_sizes=(8, 6), activation="tanh", max_iter=800, random_state=0)
    net = make_pipeline(FeatureUnion(parts), perceptrons)
    net.fit(rows, lengths)
    model = to_onnx(net, rows[:1], target_opset=21)
    cases = [rows[::15], rows[3:7]]
    results = [[net.predict(case).astype(np.float32).reshape(-1, 1)] for case in cases]
    keep("skl2onnx_pipeline", model, [[case] for case in cases], results)

    smooth = GaussianProcessRegressor(ConstantKernel(2.0) * RBF(1.5), optimizer=None, alpha=0.1)
    smooth.fit(rows[::6].astype(np.float64), lengths[::6].astype(np.float64))
    model = to_onnx(smooth, rows[:1].astype(np.float64), target_opset=21, options={id(smooth): {"return_std": False}})
    wide = [case.astype(np.float64) for case in cases]
    keep("skl2onnx_process", model, [[case] for case in wide], [[smooth.predict(case).reshape(-1, 1)] for case in wide])


if __name__ == "__main__":
    main()
