"""`vllm serve` on one device and on two: its answers under load, and its end."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import families
import psutil
import pytest
import torch
import vllm_command
from adapters import ADAPTERS, Adapter
from testing.scripts import Script

REQUESTS = 24
PAGES = 40
GIVEN_UP = set(range(2, REQUESTS, 6))
START_S = 900
END_S = 60
DEVICES = (1, 2)
CHAT = "{% for message in messages %}{{ message.content }} {% endfor %}"


@dataclasses.dataclass
class Server:
    url: str
    model: str
    process: Script | subprocess.Popen  # with a process group of its own

    def processes(self) -> list[psutil.Process]:
        """The server's process and its children that still run."""

        def is_ours(process: psutil.Process) -> bool:
            try:
                is_running = process.status() != psutil.STATUS_ZOMBIE
                return is_running and os.getpgid(process.pid) == self.process.pid
            except (psutil.NoSuchProcess, ProcessLookupError):
                return False

        return [process for process in psutil.process_iter() if is_ours(process)]


@pytest.fixture(scope="module", params=DEVICES, ids="{}_devices".format)
def server(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    model, port = families.write("qwen3", models), vllm_command.free_port()
    options = ["serve", model, "--host=127.0.0.1", f"--port={port}", f"--chat-template={CHAT}"]
    options += ["--dtype=float32", "--max-model-len=128", "--max-num-seqs=8"]
    options += ["--max-num-batched-tokens=32", f"--num-gpu-blocks-override={PAGES}"]
    options += [f"--tensor-parallel-size={request.param}"]
    options += ["--enable-lora", "--max-loras=2", "--max-lora-rank=8"]
    log = tmp_path_factory.mktemp("server") / "log"
    process = vllm_command.start(
        options,
        log,
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
        VLLM_XLA_CHECK_RECOMPILATION="1",  # a step that compiles fails
    )
    server = Server(f"http://127.0.0.1:{port}", model, process)
    try:
        asyncio.run(_until_ready(server))
        yield server
    finally:
        for left in server.processes():
            left.kill()
        process.wait()
        print(log.read_text()[-4000:])


async def _until_ready(server: Server) -> None:
    end = time.monotonic() + START_S
    async with aiohttp.ClientSession(server.url) as session:
        while time.monotonic() < end:
            assert server.process.poll() is None, "the server has ended"
            try:
                async with session.get("/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.5)
    raise TimeoutError("the server does not answer")


def _request(index: int) -> tuple[list[int], int]:
    """A prompt and how many tokens are wanted."""
    generator = torch.Generator().manual_seed(index)
    length, wanted = torch.randint(2, 60, (2,), generator=generator).tolist()
    prompt = torch.randint(2, families.VOCABULARY, (length,), generator=generator)
    return prompt.tolist(), wanted


async def _parts(
    session: aiohttp.ClientSession, server: Server, prompt: list[int], wanted: int
) -> AsyncIterator[str]:
    """Yields the parts of an answer of `wanted` tokens. Raises a RuntimeError for an error."""
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": wanted,
        "temperature": 0,
        "ignore_eos": True,
        "skip_special_tokens": False,  # w0
        "stream": True,
    }
    async with session.post("/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            part = json.loads(line.removeprefix(b"data: "))
            if "error" in part:
                raise RuntimeError(part["error"]["message"])
            yield part["choices"][0]["text"]


async def _ask(session: aiohttp.ClientSession, server: Server, index: int) -> str | None:
    text = ""
    async with contextlib.aclosing(_parts(session, server, *_request(index))) as parts:
        async for part in parts:
            text += part
            if index in GIVEN_UP:
                return None
    return text


async def _ask_all(server: Server) -> list[str | None]:
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(server.url, timeout=timeout) as session:
        return await asyncio.gather(*(_ask(session, server, i) for i in range(REQUESTS)))


def _assert_right(server: Server, text: str, prompt: list[int], wanted: int) -> None:
    tokens = [int(word.removeprefix("w")) for word in text.split()]
    assert len(tokens) == wanted
    _, behind, distance = families.reference(server.model, prompt, tokens)
    assert behind < distance / families.MARGIN


def test_load(server: Server) -> None:
    answers = asyncio.run(_ask_all(server))
    for index, text in enumerate(answers):
        if index in GIVEN_UP:
            continue
        _assert_right(server, text, *_request(index))
    nothing = [0, 0, 0]  # what was given up is forgotten
    end = time.monotonic() + 60
    in_use = _in_use(server)
    while in_use != nothing:
        assert time.monotonic() < end, in_use
        time.sleep(0.2)
        in_use = _in_use(server)


def _in_use(server: Server) -> list[int]:
    """The numbers of running and of waiting requests, and the share of used pages."""

    async def get() -> str:
        async with (
            aiohttp.ClientSession(server.url) as session,
            session.get("/metrics") as response,
        ):
            return await response.text()

    text = asyncio.run(get())
    running, waiting, usage = (
        float(re.search(rf"^vllm:{name}{{.*}} (.*)$", text, re.MULTILINE)[1])
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    )
    return [int(running), int(waiting), round(usage * PAGES)]


def _post(server: Server, path: str, body: dict[str, object]) -> tuple[int, str]:
    async def post() -> tuple[int, str]:
        async with (
            aiohttp.ClientSession(server.url) as session,
            session.post(path, json={"model": server.model} | body) as response,
        ):
            return response.status, await response.text()

    return asyncio.run(post())


def test_chat(server: Server) -> None:
    said = [("user", "w5 w6"), ("assistant", "w7"), ("user", "w8 w9")]
    status, text = _post(
        server,
        "/v1/chat/completions",
        {
            "messages": [{"role": role, "content": content} for role, content in said],
            "max_tokens": 12,
            "temperature": 0,
            "ignore_eos": True,
            "skip_special_tokens": False,
            "logprobs": True,
        },
    )
    assert status == 200, text
    choice = json.loads(text)["choices"][0]
    answer = choice["message"]["content"]
    _assert_right(server, answer, [5, 6, 7, 8, 9], 12)
    told = choice["logprobs"]["content"]
    assert [part["token"].strip() for part in told] == answer.split()
    assert all(-10 < part["logprob"] < 0 for part in told)


def test_adapters(server: Server, tmp_path: Path) -> None:
    """More adapters than the device has slots are loaded and unloaded while the server runs."""

    async def ask_all(adapters: list[Adapter]) -> list[str | None]:
        async with aiohttp.ClientSession(server.url) as session:
            by_name = [dataclasses.replace(server, model=a.request.lora_name) for a in adapters]
            return await asyncio.gather(*(_ask(session, s, 1) for s in (server, *by_name)))

    adapters = [Adapter(name, i + 1, server.model, tmp_path) for i, name in enumerate(ADAPTERS)]
    for adapter in adapters:
        request = {"lora_name": adapter.request.lora_name, "lora_path": adapter.request.lora_path}
        assert _post(server, "/v1/load_lora_adapter", request)[0] == 200
    texts = asyncio.run(ask_all(adapters))
    assert len(set(texts)) == len(texts)
    for text, weights in zip(texts, [server.model, *(a.merged for a in adapters)], strict=True):
        _assert_right(dataclasses.replace(server, model=weights), text, *_request(1))
    for adapter in adapters:
        request = {"lora_name": adapter.request.lora_name}
        assert _post(server, "/v1/unload_lora_adapter", request)[0] == 200
        options = {"model": adapter.request.lora_name, "prompt": [5, 6]}
        assert _post(server, "/v1/completions", options)[0] == 404


def test_request_that_cannot_be_served(server: Server) -> None:
    ask = functools.partial(_post, server, "/v1/completions")
    status, text = ask({"prompt": [5] * 129})
    assert status == 400
    assert "maximum context length" in text
    status, text = ask({"prompt": "w5 w6", "prompt_logprobs": 1})
    assert status == 400
    assert "vllm-xla-gpu does not support prompt_logprobs" in text
    status, text = ask({"prompt": "w5 w6", "max_tokens": 3, "temperature": 0})
    assert status == 200


async def _ask_until(server: Server, end: Callable[[], None]) -> list[str]:
    """Calls `end` when one of eight requests has a part of its answer; returns how they ended."""
    started = asyncio.Event()

    async def ask(session: aiohttp.ClientSession, index: int) -> str:
        try:
            async for _ in _parts(session, server, [5 + index, 6], 120):
                started.set()
        except RuntimeError as error:
            return str(error)
        return "complete"

    timeout = aiohttp.ClientTimeout(total=END_S)
    async with aiohttp.ClientSession(server.url, timeout=timeout) as session:
        answers = asyncio.gather(*(ask(session, i) for i in range(8)))
        await started.wait()
        end()
        return await answers


def test_end(server: Server, request: pytest.FixtureRequest) -> None:
    """The last test ends the server by Ctrl-C, or kills the engine's process.

    Answers that are not complete end with an error, and no process is left.
    """

    def kill_engine() -> None:
        children = (p for p in server.processes() if p.pid != server.process.pid)
        (engine,) = (p for p in children if "resource_tracker" not in " ".join(p.cmdline()))
        engine.kill()

    end, text = {
        "1_devices": (kill_engine, "EngineCore encountered an issue"),
        "2_devices": (
            lambda: os.killpg(server.process.pid, signal.SIGINT),
            "the engine was shut down before the answer was complete",
        ),
    }[request.node.callspec.id]
    answers = asyncio.run(_ask_until(server, end))
    assert any(text in answer for answer in answers), answers
    limit = time.monotonic() + END_S
    while left := server.processes():
        assert time.monotonic() < limit, left
        server.process.poll()
        time.sleep(0.2)
