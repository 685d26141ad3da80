"""examples/smollm2: a real model in vLLM's engine, and behind its server with its chat template.

SMOLLM2_FULL=1 in the environment asks 20 questions, with 64 tokens each.
"""

from __future__ import annotations

import os
from pathlib import Path

import model as smollm2
import pytest
import serve
import speak
import torch

_IS_FULL = os.environ.get("SMOLLM2_FULL") == "1"
_QUESTIONS = smollm2.QUESTIONS if _IS_FULL else smollm2.QUESTIONS[:2]
_TOKENS = 64 if _IS_FULL else 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("smollm2")
    smollm2.read_tokenizer().save_pretrained(path)
    smollm2.read_model().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    inputs = smollm2.chat(smollm2.read_tokenizer(), _QUESTIONS)
    return speak.with_generate(smollm2.read_model(), inputs, _TOKENS)


def test_offline(folder: Path, expected: torch.Tensor) -> None:
    prompts = smollm2.prompts(smollm2.read_tokenizer(), _QUESTIONS)
    assert serve.offline(folder, prompts, _TOKENS) == expected.tolist()


def test_served(folder: Path, expected: torch.Tensor) -> None:
    got = serve.served(folder, _QUESTIONS, _TOKENS)
    assert got == smollm2.answers(smollm2.read_tokenizer(), expected)
    assert got[0] == "The capital of France is Paris."
