"""Text by a decoder: the prompt goes in, and tokens are streamed as they are drawn.

The next token is drawn on the device, and is a state of the model as its cache is. So a step takes nothing from the
host, and runs are scheduled ahead of the tokens that the host reads. With ``--draft``, a smaller model draws several
tokens that the larger one then looks at in one run; the text stays the same.

    python examples/decode.py --model gpt2.onnx --tokenizer tokenizer.json "Once upon a time"

Models are those that optimum exports for GPT-2 and Llama: ``input_ids``, perhaps ``attention_mask`` and
``position_ids``, and a cache by names that ``bind_state("auto")`` knows. Without ``--model`` it makes small ones with
random weights, which string together what this folder's README is made of.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import tempfile
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
from bpe import Tokenizer
from networks import trace_gpt2

import gpuexec as gx

FRAMES = 3  # runs in flight
DRAFTED = 4  # tokens of a round
README = Path(__file__).resolve().parents[1] / "README.md"


def make_step(decoder: gx.Model, capacity: int, rows: int = 1, **sampling: Any) -> gx.Model:
    """Return a model of one sequence that draws its next token, and needs no input but the prompt.

    Args:
        decoder: Gives logits and the cache.
        capacity: Tokens there is room for.
        rows: How many of the last places a token is drawn at: ``drawn``. As many of the last tokens, with the one drawn
            behind them, are ``recent``.
        sampling: Arguments of `gx.fn.sample_token`.
    """
    ports = {port.name: port.spec for port in decoder.inputs}
    caches = {name: spec for name, spec in ports.items() if spec.dims is not None and len(spec.dims) == 4}

    def step(ids: Any, before: Any, *held: Any) -> dict[str, Any]:
        places = before.shape[1] + gx.fn.arange(ids.shape[1])[None]
        tokens = gx.fn.concatenate([before, ids], 1)
        given = {"input_ids": ids, "attention_mask": gx.fn.ones_like(tokens), "position_ids": places}
        given = {name: array for name, array in given.items() if name in ports} | dict(zip(caches, held, strict=True))
        outputs = dict(gx.fn.forward(decoder, **given))
        logits, behind = outputs.pop("logits")[:, -rows:], places[:, -rows:]
        drawn = gx.fn.sample_token(logits, tokens=tokens, places=behind, **sampling)
        token = drawn[:, -1:]
        recent = gx.fn.concatenate([tokens, token], 1)[:, -rows:]
        return {"drawn": drawn, "recent": recent, "next_ids": token, "present_tokens": tokens, **outputs}

    specs: dict[str, Any] = {"input_ids": ("int64", (1, "new")), "past_tokens": ("int64", (1, "past"))}
    for name, spec in caches.items():
        _, heads, _, width = spec.dims or ()
        specs[name] = (spec.dtype, (1, heads, "past", width))
    traced = gx.graph(step, specs, name=f"{decoder.graph.name} with sampling")
    return traced.bind_state("auto", capacity=capacity).bind_state({"next_ids": "input_ids"})


async def decode(worker: gx.Worker, prompt: list[int], count: int) -> AsyncIterator[int]:
    """Yield tokens while the device is ahead."""
    requests = deque[gx.ReadbackRequest]()
    for index in range(count):
        run = worker.schedule({"input_ids": np.array([prompt])} if index == 0 else None)
        requests.append(run.peek_output("drawn").readback_request())
        if len(requests) == FRAMES:
            yield int((await requests.popleft())[0, -1])
    for request in requests:
        yield int((await request)[0, -1])


async def decode_by_draft(worker: gx.Worker, draft: gx.Worker, prompt: list[int], count: int) -> AsyncIterator[int]:
    """Yield the tokens that the worker draws alone, several for each of its runs.

    At each place both draw by the same number, since that follows from the seed and the place. So where the draft is
    good it draws the same token, and what it drew from the first other one on is dropped.
    """
    tokens, end = list(prompt), len(prompt) + count
    run = worker.schedule({"input_ids": np.array([prompt])})
    tokens.append(int((await run.peek_output("drawn").readback_and_clone_async())[0, -1]))
    yield tokens[-1]
    while len(tokens) < end:
        run = draft.schedule({"input_ids": np.array([tokens[draft.state.length :]])})
        for _ in range(DRAFTED - 1):
            run = draft.schedule()
        recent = run.peek_output("recent")  # the last token and those drafted behind it, on the device
        looked_at = worker.schedule({"input_ids": recent}).peek_output("drawn")
        requests = recent.readback_request(), looked_at.readback_request()
        drafted, drawn = (await requests[0])[0, 1:], (await requests[1])[0]
        same = int(np.cumprod(drafted == drawn[:-1]).sum())
        tokens += drawn[: same + 1].tolist()
        worker.state.crop(len(tokens) - 1)
        draft.state.crop(min(draft.state.length, len(tokens) - 1))
        for token in tokens[len(tokens) - same - 1 : end]:
            yield token


async def stream_text(tokens: AsyncIterator[int], tokenizer: Tokenizer) -> str:
    """Print text as its tokens come, up to the token that ends it, and return it."""
    reader, text = codecs.getincrementaldecoder("utf-8")("replace"), ""
    async for token in tokens:
        if token in tokenizer.specials.values():
            break
        piece = reader.decode(tokenizer.decode([token]))
        text += piece
        print(piece, end="", flush=True)
    print()
    return text


def open_worker(path: Path, arguments: argparse.Namespace, rows: int = 1) -> gx.Worker:
    """Return a worker that draws as the arguments say."""
    names = ("temperature", "top_k", "top_p", "penalty")
    sampling = {name: getattr(arguments, name) for name in names}
    model = make_step(gx.load(path), arguments.capacity, rows, **sampling)
    return gx.Worker(model, frames=FRAMES, seed=arguments.seed)


def generate(arguments: argparse.Namespace, draft_path: Path | None) -> str:
    """Print and return the text behind the prompt."""
    tokenizer = Tokenizer.load(arguments.tokenizer)
    prompt = tokenizer.encode(arguments.prompt)
    rows = 1 if draft_path is None else DRAFTED + 1
    with open_worker(arguments.model, arguments, rows) as worker:
        if draft_path is None:
            return asyncio.run(stream_text(decode(worker, prompt, arguments.tokens), tokenizer))
        with open_worker(draft_path, arguments, rows) as draft:
            text = asyncio.run(stream_text(decode_by_draft(worker, draft, prompt, arguments.tokens), tokenizer))
            print(
                f"  {worker.report().runs} runs of {arguments.model.name}, {draft.report().runs} of {draft_path.name}"
            )
            return text


def make_small_ones(folder: Path) -> tuple[Path, Path, Path]:
    """Write a tokenizer, a model and a draft of it, and return their paths."""
    text = README.read_text(encoding="utf-8")
    tokenizer = Tokenizer.learn(text, 64)
    tokenizer.save(folder / "tokenizer.json")
    counts = np.bincount(tokenizer.encode(text), minlength=len(tokenizer.vocabulary))
    for name, layers in (("model.onnx", 2), ("draft.onnx", 1)):
        trace_gpt2(layers, np.log(counts + 1e-3)).save(folder / name)
    return folder / "tokenizer.json", folder / "model.onnx", folder / "draft.onnx"


def read_arguments() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="A decoder keeps its state", help="text to go on from")
    parser.add_argument("--model", type=Path, help="ONNX file; without, small models with random weights are made")
    parser.add_argument("--tokenizer", type=Path, help="its tokenizer.json")
    parser.add_argument("--draft", type=Path, help="ONNX file of a smaller model with the same tokenizer")
    parser.add_argument("--tokens", type=int, default=32, help="how many to draw at most")
    parser.add_argument("--capacity", type=int, default=1024, help="tokens that the cache has room for")
    parser.add_argument("--temperature", type=float, default=0.8, help="0: the likeliest token")
    parser.add_argument("--top-k", type=int, default=40, help="0: all tokens")
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--penalty", type=float, default=1.1, help="on tokens that were there; 1: none")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if (arguments.model is None) != (arguments.tokenizer is None) or (arguments.draft and not arguments.model):
        parser.error("give --model and --tokenizer together, and --draft with them")
    return arguments


def main() -> None:
    """Decode with the models given, or with small ones, by themselves and by a draft."""
    arguments = read_arguments()
    if arguments.model is not None:
        generate(arguments, arguments.draft)
        return
    with tempfile.TemporaryDirectory() as folder:
        arguments.tokenizer, arguments.model, draft = make_small_ones(Path(folder))
        text = generate(arguments, None)
        print(f"the same by a draft: {generate(arguments, draft) == text}")


if __name__ == "__main__":
    main()
