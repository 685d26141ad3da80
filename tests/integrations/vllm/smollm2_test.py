"""examples/smollm2: a real model in vLLM's engine, and behind its server with its chat template.

SMOLLM2_FULL=1 in the environment asks 20 questions, with 64 tokens each.
"""

import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import model as smollm2
import pytest
import serve
import speak
import vllm_command
from testing.scripts import Script

_IS_FULL = os.environ.get("SMOLLM2_FULL") == "1"
_QUESTIONS = smollm2.QUESTIONS if _IS_FULL else smollm2.QUESTIONS[:2]
_TOKENS = 64 if _IS_FULL else 10


class Saved:
    """The model in a folder, and PyTorch's answers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tokenizer, model = folder, smollm2.read_tokenizer(), smollm2.read_model()
        self.tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
        self.tokens = speak.with_generate(model, smollm2.chat(self.tokenizer, _QUESTIONS), _TOKENS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module", autouse=True)
def stored_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder of compiled programs: the server loads the programs of the engine before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_XLA_CACHE_PATH", str(tmp_path_factory.mktemp("programs")))
        yield


def test_offline(saved: Saved) -> None:
    prompts = smollm2.prompts(saved.tokenizer, _QUESTIONS)
    assert serve.offline(saved.folder, prompts, _TOKENS) == saved.tokens.tolist()


def test_served(saved: Saved, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fork(command: list[str], **_: object) -> Script | subprocess.Popen:
        """Starts the server by a fork, unlike examples_test."""
        begin = [sys.executable, "-P", "-m", vllm_command.MODULE]
        assert command[: len(begin)] == begin
        return vllm_command.start(command[len(begin) :], tmp_path / "log")

    monkeypatch.setattr(
        serve, "subprocess", types.SimpleNamespace(Popen=fork, DEVNULL=subprocess.DEVNULL)
    )
    got = serve.served(saved.folder, _QUESTIONS, _TOKENS)
    assert got == smollm2.answers(saved.tokenizer, saved.tokens)
    assert got[0] == "The capital of France is Paris."
