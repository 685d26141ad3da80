"""A decoder with the shape of Llama 3 8B and random weights, for benchmarks/decode_step.py.

It is plain PyTorch, so that it can be imported with torch_xla and with a CUDA build of torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch.nn import functional

# attend(layer, q [seqs, heads, head_dim], k [seqs, kv_heads, head_dim], v) keeps k and v and
# returns what the queries find, of q's shape.
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclasses.dataclass
class Config:
    layers: int = 32
    width: int = 4096
    inner: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 128256
    dtype: torch.dtype = torch.bfloat16
    parts: int = 1  # devices among which heads and columns are divided

    def num_parameters(self) -> int:
        """That a step reads: all but the embedding, of which it reads a row a sequence."""
        heads = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        layer = self.width * (heads + 3 * self.inner + 2)
        return self.layers * layer + self.width * (self.vocabulary + 1)


class Model:
    """Weights and the pass of one token a sequence."""

    def __init__(
        self,
        config: Config,
        device: torch.device,
        sync: Callable[[], None],
        place: Callable[[torch.Tensor, int], None] | None = None,
    ) -> None:
        """`place`, if there is one, divides a matrix along a dimension among `config.parts`."""
        self.config = config

        def weight(rows: int, columns: int, dim: int = 0) -> torch.Tensor:
            made = torch.randn(rows, columns, dtype=config.dtype, device=device) * columns**-0.5
            if place is not None:
                place(made, dim)
            sync()
            return made

        def ones() -> torch.Tensor:
            return torch.ones(config.width, dtype=config.dtype, device=device)

        heads = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.embedding = weight(config.vocabulary, config.width)
        self.layers = [
            {
                "attention_norm": ones(),
                "qkv": weight(heads, config.width),
                "out": weight(config.width, config.heads * config.head_dim, dim=1),
                "mlp_norm": ones(),
                "gate_up": weight(2 * config.inner, config.width),
                "down": weight(config.width, config.inner, dim=1),
            }
            for _ in range(config.layers)
        ]
        self.norm, self.head = ones(), weight(config.vocabulary, config.width)
        step = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device)
        self.frequencies = 500000.0 ** (-step / config.head_dim)
        sync()

    def num_tensors(self) -> int:
        """Weights, and the frequencies of the positions."""
        return 4 + sum(len(layer) for layer in self.layers)

    def __call__(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Returns the next tokens, [seqs], int32."""
        config = self.config
        angles = positions.float()[:, None, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()

        def rotate(x: torch.Tensor) -> torch.Tensor:
            a, b = x.float().chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(config.dtype)

        x = self.embedding[tokens]
        for number, layer in enumerate(self.layers):
            qkv = functional.linear(norm(x, layer["attention_norm"]), layer["qkv"])
            # Each device's rows of the weights are its heads' and, below, its gates' and values'.
            qkv = qkv.unflatten(-1, (config.parts, -1, config.head_dim))
            heads, kv_heads = config.heads // config.parts, config.kv_heads // config.parts
            q, k, v = (x.flatten(-3, -2) for x in qkv.split([heads, kv_heads, kv_heads], dim=-2))
            found = attend(number, rotate(q), rotate(k), v)
            x = x + functional.linear(found.flatten(-2), layer["out"])
            gate_up = functional.linear(norm(x, layer["mlp_norm"]), layer["gate_up"])
            gate, up = gate_up.unflatten(-1, (config.parts, -1)).chunk(2, -1)
            x = x + functional.linear((functional.silu(gate) * up).flatten(-2), layer["down"])
        return functional.linear(norm(x, self.norm), self.head).argmax(-1).int()


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
    return scaled.to(x.dtype) * weight
