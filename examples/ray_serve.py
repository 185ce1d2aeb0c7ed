"""64 clients over HTTP, answered by replicas of Ray Serve, whose requests share runs.

pip install "gpuexec[ray]"
python examples/ray_serve.py
"""

from __future__ import annotations

import http.client
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import ray
from digits import HERE, Array, count_right, load_images
from ray import serve

from gpuexec.compat.ray import deploy

CLIENTS, PORT = 64, 8123


def ask(pictures: Array) -> Array:
    """Return the scores of pictures, asked for one after the other over one connection."""
    connection, scores = http.client.HTTPConnection("127.0.0.1", PORT), []
    for picture in pictures:
        connection.request("POST", "/digits", json.dumps({"image": [picture.tolist()]}))
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {answer}")
        scores.append(answer["logits"][0])
    connection.close()
    return np.array(scores)


def main() -> None:
    """Serve, ask, and print how many answers there were a second, and how many right."""
    images, labels = load_images(360)
    if not ray.is_initialized():
        ray.init(num_cpus=max(4, os.cpu_count() or 1))
    has_gpu = ray.cluster_resources().get("GPU", 0) >= 1
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(deploy(HERE / "models" / "digits.onnx", num_gpus=int(has_gpu)), route_prefix="/digits")
    start = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as clients:
        scores = np.concatenate([*clients.map(ask, np.array_split(images, CLIENTS))])
    print(f"{len(images) / (time.perf_counter() - start):.0f} answers a second to {CLIENTS} clients")
    print("served:", count_right(scores, labels))
    serve.shutdown()


if __name__ == "__main__":
    main()
