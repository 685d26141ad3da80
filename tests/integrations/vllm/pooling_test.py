"""Embeddings of decoders are those of transformers, and no program is compiled for them."""

from pathlib import Path

import families
import pytest
import torch
import torch_xla.debug.metrics as metrics
import transformers
from torch.nn import functional
from vllm import LLM, PoolingParams
from vllm.config import PoolerConfig

LENGTH = 64


def _prompts() -> list[list[int]]:
    """The prompts of all tests, and one of the maximum length."""
    return [*families.prompts(), torch.arange(2, 2 + LENGTH).tolist()]


@torch.no_grad()
def _reference(model: str, prompt: list[int], pooling: str) -> torch.Tensor:
    decoder = transformers.AutoModel.from_pretrained(model)
    hidden = decoder(torch.tensor([prompt])).last_hidden_state[0]
    return {"LAST": hidden[-1], "CLS": hidden[0], "MEAN": hidden.mean(0)}[pooling]


@pytest.mark.parametrize("pooling", ["LAST", "CLS", "MEAN"])
def test_embeddings(pooling: str, models: Path) -> None:
    model = families.write("qwen3", models)
    llm = LLM(
        model,
        runner="pooling",
        pooler_config=PoolerConfig(pooling_type=pooling),
        hf_overrides={"is_matryoshka": True},  # or other dimensions are refused
        tensor_parallel_size=families.DEVICES,
        max_model_len=LENGTH,
        max_num_seqs=8,
        max_num_batched_tokens=32 if pooling == "LAST" else LENGTH,  # prompts in parts
        num_gpu_blocks_override=24,
        seed=0,
    )
    compiled = metrics.metric_data("CompileTime")[0]
    prompts = [{"prompt_token_ids": prompt} for prompt in _prompts()]
    params = [
        PoolingParams(normalize=i % 2 == 0, dimensions=48 if i == 2 else None)
        for i in range(len(prompts))
    ]
    for _ in range(2):  # the second time some of the keys are cached
        answers = llm.embed(prompts, pooling_params=params, use_tqdm=False)
        for i, answer in enumerate(answers):
            found = torch.tensor(answer.outputs.embedding)
            expected = _reference(model, answer.prompt_token_ids, pooling)[: params[i].dimensions]
            if params[i].normalize:
                expected = functional.normalize(expected, dim=0)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert metrics.metric_data("CompileTime")[0] == compiled
