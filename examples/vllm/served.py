"""Start `vllm serve` with a small random model, send six requests at once, and stop it.

    PJRT_DEVICE=CPU python served.py             # less than a minute
    PJRT_DEVICE=CUDA python served.py MODEL      # your own model

The answers are sampled (temperature 0.7): they differ from run to run.

Set up the environment with integrations/vllm/install.py.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from openai import APIConnectionError, AsyncOpenAI
from random_model import small_llama, write_model

PROMPTS = [" ".join(f"w{7 * i + j + 2}" for j in range(3 + i)) for i in range(6)]


async def until_ready(client: AsyncOpenAI, server: subprocess.Popen) -> None:
    while server.poll() is None:
        try:
            await client.models.list()
        except APIConnectionError:
            await asyncio.sleep(0.5)
        else:
            return
    sys.exit("the server has exited: start it by hand to see why")


async def ask(client: AsyncOpenAI, model: str, prompt: str) -> tuple[str, float]:
    """Return the answer, and the time of its first token."""
    text, first = "", 0.0
    stream = await client.completions.create(
        model=model, prompt=prompt, max_tokens=8, temperature=0.7, stream=True
    )
    async for chunk in stream:
        first = first or time.perf_counter()
        text += chunk.choices[0].text
    return text.strip(), first


async def ask_all(model: str, port: int, server: subprocess.Popen) -> None:
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        await until_ready(client, server)
        start = time.perf_counter()
        answers = await asyncio.gather(*(ask(client, model, prompt) for prompt in PROMPTS))
        for prompt, (text, _) in zip(PROMPTS, answers, strict=True):
            print(f"{prompt} -> {text}")
        seconds = time.perf_counter() - start
        first = min(first for _, first in answers) - start
        print(f"{len(answers)} answers in {seconds:.2f} s, the first token after {first:.2f} s")


def serve(model: str, port: int) -> None:
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", model]
    options = [f"--port={port}", "--host=127.0.0.1", "--max-model-len=128"]
    options += ["--max-num-seqs=8", "--max-num-batched-tokens=32"]
    server = subprocess.Popen(
        [*command, *options],
        env={**os.environ, "VLLM_LOGGING_LEVEL": "WARNING"},
        stdout=subprocess.DEVNULL,
    )
    try:
        asyncio.run(ask_all(model, port, server))
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="a folder or a name (default: a random model)")
    parser.add_argument("--port", type=int, default=8123, help="default: %(default)s")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            write_model(small_llama(), Path(folder))
        serve(options.model or folder, options.port)


if __name__ == "__main__":
    main()
