"""Small models with random weights, one of each supported family, and checks of their tokens."""

import functools
import os
from pathlib import Path

import torch
import torch_xla.debug.metrics as metrics
import transformers
from random_model import write_model
from safetensors.torch import load_file, save_file
from vllm import LLM, SamplingParams

VOCABULARY = 512
# How many devices share a model; BUILD sets it.
DEVICES = int(os.environ.get("CPU_NUM_DEVICES", "1"))
# A token's logit may be below the reference's choice by the median distance of the two best logits,
# divided by this number.
MARGIN = 200

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": 0,
}
_WINDOW = 24  # shorter than the longest prompts

FAMILIES = {
    "llama": transformers.LlamaConfig(**_COMMON),  # heads of 32, which are padded
    "qwen2": transformers.Qwen2Config(**_COMMON),
    "qwen3": transformers.Qwen3Config(**_COMMON, head_dim=64),
    "mistral": transformers.MistralConfig(**_COMMON, sliding_window=_WINDOW),
    "gemma2": transformers.Gemma2Config(
        **_COMMON,
        head_dim=64,
        sliding_window=_WINDOW,
        query_pre_attn_scalar=64,
        hidden_act="gelu_pytorch_tanh",  # as in the models' own config.json
    ),
    # One layer of three attends to all tokens, with another base of its rotary embedding.
    "gemma3": transformers.Gemma3TextConfig(
        **_COMMON | {"num_hidden_layers": 3},
        head_dim=64,
        sliding_window=_WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_local_base_freq=100.0,
        query_pre_attn_scalar=64,
        hidden_activation="gelu_pytorch_tanh",
    ),
    "mixtral": transformers.MixtralConfig(
        **_COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
    ),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **_COMMON,
        head_dim=64,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        norm_topk_prob=True,
    ),
    # Groups of experts, chosen by sigmoids and a bias, and an expert for all tokens.
    "glm4_moe": transformers.Glm4MoeConfig(
        **_COMMON,
        head_dim=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
        use_qk_norm=True,
    ),
    # Attention sinks, experts with biases.
    "gpt_oss": transformers.GptOssConfig(
        **_COMMON,
        head_dim=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=_WINDOW,
        layer_types=["sliding_attention", "full_attention"],
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    ),
    "opt": transformers.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        ffn_dim=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        word_embed_proj_dim=128,
        init_std=0.15,
        pad_token_id=1,
        bos_token_id=None,
        eos_token_id=0,
    ),
}
# Families whose queries and keys are not computed by the kernel that also writes the cache.
OTHERS = {
    # Queries and keys are clamped in place.
    "olmo": transformers.OlmoConfig(**_COMMON | {"num_key_value_heads": 4}, clip_qkv=1.0),
    # The norms cover all queries and all keys, not one head.
    "olmo2": transformers.Olmo2Config(**_COMMON | {"num_attention_heads": 2}),
}
# Latent rows have sizes that the kernel supports. All experts are chosen, because rounding could
# decide otherwise.
LATENT = {
    "deepseek_v2": transformers.DeepseekV2Config(
        **_COMMON | {"num_key_value_heads": 4},
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=32,
        qk_rope_head_dim=64,
        v_head_dim=32,
        first_k_dense_replace=1,
        n_routed_experts=2,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=48,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
        norm_topk_prob=False,
        routed_scaling_factor=1.5,
        # Settings that vLLM reads and transformers does not write.
        moe_layer_freq=1,
        scoring_func="softmax",
    )
}

# Each weight has several blocks of 128 x 128.
WIDE = {
    "wide_qwen3_moe": transformers.Qwen3MoeConfig(
        **_COMMON | {"hidden_size": 256, "num_key_value_heads": 4},
        head_dim=64,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=256,
        norm_topk_prob=True,
    )
}


def prompts() -> list[list[int]]:
    """Prompts of 3 to 60 tokens; two have a common prefix."""
    torch.manual_seed(1)
    lengths = (3, 60, 17, 33, 8, 48)
    texts = [torch.randint(2, VOCABULARY, (length,)).tolist() for length in lengths]
    return [*texts, texts[1][:40] + texts[0]]


def write(family: str, folder: Path) -> str:
    """Writes the family's model into `folder`, unless it exists; returns its path."""
    path = folder / family
    if not path.exists():
        write_model((FAMILIES | OTHERS | LATENT | WIDE)[family], path)
        _vary_constants(path / "model.safetensors")
    return str(path)


def _vary_constants(weights: Path) -> None:
    """Changes biases of 0 and norms of 1, so that omitting them has an effect."""
    tensors = load_file(weights)
    for name, tensor in tensors.items():
        if tensor.unique().numel() == 1:
            tensors[name] = tensor + 0.1 * torch.randn(tensor.shape)
    save_file(tensors, weights, metadata={"format": "pt"})


@functools.lru_cache(maxsize=4)
def _load(model: str) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(
        model, torch_dtype=torch.float32, attn_implementation="eager"
    )


@torch.no_grad()
def reference(model: str, prompt: list[int], answer: list[int]) -> tuple[int, float, float]:
    """Compares a greedy answer with transformers' float32 model, each token after those before it.

    Returns:
        How many tokens are the reference's choice; the largest amount by which a chosen token's
        logit is below the logit of the reference's choice; and the median distance of the
        reference's two best logits, as a scale for such amounts.
    """
    logits = _load(model)(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    best = logits.topk(2).values
    chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    behind = best[:, 0] - chosen
    return (
        int((behind == 0).sum()),
        float(behind.max()),
        float((best[:, 0] - best[:, 1]).median()),
    )


def check_tokens(llm: LLM, model: str) -> None:
    """Greedy tokens for all prompts are the reference's, and no program is compiled for them."""
    compiled = metrics.metric_data("CompileTime")[0]
    answers = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts()],
        SamplingParams(temperature=0, max_tokens=16, ignore_eos=True),
        use_tqdm=False,
    )
    assert metrics.metric_data("CompileTime")[0] == compiled
    compared = [
        reference(model, answer.prompt_token_ids, answer.outputs[0].token_ids) for answer in answers
    ]
    equal, behind, distances = zip(*compared, strict=True)
    print(f"{model}: {sum(equal)} of {16 * len(answers)} tokens, at most {max(behind)} behind")
    assert sum(equal) >= 16 * len(answers) - 2
    assert max(behind) < min(distances) / MARGIN


def compressed_tensors(numbers: str) -> dict[str, object]:
    """The quantization_config of a checkpoint with 8-bit weights and inputs, "int" or "float"."""
    each = {"num_bits": 8, "type": numbers, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": each | {"strategy": "channel", "dynamic": False},
        "input_activations": each | {"strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": f"{numbers}-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
