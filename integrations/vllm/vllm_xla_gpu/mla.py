"""Multi-head latent attention with mla_paged_attention: heads share one latent row per token.

The heads' key projections are applied to the queries, and their value projections to the results
(DeepSeek-AI, "DeepSeek-V2", 2024). The kernel treats each token as a sequence, even in a prompt.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from vllm.attention.backends.abstract import AttentionImpl
from vllm.model_executor.layers.linear import ColumnParallelLinear
from vllm.v1.attention.backends import pallas

import torch_xla_ext  # noqa: F401  # registers torch.ops.xla_gpu
from vllm_xla_gpu.batch import Batch
from vllm_xla_gpu.limits import LATENT_DIM
from vllm_xla_gpu.sharded_linear import ShardedLinear


class XlaGpuMlaBackend(pallas.PallasAttentionBackend):
    @staticmethod
    def get_impl_cls() -> type[XlaGpuMla]:
        return XlaGpuMla


class XlaGpuMla(AttentionImpl):
    """Writes the step's latent rows into the layer's pages, and attends to them."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        *args: object,
        kv_lora_rank: int,
        qk_nope_head_dim: int,
        v_head_dim: int,
        kv_b_proj: ColumnParallelLinear,
        **others: object,
    ) -> None:
        self.num_heads, self.scale = num_heads, float(scale)
        self.latent_dim = kv_lora_rank
        self.head_dims = [qk_nope_head_dim, v_head_dim]
        self.kv_b_proj = kv_b_proj
        # Marks queries as divided by heads, if there are several devices. An operator is divided
        # only if an operand is, and the cache is not.
        self.divide_heads: Callable[[torch.Tensor], torch.Tensor] = lambda query: query

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Split the projections into those of each head."""
        weight = self.kv_b_proj.weight.data.unflatten(0, (self.num_heads, -1))
        projections = weight.split(self.head_dims, dim=1)
        self.kv_b_proj.sharded = nn.ModuleList(ShardedLinear(p.clone()) for p in projections)
        self.kv_b_proj.weight = None

    def forward(
        self,
        layer: nn.Module,
        query: torch.Tensor,
        latent: torch.Tensor,
        rotated: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Batch,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the attention of all tokens of a step.

        Args:
            layer: has the scale of an fp8 cache.
            query: [num_tokens, num_heads, nope + rope]; the last `rope` elements are rotated.
            latent: [num_tokens, latent_dim], normalized.
            rotated: [num_tokens, 1, rope], the part of the keys that is rotated.
            kv_cache: [num_pages, page_size, 2, LATENT_DIM / 2]; a token's row holds `latent`, then
                `rotated`, and is stored in two halves, as the keys and values of kv_pages_update.
                Empty while the memory is measured.
            attn_metadata: the rows of the cache that the tokens are written to and attend to.

        Returns:
            [num_tokens, num_heads * v_head_dim] of query's dtype.
        """
        if kv_cache.numel() == 0:
            # Not a constant, because XLA would spend seconds on folding it.
            return query[:, 0, :1].expand(-1, self.num_heads * self.head_dims[1])
        of_keys, of_values = (linear.weight for linear in self.kv_b_proj.sharded)
        rows = torch.cat([latent, rotated.flatten(1)], dim=-1)
        halves = rows.unflatten(-1, (2, 1, -1)).unbind(1)
        is_fp8 = kv_cache.dtype.itemsize == 1
        scale = layer._k_scale_float if is_fp8 else None
        torch.ops.xla_gpu.kv_pages_update(
            *halves, attn_metadata.slots, kv_cache, k_scale=scale, v_scale=scale
        )
        nope, rope = query.split([self.head_dims[0], rotated.shape[-1]], dim=-1)
        tables, lengths = attn_metadata.by_token()
        query = torch.cat([torch.einsum("thn,hnl->thl", nope, of_keys), rope], dim=-1)
        attended = torch.ops.xla_gpu.mla_paged_attention(
            self.divide_heads(query),
            kv_cache.view(*kv_cache.shape[:2], LATENT_DIM),
            tables,
            lengths,
            self.scale,
            scale,
        )
        return torch.einsum("thl,hvl->thv", attended, of_values).flatten(1)
