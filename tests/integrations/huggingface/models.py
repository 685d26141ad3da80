"""Small models of transformers with random weights."""

from typing import Any

import torch
import torch_xla
import transformers
from torch_xla.debug import metrics

_SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WINDOW = {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 8}
CONFIGS: dict[str, transformers.PretrainedConfig] = {
    "llama": transformers.LlamaConfig(**_SIZES, num_key_value_heads=2),
    "qwen2": transformers.Qwen2Config(**_SIZES, num_key_value_heads=2),
    "gemma2": transformers.Gemma2Config(**_SIZES | _WINDOW, query_pre_attn_scalar=8),
    "gpt2": transformers.GPT2Config(
        **{"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 100},
        **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "bloom": transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4),
    "gemma3n": transformers.Gemma3nTextConfig(
        **_SIZES | {"num_hidden_layers": 4, "intermediate_size": [64] * 4},
        **{"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8, "laurel_rank": 4},
        **{"vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8},
        layer_types=["sliding_attention", "full_attention"] * 2,
        activation_sparsity_pattern=[0.0] * 4,
        num_kv_shared_layers=2,  # the last two
    ),
    "lfm2": transformers.Lfm2Config(
        **_SIZES, num_key_value_heads=2, layer_types=["conv", "full_attention"]
    ),
    "bert": transformers.BertConfig(**_SIZES),
    "t5": transformers.T5Config(
        **{"vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2},
        **{"num_heads": 4, "decoder_start_token_id": 0},
    ),
}


def model(name: str, kind: Any = transformers.AutoModelForCausalLM, **options: Any) -> Any:
    """A model in evaluation mode, whose weights are so large that its tokens vary."""
    torch.manual_seed(0)
    made = kind.from_config(CONFIGS[name], **options).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(6 if parameter.dim() > 1 else 1)
    return made


def prompts(*lengths: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tokens, padded on the left to the longest, with their mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, -length:] = torch.randint(3, 97, (length,), generator=generator)
        mask[row, -length:] = 1
    return {"input_ids": ids, "attention_mask": mask}


def on_device(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to("xla") for name, tensor in tensors.items()}


def counts(*names: str) -> list[int]:
    """The values of these counters of torch_xla."""
    torch_xla.sync()
    found = map(metrics.metric_data, names)
    return [data[0] if data else 0 for data in found]


def compilations() -> int:
    """The number of programs compiled so far."""
    return counts("CompileTime")[0]
