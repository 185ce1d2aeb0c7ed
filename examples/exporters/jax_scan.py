"""Exporter script for ``models/jax_scan.onnx``: a recurrent cell scanned over a sequence, by jax2onnx.

Needs jax and jax2onnx: ``pip install jax jax2onnx``. Run it as ``python examples/exporters/jax_scan.py``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax2onnx import to_onnx
from keeping import keep

BATCH, WIDTH, HIDDEN = 2, 5, 8


def make_cell() -> Any:
    """Return a function of rows [steps, 2, 5]: hidden states [steps, 2, 8] of a gated cell, and scores of the last."""
    rng = np.random.default_rng(0)
    gates = jnp.asarray(rng.normal(0, 0.4, (WIDTH + HIDDEN, 2 * HIDDEN)), jnp.float32)
    change = jnp.asarray(rng.normal(0, 0.4, (WIDTH + HIDDEN, HIDDEN)), jnp.float32)
    head = jnp.asarray(rng.normal(0, 0.4, (HIDDEN, 3)), jnp.float32)

    def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        both = jnp.concatenate([row, state], 1)
        keep_gate, reset = jnp.split(jax.nn.sigmoid(both @ gates), 2, 1)
        new = jnp.tanh(jnp.concatenate([row, reset * state], 1) @ change)
        state = keep_gate * state + (1 - keep_gate) * new
        return state, state

    def run(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        last, states = jax.lax.scan(step, jnp.zeros((BATCH, HIDDEN), jnp.float32), rows)
        return states, jax.nn.softmax(last @ head)

    return run


def main() -> None:
    """Export, and keep the model with what jax gives for two sequences."""
    rng = np.random.default_rng(1)
    cases = [rng.normal(size=(9, BATCH, WIDTH)).astype(np.float32) for _ in range(2)]
    run = make_cell()
    # Before exporting: jax2onnx puts functions of its own in the place of jax's while it traces.
    results = [[np.asarray(each) for each in run(jnp.asarray(case))] for case in cases]
    rows = jax.ShapeDtypeStruct((9, BATCH, WIDTH), jnp.float32)
    model = to_onnx(make_cell(), inputs=[rows], model_name="jax_scan", opset=21)
    keep("jax_scan", model, [[case] for case in cases], results)


if __name__ == "__main__":
    main()
