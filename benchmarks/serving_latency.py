"""Measure a server's latency under random arrivals: vLLM on this wheel, or for CUDA.

  PJRT_DEVICE=CUDA python benchmarks/serving_latency.py --json=xla.json
  python benchmarks/serving_latency.py --json=cuda.json  # where vLLM for CUDA is installed
  PJRT_DEVICE=CPU python benchmarks/serving_latency.py --shape=tiny --load=16+8 --rates=2

It starts `vllm serve` with the model of serving.py, and sends requests for streamed completions at
the times of a Poisson process. For each rate, in requests per second, it prints the median and the
99th percentile, in milliseconds, of the time from a request to its first token, and of the time
between two tokens that follow each other; and how many new tokens came per second.

Answers are read without an HTTP library: OpenAI's takes 0.2 ms of processor time per token, and
would dominate the times at a few thousand tokens per second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import serving
from serving import SHAPES, prompt, reporter

# vLLM loads plugins into each of its processes: this one draws the weights.
PLUGIN = "[vllm.general_plugins]\nrandom_weights = serving:use_random_weights\n"
LONGEST_START = 600  # seconds


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@contextlib.contextmanager
def server(args: argparse.Namespace) -> Iterator[tuple[str, int, subprocess.Popen]]:
    """Start a server; yield the model's folder, the port and the process."""
    with tempfile.TemporaryDirectory() as folder:
        model, plugin = Path(folder, "model"), Path(folder, "plugin/random_weights-1.dist-info")
        model.mkdir()
        serving.write_model(model, args)
        plugin.mkdir(parents=True)
        (plugin / "METADATA").write_text("Name: random_weights\nVersion: 1\n")
        (plugin / "entry_points.txt").write_text(PLUGIN)
        port = free_port()
        command = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        command += ["--host=127.0.0.1", f"--port={port}"]
        for name, value in serving.options(args).items():
            flag = "--" + name.replace("_", "-")
            if isinstance(value, bool):
                command.append(flag if value else flag.replace("--", "--no-", 1))
            else:
                command.append(f"{flag}={value}")
        path = [str(Path(__file__).parent), str(plugin.parent), os.environ.get("PYTHONPATH", "")]
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            stdout=sys.stderr,
        )
        try:
            yield str(model), port, process
        finally:
            process.terminate()
            process.wait()


def wait_until_ready(port: int, process: subprocess.Popen) -> None:
    end = time.monotonic() + LONGEST_START
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    sys.exit("the server did not start: its messages are above")


async def ask(port: int, model: str, tokens: list[int], new: int) -> list[float]:
    """Return the times at which the request was sent and each part of its answer arrived."""
    request = {"model": model, "prompt": tokens, "max_tokens": new, "temperature": 0}
    body = json.dumps(request | {"stream": True, "ignore_eos": True})
    head = [
        "POST /v1/completions HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times = [time.perf_counter()]
    writer.write("\r\n".join([*head, "", body]).encode())
    status = await reader.readline()
    if b" 200 " not in status:
        sys.exit(f"the server refused a request: {(status + await reader.read()).decode()}")
    async for line in reader:
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
    writer.close()
    return times


def milliseconds(seconds: list[float]) -> dict[str, float]:
    parts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"median": round(1e3 * parts[49], 2), "99th": round(1e3 * parts[98], 2)}


async def at_rate(port: int, model: str, rate: float, args: argparse.Namespace) -> dict[str, Any]:
    numbers = random.Random(rate)
    length, new = map(int, args.load.split("+"))
    vocabulary = SHAPES[args.shape]["vocab_size"]
    requests = []
    begin = due = time.perf_counter()
    while due < begin + args.seconds or len(requests) < 2:
        await asyncio.sleep(max(0, due - time.perf_counter()))
        tokens = prompt(vocabulary, length, f"{rate} {len(requests)}")
        requests.append(asyncio.create_task(ask(port, model, tokens, new)))
        due += numbers.expovariate(rate)
    answers = await asyncio.gather(*requests)
    seconds = time.perf_counter() - begin
    return {
        "requests_a_second": rate,
        "load": args.load,
        "requests": len(answers),
        "first_token_ms": milliseconds([times[1] - times[0] for times in answers]),
        "between_tokens_ms": milliseconds(
            [b - a for times in answers for a, b in itertools.pairwise(times[1:])]
        ),
        "new_tokens_a_second": round(len(answers) * new / seconds, 1),
    }


async def measure(args: argparse.Namespace) -> None:
    report = reporter(args.json)
    begin = time.perf_counter()
    with server(args) as (model, port, process):
        wait_until_ready(port, process)
        report({"start_s": round(time.perf_counter() - begin, 1)})
        vocabulary = SHAPES[args.shape]["vocab_size"]
        # Warm-up: the first requests take longer.
        await asyncio.gather(*(ask(port, model, prompt(vocabulary, 16, i), 8) for i in range(8)))
        for rate in map(float, args.rates.split(",")):
            report(await at_rate(port, model, rate, args))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="4,16", help="requests per second")
    parser.add_argument("--load", default="512+128", help="PROMPT+NEW tokens of each request")
    parser.add_argument("--seconds", type=float, default=20, help="of requests, for each rate")
    serving.add_arguments(parser)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
