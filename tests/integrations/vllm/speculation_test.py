"""Speculative decoding by n-grams changes no token, and takes fewer steps."""

import itertools
from pathlib import Path

import families
import numpy as np
import pytest
import torch_xla.debug.metrics as metrics
from vllm import LLM, SamplingParams
from vllm.v1.request import Request
from vllm_xla_gpu import speculation

DRAFTS = 3


def test_lookup() -> None:
    drafter = speculation.Drafter(shortest=2, longest=3, count=DRAFTS)
    text = [1, 2, 3, 4, 5, 9, 2, 3, 6, 7, 8, 1, 2, 3]
    assert drafter.lookup(np.array(text)) == [4, 5, 9]  # of three, the first two tokens' end
    assert drafter.lookup(np.array([*text[:-3], 2, 3])) == [6, 7, 8]  # the last time
    assert drafter.lookup(np.array([5, 6, 7, 5, 6])) == [7, 5, 6]  # to the end of the text
    assert drafter.lookup(np.array([1, 2, 3, 4, 3])) == []  # one is too short
    assert drafter.lookup(np.array([1])) == []


def test_accepted() -> None:
    assert speculation.accepted([4, 5, 6], [4, 5, 6, 7]) == [4, 5, 6, 7]
    assert speculation.accepted([4, 5, 6], [4, 9, 6, 7]) == [4, 9]
    assert speculation.accepted([4], [3, 8]) == [3]


def test_tokens(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are so few pages that sequences are preempted."""
    model = families.write("llama", models)
    llm = LLM(
        model,
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": DRAFTS,
            "prompt_lookup_max": 2,
            "prompt_lookup_min": 1,
        },
        tensor_parallel_size=families.DEVICES,
        max_model_len=128,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        num_gpu_blocks_override=24,
        seed=0,
    )
    waiting = llm.llm_engine.engine_core.engine_core.scheduler.waiting
    preempted, prepend = [], waiting.prepend_request
    monkeypatch.setattr(waiting, "prepend_request", lambda r: (preempted.append(r), prepend(r)))
    lengths: list[int] = []  # of the new tokens of requests with drafts

    def accepted(drafts: list[int], best: list[int]) -> list[int]:
        tokens = speculation.accepted(drafts, best)
        lengths.append(len(tokens))
        return tokens

    monkeypatch.setattr("vllm_xla_gpu.steps.accepted", accepted)
    compiled = metrics.metric_data("CompileTime")[0]
    # Only the first kind has drafts.
    kinds = [{}, {"logprobs": 0}, {"temperature": 1, "seed": 1}, {"presence_penalty": 0.5}]
    prompts = families.prompts()

    def generate() -> list[list[int]]:
        params = [
            SamplingParams(
                **{"temperature": 0, "max_tokens": 60, "ignore_eos": True} | kinds[i % 4]
            )
            for i in range(len(prompts))
        ]
        texts = [{"prompt_token_ids": prompt} for prompt in prompts]
        answers = llm.generate(texts, params, use_tqdm=False)
        return [answer.outputs[0].token_ids for answer in answers]

    first = generate()
    assert lengths  # few of these drafts are right
    for i, (prompt, tokens) in enumerate(zip(prompts, first, strict=True)):
        assert len(tokens) == 60
        if i % 4 < 2:
            _, behind, distance = families.reference(model, prompt, tokens)
            assert behind < distance / families.MARGIN

    lengths.clear()
    numbers = itertools.count()
    answers = {tuple(prompt): tokens for prompt, tokens in zip(prompts, first, strict=True)}

    def propose(drafter: speculation.Drafter, request: Request) -> list[int]:
        """Proposes the tokens that follow, mostly with an error; none for the last token."""
        if speculation.asks_for_more(request):
            return []
        begin = request.num_output_tokens
        drafts = answers[tuple(request.prompt_token_ids)][begin : begin + drafter.count]
        if (wrong := next(numbers) % (DRAFTS + 1)) < len(drafts):
            drafts[wrong] ^= 1
        return drafts

    monkeypatch.setattr(speculation.Drafter, "propose", propose)
    assert generate() == first
    assert set(lengths) == set(range(1, DRAFTS + 2))
    assert preempted
    assert metrics.metric_data("CompileTime")[0] == compiled
