"""The models that train_step.py trains, in plain PyTorch, and transformers' MoE.

They are made on the device "meta", and moved by `to_empty`; `make_buffers` and `draw` fill them.
"""

from __future__ import annotations

import zlib

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

IMAGE, PATCH, CLASSES = 224, 16, 1000


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return y.to(x.dtype) * self.weight


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    u, v = x.float().chunk(2, -1)
    return torch.cat([u * cos - v * sin, v * cos + u * sin], -1).to(x.dtype)


class LlamaLayer(nn.Module):
    def __init__(self, width: int, inner: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.splits, self.head_dim = (heads, kv_heads, kv_heads), width // heads
        self.norms = nn.ModuleList(RmsNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, sum(self.splits) * self.head_dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = heads.split(self.splits, 1)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Llama(nn.Module):
    """508 million parameters."""

    WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY = 2048, 5632, 8, 16, 8, 32000

    def __init__(self, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(self.VOCABULARY, self.WIDTH)
        sizes = (self.WIDTH, self.INNER, self.HEADS, self.KV_HEADS)
        self.layers = nn.ModuleList(LlamaLayer(*sizes) for _ in range(self.LAYERS))
        self.norm = RmsNorm(self.WIDTH)
        self.head = nn.Linear(self.WIDTH, self.VOCABULARY, bias=False)
        self.keeps_activations = True
        self.register_buffer("angles", torch.empty(length, self.WIDTH // self.HEADS // 2))

    def make_buffers(self) -> None:
        head_dim = self.WIDTH // self.HEADS
        frequencies = 10000.0 ** -(torch.arange(0, head_dim, 2) / head_dim)
        self.angles.copy_(torch.arange(len(self.angles))[:, None] * frequencies)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, cos, sin = self.embedding(tokens), self.angles.cos(), self.angles.sin()
        for layer in self.layers:
            if self.keeps_activations:
                x = layer(x, cos, sin)
            else:
                x = checkpoint(layer, x, cos, sin, use_reentrant=False)
        return self.head(self.norm(x))

    def flops(self, batch: int, length: int) -> float:
        parameters = sum(p.numel() for p in self.parameters())
        return 6 * batch * length * (parameters + self.LAYERS * length * self.WIDTH)


class Llama2b(Llama):
    """2.0 billion parameters: eight layers of the shape of Llama 3's 8B."""

    WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY = 4096, 14336, 8, 32, 8, 32000


class Llama8b(Llama2b):
    """8.0 billion parameters: Llama 3's 8B."""

    LAYERS, VOCABULARY = 32, 128256


class LlamaTiny(Llama):
    """A model to try the script without a GPU."""

    WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY = 64, 128, 2, 4, 2, 256


class VitLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        seen = functional.scaled_dot_product_attention(*heads.chunk(3, 1))
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Vit(nn.Module):
    """ViT-L/16: 304 million parameters, images of 224 x 224."""

    WIDTH, LAYERS, HEADS = 1024, 24, 16

    def __init__(self, _length: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, self.WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(torch.randn((IMAGE // PATCH) ** 2, self.WIDTH) * 0.02)
        self.layers = nn.ModuleList(VitLayer(self.WIDTH, self.HEADS) for _ in range(self.LAYERS))
        self.norm, self.head = nn.LayerNorm(self.WIDTH), nn.Linear(self.WIDTH, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))

    def make_buffers(self) -> None:
        pass

    def flops(self, batch: int, _length: int) -> float:
        tokens = (IMAGE // PATCH) ** 2
        parameters = sum(p.numel() for p in self.parameters())
        return 6 * batch * tokens * (parameters + 2 * self.LAYERS * tokens * self.WIDTH)


def causal_attention(
    module: nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: None,
    *,
    scaling: float,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Compute transformers' attention without its mask for packed sequences."""
    seen = functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scaling, enable_gqa=True
    )
    return seen.transpose(1, 2).contiguous(), None


class Moe(nn.Module):
    """transformers' Qwen3-MoE: 1.5 billion parameters, of which a token uses 0.5 billion."""

    WIDTH, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 2048, 768, 8, 32, 4, 128, 32000
    EXPERTS, TOP_K = 32, 4

    def __init__(self, _length: int) -> None:
        super().__init__()
        from transformers import AttentionInterface, Qwen3MoeConfig, Qwen3MoeForCausalLM

        AttentionInterface.register("causal", causal_attention)
        config = Qwen3MoeConfig(
            vocab_size=self.VOCABULARY,
            hidden_size=self.WIDTH,
            moe_intermediate_size=self.INNER,
            num_hidden_layers=self.LAYERS,
            num_attention_heads=self.HEADS,
            num_key_value_heads=self.KV_HEADS,
            head_dim=self.HEAD_DIM,
            num_experts=self.EXPERTS,
            num_experts_per_tok=self.TOP_K,
            norm_topk_prob=True,
            attn_implementation="causal",
            experts_implementation="grouped_mm",  # of transformers 5
        )
        self.model = Qwen3MoeForCausalLM(config)

    def make_buffers(self) -> None:
        rotary = self.model.model.rotary_emb
        self.model.model.rotary_emb = type(rotary)(self.model.config)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(tokens, use_cache=False).logits

    def flops(self, batch: int, length: int) -> float:
        sizes = {name: p.numel() for name, p in self.named_parameters()}
        of_experts = sum(size for name, size in sizes.items() if ".experts." in name)
        active = sum(sizes.values()) - of_experts * (1 - self.TOP_K / self.EXPERTS)
        attention = self.LAYERS * length * self.HEADS * self.HEAD_DIM
        return 6 * batch * length * (active + attention)


class MoeTiny(Moe):
    """An MoE to try the script without a GPU."""

    WIDTH, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 64, 32, 2, 4, 2, 16, 256
    EXPERTS, TOP_K = 8, 2


MODELS = {
    "llama": Llama,
    "llama-2b": Llama2b,
    "llama-8b": Llama8b,
    "llama-tiny": LlamaTiny,
    "vit": Vit,
    "moe": Moe,
    "moe-tiny": MoeTiny,
}


@torch.no_grad()
def draw(model: nn.Module) -> None:
    """Draw random matrices, the same in every process; vectors are ones, or zeros if biases.

    An MoE's weights are the same for transformers 4, which has a tensor per expert, and for 5.
    """
    # Drawing two billion numbers on the host takes a minute, so all weights are slices of these, at
    # different offsets.
    count = 2**20
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(0)) * 0.02
    numbers = numbers.bfloat16().repeat(2)

    def fill(name: str, weight: torch.Tensor) -> None:
        first = zlib.crc32(name.encode()) % count
        for part in weight.flatten().split(count):
            part.copy_(numbers[first : first + len(part)])

    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(0 if name.endswith("bias") else 1)
        elif ".experts." in name and parameter.dim() == 3:
            experts = name.rpartition(".")[0]
            kinds = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
            for i, weights in enumerate(parameter):
                for kind, weight in zip(kinds, weights.chunk(len(kinds)), strict=True):
                    fill(f"{experts}.{i}.{kind}.weight", weight)
        else:
            fill(name, parameter)


def in_bfloat16(model: nn.Module) -> nn.Module:
    """Convert the parameters, but not the buffers."""
    for parameter in list(model.parameters()):
        parameter.data = parameter.data.bfloat16()
    return model
