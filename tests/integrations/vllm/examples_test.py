"""examples/vllm, and the console lines in docs/vllm.md that need no GPU."""

import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import vllm_command
from testing.scripts import run_program


def test_offline() -> None:
    result = run_program("examples/vllm/offline.py")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = re.findall(r"^w\d+.* ->( w\d+)+$", result.stdout, re.M)
    assert len(lines) == 4
    assert re.search(r"^48 tokens of 4 prompts; programs compiled since: 0$", result.stdout, re.M)


def test_served() -> None:
    """The server is started as a user starts it; other tests fork their servers."""
    result = run_program("examples/vllm/served.py", "--port", vllm_command.free_port())
    assert result.returncode == 0, result.stdout + result.stderr
    end = r"^6 answers in [\d.]+ s, the first token after [\d.]+ s$"
    assert re.search(end, result.stdout, re.M)


@pytest.mark.parametrize(("option", "status", "text"), [("--help", 0, "sampled"), ("--no", 2, "")])
def test_options_of_served(option: str, status: int, text: str) -> None:
    result = run_program("examples/vllm/served.py", option)
    assert result.returncode == status
    assert "usage: served.py [-h]" in result.stdout + result.stderr
    assert text in result.stdout


def test_the_server_of_the_page(tmp_path: Path) -> None:
    """The console lines of docs/vllm.md: a model, a server and a request."""
    page = Path("docs/vllm.md").read_text()
    (make,) = re.findall(r"^\$ python (examples/vllm/random_model.py .*)$", page, re.M)
    (serve,) = re.findall(r"^\$ PJRT_DEVICE=CPU vllm (serve /tmp.*)$", page, re.M)
    (ask,) = re.findall(r"^\$ curl .* -d '(.*)'$", page, re.M)
    (answer,) = re.findall(r'`"text":"(.*)"`', page)
    folder = str(tmp_path)
    make, serve, ask = (text.replace("/tmp/small_llama", folder) for text in (make, serve, ask))
    assert serve.count(folder) == make.count(folder) == ask.count(folder) == 1
    made = run_program(*make.split())
    assert made.returncode == 0, made.stderr
    port = vllm_command.free_port()
    server = vllm_command.start([*serve.split(), f"--port={port}"], log := tmp_path / "log")
    try:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            ask.encode(),
            {"Content-Type": "application/json"},
        )
        while True:
            try:
                with urllib.request.urlopen(request) as response:
                    text = json.load(response)["choices"][0]["text"]
                break
            except urllib.error.URLError:
                assert server.poll() is None, log.read_text()
                time.sleep(0.5)
    finally:
        server.terminate()
        server.wait()
    assert text == answer
