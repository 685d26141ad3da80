"""Greedy tokens of each family are transformers', and no program is compiled for them."""

from pathlib import Path

import families
import pytest
import torch
from vllm import LLM


@pytest.mark.parametrize("family", families.FAMILIES | families.OTHERS)
def test_tokens(family: str, models: Path) -> None:
    model = families.write(family, models)
    # With dtype="auto", which is float32 for a model of float32 weights.
    llm = LLM(model, max_model_len=128, max_num_seqs=8, max_num_batched_tokens=32, seed=0)
    cache = next(
        iter(llm.llm_engine.vllm_config.compilation_config.static_forward_context.values())
    )
    assert cache.kv_cache[0].dtype == torch.float32
    families.check_tokens(llm, model)
