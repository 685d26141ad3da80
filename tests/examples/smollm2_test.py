"""examples/smollm2: a real model generates and learns on XLA as PyTorch does on the CPU.

SMOLLM2_FULL=1 in the environment (`bazel test --test_env=SMOLLM2_FULL=1`) runs all of the model's
layers, 20 questions with 64 tokens each, and 50 steps.
"""

import copy
import os
from pathlib import Path

import fine_tune
import model as smollm2
import peft
import pytest
import speak
import transformers

_IS_FULL = os.environ.get("SMOLLM2_FULL") == "1"
_QUESTIONS = smollm2.QUESTIONS if _IS_FULL else smollm2.QUESTIONS[:2]
_TOKENS, _STEPS = (64, 50) if _IS_FULL else (10, 3)
_LAYERS = 30 if _IS_FULL else 2  # of 30, where what is said does not matter


@pytest.fixture(scope="module")
def tokenizer() -> transformers.PreTrainedTokenizerBase:
    return smollm2.read_tokenizer()


@pytest.fixture(scope="module")
def model() -> transformers.PreTrainedModel:
    return smollm2.read_model()


@pytest.fixture
def short(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """The real embeddings and the first layers."""
    layers, model.model.layers = model.model.layers, model.model.layers[:_LAYERS]
    short = copy.deepcopy(model)
    model.model.layers = layers
    short.config.num_hidden_layers = _LAYERS
    return short


def test_answers(
    model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase
) -> None:
    inputs = smollm2.chat(tokenizer, _QUESTIONS)
    want = speak.with_generate(model, inputs, _TOKENS)
    got = speak.with_generate(copy.deepcopy(model).to("xla"), inputs, _TOKENS)
    assert got.tolist() == want.tolist()
    answers = smollm2.answers(tokenizer, got)
    assert answers[0] == "The capital of France is Paris."
    assert answers[1].startswith("1. Bananas\n2.")


def test_ways(
    short: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase
) -> None:
    inputs = smollm2.chat(tokenizer, _QUESTIONS)
    want = speak.with_generate(short, inputs, _TOKENS)
    short.to("xla")
    for name, way in speak.WAYS.items():
        assert speak.with_loop(short, inputs, _TOKENS, way).tolist() == want.tolist(), name


@pytest.mark.parametrize(("name", "learning_rate"), [("tuned", 2e-5), ("adapters", 1e-3)])
def test_losses(
    name: str,
    learning_rate: float,
    short: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    tmp_path: Path,
) -> None:
    base = copy.deepcopy(short)
    trained = fine_tune.with_adapters(short) if name == "adapters" else short
    steps = list(fine_tune.batches(tokenizer, _STEPS))
    want = fine_tune.train(copy.deepcopy(trained), iter(steps), learning_rate)
    trained.to("xla")
    got = fine_tune.train(trained, iter(steps), learning_rate)
    fine_tune.check(got, want)
    assert got[-1] < (0.1 if _IS_FULL else got[0])
    trained.save_pretrained(tmp_path)
    if name == "adapters":
        loaded = peft.PeftModel.from_pretrained(base, tmp_path)
    else:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    inputs = smollm2.chat(tokenizer, (fine_tune.LESSONS[0][0],))
    tokens = speak.with_generate(trained.eval(), inputs, 8)
    assert tokens.tolist() == speak.with_generate(loaded.eval(), inputs, 8).tolist()
    if _IS_FULL:
        assert smollm2.answers(tokenizer, tokens)[0].split()[0] == "A"
