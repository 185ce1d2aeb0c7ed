"""State found by names: the pairs that exporters write, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.errors import InputError
from tests.system.models.folder import needs_models, path_of, read_manifest

Port = tuple[str, Sequence[int | str]]


def make(inputs: Sequence[Port], outputs: Sequence[Port]) -> gx.Model:
    """Return a model whose outputs are copies of its first input, or of as many as there are, in order."""
    ports = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(d)) for n, d in side] for side in (inputs, outputs)
    ]
    nodes = [
        helper.make_node("Identity", [inputs[min(place, len(inputs) - 1)][0]], [name])
        for place, (name, _) in enumerate(outputs)
    ]
    graph = helper.make_graph(nodes, "names", *ports)
    return gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


CACHE = ("batch", 4, "past", 16)
GROWN = ("batch", 4, "total", 16)


@pytest.mark.parametrize(
    ("held", "output"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.11.value", "present_key_values.11.value"),
        ("past_key_values.3.decoder.key", "present.3.decoder.key"),
        ("past.0.decoder.key", "present.0.key"),
        ("past.0.self.value", "present.0.value"),
        ("past_k", "present_k"),
        ("past_k_7", "present_k_7"),
        ("past_0", "present_0"),
        ("cache_k.1", "cache_k_out.1"),
        ("conv_cache", "conv_cache_out"),
        ("kv_cache_in", "kv_cache_out"),
        ("state", "stateN"),
        ("h", "hn"),
        ("h0", "hn"),
        ("c_0", "c_n"),
        ("recurrent_in", "recurrent_out"),
        ("hidden_prev", "hidden_next"),
        ("memory.layers.2", "new_memory.layers.2"),
    ],
)
def test_names_that_exporters_give(held: str, output: str) -> None:
    model = make([("x", CACHE), (held, CACHE)], [("y", CACHE), (output, GROWN)]).bind_state("auto")
    assert [(memory.output, memory.input) for memory in model.memories] == [(output, held)]


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([("x", CACHE)], [("x_out", CACHE)]),
        ([("encoder_hidden_states", ("batch", "n", 8))], [("last_hidden_state", ("batch", "n", 8))]),
        ([("past.0.encoder.key", CACHE)], [("present.0.key", CACHE)]),
        ([("past.0.key", CACHE)], [("present.1.key", CACHE)]),
        ([("past.0.key", CACHE)], [("present.0.key", ("batch", 5, "past", 16))]),
        ([("past.0.key", CACHE)], [("present.0.key", (4, "past", 16))]),
        ([("input", CACHE)], [("output", CACHE)]),
    ],
)
def test_names_that_are_no_state(inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    with pytest.raises(InputError, match=r"are state by their names; it takes .* and gives .*Name the pairs"):
        make(inputs, outputs).bind_state("auto")


def test_several_partners_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"'past\.0\.key' may be the state of present\.0\.key or new\.0\.key"):
        make([("past.0.key", CACHE)], [("present.0.key", CACHE), ("new.0.key", CACHE)]).bind_state("auto")
    with pytest.raises(InputError, match=r"'present\.0\.key' may be the next value of 'past\.0\.key' or 'old\.past"):
        make([("past.0.key", CACHE), ("old.past.0.key", CACHE)], [("present.0.key", CACHE)]).bind_state("auto")
    with pytest.raises(InputError, match="or 'auto', got 'all'"):
        make([("h", CACHE)], [("hn", CACHE)]).bind_state("all")


def test_what_was_found_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model = make([("x", CACHE), ("h", CACHE), ("c", CACHE)], [("y", CACHE), ("hn", CACHE), ("cn", CACHE)])
    with caplog.at_level(logging.INFO, "gpuexec"):
        bound = model.bind_state("auto")
    assert "state of names: h <- hn, c <- cn" in caplog.text
    with pytest.raises(InputError, match="are state by their names"):
        bound.bind_state("auto")
    partly = model.bind_state({"hn": "h"}).bind_state("auto")
    assert [memory.input for memory in partly.memories] == ["h", "c"]


@pytest.mark.models
@needs_models
@pytest.mark.parametrize("model", sorted(read_manifest()) or ["no folder"])
def test_models_of_the_suite(model: str) -> None:
    """Those that carry a cache have all of it found, with its capacity; others have nothing found."""
    loaded = gx.load(path_of(model))
    ports = [port.name for port in loaded.inputs]
    expected = [name for name in ports if _is_state(name, [port.name for port in loaded.outputs])]
    if not expected:
        with pytest.raises(InputError, match="state"):
            loaded.bind_state("auto")
        return
    bound = loaded.bind_state("auto")
    found = [memory.input for memory in bound.memories if not memory.is_implicit]
    assert found == expected
    if any("past" in name for name in found):
        assert {memory.capacity for memory in loaded.bind_state("auto", capacity=64).memories} == {64}


def _is_state(name: str, outputs: Sequence[str]) -> bool:
    pairs = {"cache": "cache_out", "h": "h_out", "state": "stateN", "recurrent_in": "recurrent_out"}
    pairs |= {f"{part}_cache": f"{part}_cache_out" for part in ("conv", "tra", "inter")}
    key = name.replace("past_key_values.", "present.").replace("past.", "present.").replace(".decoder", "")
    return pairs.get(name) in outputs or (key != name and key in outputs)


def test_steps_with_state_found_by_name() -> None:
    def program(x: np.ndarray, h: np.ndarray) -> dict[str, np.ndarray]:
        return {"y": x + h, "hn": h + 1}

    model = gx.graph(program, {"x": ("float32", (2,)), "h": ("float32", (2,))}).bind_state("auto")
    with gx.Worker(model, backend="cpu") as worker:
        assert [float(worker.run(np.zeros(2, np.float32))[0][0]) for _ in range(3)] == [0, 1, 2]
