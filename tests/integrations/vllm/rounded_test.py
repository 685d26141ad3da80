"""In float16 and bfloat16, logits are as exact as those of transformers."""

from pathlib import Path

import families
import pytest
import rounded
import torch
from testing import programs  # before the first computation
from vllm import LLM
from vllm_xla_gpu import linear


def start(path: str, dtype: torch.dtype) -> LLM:
    return LLM(
        path, dtype=dtype, max_model_len=128, max_num_seqs=8, max_num_batched_tokens=32, seed=0
    )


# No MoE: where two experts are nearly as good, rounding chooses.
@pytest.mark.parametrize("dtype", rounded.MANTISSA_BITS, ids=str)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
def test_logits(
    family: str, dtype: torch.dtype, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "LEAST_COLUMNS", 1)
    path = families.write(family, models)
    with programs.compiled() as compiled:
        llm = start(path, dtype)
    rounded.check_logits(llm, path, dtype)
    layers = families.FAMILIES[family].num_hidden_layers
    (step,) = [text for text in compiled if 'custom_call_target="XlaGpuSkinnySwiglu"' in text]
    assert step.count('custom_call_target="XlaGpuSkinnySwiglu"') == layers
    # Each layer has products for queries, keys and values, and for the outputs of attention and of
    # the MLP. One more product gives the logits.
    assert step.count('custom_call_target="XlaGpuSkinnyLinear"') == 3 * layers + 1


@pytest.mark.parametrize("family", families.LATENT)
def test_latent_attention(family: str, models: Path) -> None:
    """In bfloat16 only: XLA:CPU adds up the products of each head in float16 for float16."""
    path = families.write(family, models)
    rounded.check_logits(start(path, torch.bfloat16), path, torch.bfloat16)


@pytest.mark.parametrize("family", families.LATENT)
def test_latent_attention_with_heads(
    family: str, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_MLA_DISABLE", "1")
    path = families.write(family, models)
    families.check_tokens(start(path, torch.float32), path)
