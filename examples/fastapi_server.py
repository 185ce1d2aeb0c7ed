"""Digits over HTTP: a FastAPI application whose requests share runs by a Batcher.

    pip install fastapi uvicorn
    uvicorn --app-dir examples fastapi_server:app
    curl localhost:8000/digits -H "content-type: application/json" -d '{"image": [[[[0, 3, ...], ...]]]}'

A picture that does not fit is answered with 422 and the message that names the input, one too many with 503.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from digits import load_model
from fastapi import FastAPI, HTTPException

import gpuexec as gx

LARGEST_BATCH = 64
_serving: dict[str, gx.Batcher] = {}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the model before the first request, and answer what waits before the end."""
    model = load_model(dims={"batch": (1, LARGEST_BATCH)})
    with gx.Worker(model) as worker:
        worker.prepare((1, 1, 8, 8))
        async with gx.Batcher(worker, max_batch=LARGEST_BATCH, max_delay_ms=1) as batcher:
            _serving["digits"] = batcher
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/digits")  # type: ignore[untyped-decorator]
async def read_digits(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return digits and their probabilities for ``{"image": nested lists of [pictures, 1, 8, 8]}``."""
    try:
        answer = await _serving["digits"].run_async(inputs)
    except gx.InputError as error:
        raise HTTPException(422, str(error)) from error
    except gx.StateError as error:  # too many wait, or it is closing
        raise HTTPException(503, str(error)) from error
    return {"digits": answer["logits"].argmax(1).tolist(), "probabilities": answer["probabilities"].max(1).tolist()}
