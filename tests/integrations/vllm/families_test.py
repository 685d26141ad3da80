"""Greedy tokens of seven families are transformers', and no program is compiled for them."""

from __future__ import annotations

from pathlib import Path

import families
import pytest
import torch
import torch_xla.debug.metrics as metrics
from vllm import LLM, SamplingParams


@pytest.mark.parametrize("family", families.FAMILIES)
def test_tokens(family: str, models: Path) -> None:
    model = families.write(family, models)
    # With dtype="auto", which is float32 for a model of float32 weights.
    llm = LLM(model, max_model_len=128, max_num_seqs=8, max_num_batched_tokens=32, seed=0)
    cache = next(
        iter(llm.llm_engine.vllm_config.compilation_config.static_forward_context.values())
    )
    assert cache.kv_cache[0].dtype == torch.float32
    compiled = metrics.metric_data("CompileTime")[0]
    answers = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in families.prompts()],
        SamplingParams(temperature=0, max_tokens=16, ignore_eos=True),
        use_tqdm=False,
    )
    assert metrics.metric_data("CompileTime")[0] == compiled
    compared = [
        families.reference(model, answer.prompt_token_ids, answer.outputs[0].token_ids)
        for answer in answers
    ]
    equal, behind, distances = zip(*compared, strict=True)
    print(f"{family}: {sum(equal)} of {16 * len(answers)} tokens, at most {max(behind)} behind")
    assert sum(equal) >= 16 * len(answers) - 2
    assert max(behind) < min(distances) / families.MARGIN
