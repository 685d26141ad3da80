"""vLLM's attention on the operators of torch_xla_ext."""

from __future__ import annotations

import torch
from torch.nn.functional import pad
from vllm.v1.attention.backends import pallas

import torch_xla_ext  # noqa: F401  # registers torch.ops.xla_gpu
from vllm_xla_gpu.checks import padded_head_dim


class XlaGpuAttentionBackend(pallas.PallasAttentionBackend):
    @staticmethod
    def get_impl_cls() -> type[XlaGpuAttention]:
        return XlaGpuAttention

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, int, int, int]:
        """[num_pages, page_size, 2 * num_kv_heads, head_dim], as ragged_paged_attention has it."""
        return num_blocks, block_size, 2 * num_kv_heads, padded_head_dim(head_size)


class XlaGpuAttention(pallas.PallasAttentionBackendImpl):
    """Writes the step's keys and values into the layer's pages, and attends to them."""

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: pallas.PallasMetadata,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of all tokens of a step.

        Args:
            layer: has the scales of an fp8 cache.
            query: [num_tokens, num_heads * head_size].
            key, value: [num_tokens, num_kv_heads * head_size].
            kv_cache: as get_kv_cache_shape; empty while the memory is measured.
            attn_metadata: which rows of the cache the tokens are written to, and which they see.

        Returns:
            [num_tokens, num_heads * head_size] of query's dtype.
        """
        if output_scale is not None:
            raise NotImplementedError("fused output quantization")
        if kv_cache.numel() == 0:
            return torch.ones_like(query) if output is None else output
        is_fp8 = kv_cache.dtype.itemsize == 1
        dtype = query.dtype if is_fp8 else kv_cache.dtype
        padding = (0, padded_head_dim(self.head_size) - self.head_size)
        q, k, v = (
            pad(x.to(dtype).unflatten(-1, (-1, self.head_size)), padding)
            for x in (query, key, value)
        )
        scales = {}
        if is_fp8:
            scales = {"k_scale": layer._k_scale_float, "v_scale": layer._v_scale_float}
        if self.kv_sharing_target_layer_name is None:
            slots = token_slots(attn_metadata.slot_mapping, attn_metadata.num_kv_update_slices, k)
            torch.ops.xla.dynamo_set_buffer_donor_(kv_cache, True)
            torch.ops.xla_gpu.kv_pages_update(k, v, slots, kv_cache, **scales)
        attended = torch.ops.xla_gpu.ragged_paged_attention(
            q,
            kv_cache,
            attn_metadata.context_lens,
            attn_metadata.block_tables,
            attn_metadata.query_start_loc,
            attn_metadata.num_seqs,
            sm_scale=self.scale,
            sliding_window=self.sliding_window,
            soft_cap=self.logits_soft_cap,
            **scales,
        )
        return attended[..., : self.head_size].flatten(-2).to(query.dtype)


# An operator of its own, because vLLM compiles the model for all numbers of slices at once without
# telling torch that they vary: it marks the first dimension, 3, as the dynamic one.
@torch.library.custom_op("vllm_xla_gpu::token_slots", mutates_args=())
def token_slots(slices: torch.Tensor, num_slices: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Each token's slot, for kv_pages_update, from vLLM's slices.

    Args:
        slices: int32 or int64 [3, n]; of each slice, a run of tokens in one page, its first slot,
            its first token and its length.
        num_slices: int32 [1], how many of them there are.
        key: [num_tokens, ...].

    Returns:
        int32 [num_tokens]; -1 for a token of no slice.
    """
    slot, first, length = slices.to(torch.int32)
    token = torch.arange(key.shape[0], dtype=torch.int32, device=key.device)[:, None]
    exists = torch.arange(slices.shape[1], dtype=torch.int32, device=key.device) < num_slices
    offset = token - first
    is_in = exists & (offset >= 0) & (offset < length)  # [tokens, slices], at most one a token
    return torch.where(is_in, slot + offset + 1, 0).sum(1, dtype=torch.int32) - 1


@token_slots.register_fake
def _(slices: torch.Tensor, num_slices: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key.new_empty(key.shape[0], dtype=torch.int32)
