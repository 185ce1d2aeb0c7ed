"""The decoding example: the tokens of a loop on the host, runs ahead of their reader, a draft that changes nothing."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from gpuexec.ops.random.sample_token import SampleToken
from tests.model.small_models import hold
from tests.system.models.folder import FOLDER, needs_models

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(EXAMPLES))
    bpe = importlib.import_module("bpe")
    example = importlib.import_module("decode")
    trace_gpt2 = importlib.import_module("networks").trace_gpt2

CPU, SIMULATOR = gx.BackendType.CPU, gx.BackendType.SIMULATOR
VOCABULARY, CAPACITY, SEED = 90, 64, 5
PROMPT = [7, 11, 7]
SAMPLING = {"temperature": 1.2, "top_k": 30, "top_p": 0.9, "penalty": 1.3}
EXPORTS = ("gpt2_kv__d21", "llama_gqa_kv__l17", "llama_gqa_kv_half__d20")


def make_decoder(layers: int = 2) -> gx.Model:
    return trace_gpt2(layers, np.linspace(0, 2, VOCABULARY))


def open_worker(decoder: gx.Model, backend: Any = CPU, rows: int = 1, **sampling: Any) -> gx.Worker:
    """Return a worker that may not wait for the host."""
    model = example.make_step(decoder, CAPACITY, rows, **sampling)
    return gx.Worker(model, backend=backend, seed=SEED, strict=True, frames=example.FRAMES)


async def collect(tokens: AsyncIterator[int]) -> list[int]:
    return [token async for token in tokens]


def decode_by_hand(decoder: gx.Model, count: int, **sampling: Any) -> list[int]:
    """Return the tokens of a loop that has logits and cache on the host, and draws there."""
    tokens, length = list(PROMPT), 0
    cache = {
        port.name: np.zeros([1, *(dim if isinstance(dim, int) else 0 for dim in port.spec.dims[1:])], port.spec.dtype)
        for port in decoder.inputs
        if port.spec.dims is not None and len(port.spec.dims) == 4
    }
    settings = [np.asarray(sampling[name], dtype) for name, dtype in (("temperature", np.float32), ("top_k", np.int64))]
    share, factor = (np.asarray(sampling[name], np.float32) for name in ("top_p", "penalty"))
    with gx.Worker(decoder, backend=CPU) as worker:
        while len(tokens) < len(PROMPT) + count:
            ids = np.array([tokens[length:]])
            length = len(tokens)
            given = {"input_ids": ids, "position_ids": np.arange(length - ids.size, length)[None], **cache}
            given["attention_mask"] = np.ones((1, length), np.int64)
            outputs = worker.run({port.name: given[port.name] for port in decoder.inputs})
            cache = {name: outputs[name.replace("past_key_values", "present")] for name in cache}
            drawn = SampleToken(stream=1).compute(
                outputs["logits"][:, -1],
                *settings,
                share,
                tokens=np.array([tokens]),
                penalty=factor,
                places=np.array([length - 1]),
                key=np.array([SEED, 0], np.uint64),
            )
            tokens.append(int(drawn[0][0]))
    return tokens[len(PROMPT) :]


@pytest.fixture(scope="module")
def expected() -> list[int]:
    """Return the tokens of the decoder, drawn on the host."""
    return decode_by_hand(make_decoder(), 16, **SAMPLING)


@pytest.mark.parametrize("backend", [CPU, SIMULATOR], ids=str)
def test_tokens_are_those_drawn_on_the_host(expected: list[int], backend: gx.BackendType) -> None:
    decoder, draft = make_decoder(), make_decoder(1)
    assert len(set(expected)) > 8
    with open_worker(decoder, backend, **SAMPLING) as worker, gx.no_implicit_sync():
        assert asyncio.run(collect(example.decode(worker, PROMPT, 16))) == expected
        assert worker.state.length == len(PROMPT) + 15
    rows = example.DRAFTED + 1
    with open_worker(decoder, backend, rows, **SAMPLING) as worker:
        with open_worker(draft, backend, rows, **SAMPLING) as smaller:
            drawn = asyncio.run(collect(example.decode_by_draft(worker, smaller, PROMPT, 16)))
        assert drawn == expected
        assert worker.report().runs < 16


@needs_models
@pytest.mark.parametrize("name", EXPORTS)
def test_exports_give_the_tokens_drawn_on_the_host(name: str) -> None:
    assert FOLDER is not None
    decoder = gx.load(FOLDER / "arch" / f"{name}.onnx")
    drawn = decode_by_hand(decoder, 5, **SAMPLING)
    with open_worker(decoder, **SAMPLING) as worker:
        assert asyncio.run(collect(example.decode(worker, PROMPT, 5))) == drawn


@pytest.mark.parametrize("count", [1, 6, 13])
def test_draft_of_the_model_itself_is_never_refused(expected: list[int], count: int) -> None:
    decoder, rows = make_decoder(), example.DRAFTED + 1
    with open_worker(decoder, rows=rows, **SAMPLING) as worker, open_worker(decoder, rows=rows, **SAMPLING) as draft:
        assert asyncio.run(collect(example.decode_by_draft(worker, draft, PROMPT, count))) == expected[:count]
        assert worker.report().runs == 1 + -(-(count - 1) // rows)


def test_runs_are_scheduled_ahead_of_their_reader() -> None:
    backend = open_backend(SIMULATOR)
    stream = backend.device.create_stream()
    model = example.make_step(make_decoder(1), CAPACITY)

    async def read() -> None:
        with gx.Worker(model, backend=backend, stream=stream, frames=example.FRAMES) as worker:
            gate = hold(stream)
            tokens = example.decode(worker, PROMPT, 6)
            first = asyncio.ensure_future(anext(tokens))
            while worker.report().runs < example.FRAMES:
                await asyncio.sleep(0)
            assert not first.done()
            gate.set()
            assert len([await first, *(await collect(tokens))]) == 6

    asyncio.run(read())


def test_script_takes_models_and_a_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer, model, draft = map(str, example.make_small_ones(tmp_path))
    given = ["decode.py", "A Worker", "--model", model, "--tokenizer", tokenizer, "--tokens", "6"]
    said = []
    for more in ([], ["--draft", draft]):
        monkeypatch.setattr(sys, "argv", given + more)
        example.main()
        said.append(capsys.readouterr().out)
    alone, by_draft = said
    assert alone.strip() and by_draft.startswith(alone)
    assert "runs of model.onnx, " in by_draft and " of draft.onnx" in by_draft
    monkeypatch.setattr(sys, "argv", given[:4])
    with pytest.raises(SystemExit):
        example.main()


TEXTS = ("", "a", "Straße, 12½ naïve  λόγος\n\n\t_x_ it's they'll 🙂\0\x7f", "  two  ", "don't 1234 <end> stop<end>")


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_its_tokens(text: str, tmp_path: Path) -> None:
    learnt = bpe.Tokenizer.learn("the end of the other thing, and the thing", 12)
    tokenizer = bpe.Tokenizer(learnt.vocabulary, learnt._ranks, {"<end>": 268})
    tokenizer.save(tmp_path / "tokenizer.json")
    read = bpe.Tokenizer.load(tmp_path / "tokenizer.json")
    tokens = read.encode(text)
    assert read.decode(tokens).decode() == text
    assert tokens == tokenizer.encode(text) and tokens.count(268) == text.count("<end>")
    assert len(tokens) <= len(text.encode())


def test_pairs_are_merged_by_rank_and_words_stay_apart(tmp_path: Path) -> None:
    letters = bpe._CHARACTERS.values()
    merges = ["b c", "a b", "ab c", "Ġ a", "a a"]
    vocabulary = {text: token for token, text in enumerate([*letters, *(pair.replace(" ", "") for pair in merges)])}
    (tmp_path / "t.json").write_text(json.dumps({"model": {"vocab": vocabulary, "merges": merges}}))
    tokenizer = bpe.Tokenizer.load(tmp_path / "t.json")
    names = {token: text for text, token in vocabulary.items()}

    def split(text: str) -> list[str]:
        return [names[token] for token in tokenizer.encode(text)]

    assert split("abc") == ["a", "bc"]
    assert split("ab a") == ["ab", "Ġa"]
    assert split("aaaaa") == ["aa", "aa", "a"]
    assert split("a a  a") == ["a", "Ġa", "Ġ", "Ġa"]


def test_learning_merges_the_commonest_pair_first() -> None:
    learnt = bpe.Tokenizer.learn("low low lower newest newest newest", 3)
    assert list(learnt._ranks) == [("w", "e"), ("Ġ", "n"), ("Ġn", "e")]


def test_vocabulary_without_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="no byte-level BPE"):
        bpe.Tokenizer({"a": 0}, [])
