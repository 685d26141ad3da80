"""Compute vLLM's attention with the operators of torch_xla_ext."""

from __future__ import annotations

import torch
from torch.nn.functional import pad
from vllm.attention import AttentionType
from vllm.v1.attention.backends import pallas

from torch_xla_ext import ops
from vllm_xla_gpu.batch import Batch
from vllm_xla_gpu.deferred import Deferred, Rotation, rotation_of
from vllm_xla_gpu.limits import LATENT_DIM, UnsupportedError, padded_head_dim


class XlaGpuAttentionBackend(pallas.PallasAttentionBackend):
    @staticmethod
    def get_impl_cls() -> type[XlaGpuAttention]:
        return XlaGpuAttention

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, *args: object
    ) -> tuple[int, int, int, int]:
        """Return [num_pages, page_size, 2 * num_kv_heads, head_dim], for ragged_paged_attention.

        Latent rows (mla.py) are stored in two halves, as keys and values.
        """
        if head_size == LATENT_DIM:
            return num_blocks, block_size, 2, head_size // 2
        return num_blocks, block_size, 2 * num_kv_heads, padded_head_dim(head_size)


class XlaGpuAttention(pallas.PallasAttentionBackendImpl):
    """Writes the step's keys and values into the layer's pages, and attends to them."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **others: object,
    ) -> None:
        """Initialize the attention of one layer, as vLLM does.

        Args:
            sinks: [num_heads], logits without a value, as in gpt-oss.
            others: further options of some models' attention, none of which is supported.
        """
        if alibi_slopes is not None:
            raise UnsupportedError(
                "vllm-xla-gpu does not support ALiBi; serve a model that encodes positions "
                "differently"
            )
        if others:
            raise UnsupportedError(
                f"vllm-xla-gpu does not support attention with {', '.join(others)}; serve a model "
                "with standard attention"
            )
        if attn_type != AttentionType.DECODER:
            raise UnsupportedError(
                f"vllm-xla-gpu does not support non-causal attention ({attn_type}); serve a "
                "decoder-only model"
            )
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            None,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
        )
        self.sinks = sinks

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor | Deferred,
        key: torch.Tensor | Deferred,
        value: torch.Tensor | Deferred,
        kv_cache: torch.Tensor,
        attn_metadata: Batch,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the attention of all tokens of a step.

        Args:
            layer: has the scales of an fp8 cache.
            query: [num_tokens, num_heads * head_size], or with a separate dimension for the heads.
            key, value: [num_tokens, num_kv_heads * head_size], or with a separate dimension for the
                heads.
            kv_cache: of get_kv_cache_shape; empty while memory is measured, when the result is
                meaningless.
            attn_metadata: the rows of the cache that the tokens are written to and attend to.

        Returns:
            [num_tokens, num_heads * head_size] of query's dtype.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("fused output quantization")
        if kv_cache.numel() == 0:
            # Not a constant, because XLA would spend seconds on folding it.
            result = query if output is None else output
            return result.whole if isinstance(result, Deferred) else result
        is_fp8 = kv_cache.dtype.itemsize == 1
        scales = {}
        if is_fp8:
            scales = {"k_scale": layer._k_scale_float, "v_scale": layer._v_scale_float}
        slots = attn_metadata.slots
        rotation = self._rotation(query, key, value, kv_cache)
        if rotation is not None:
            qkv = rotation.columns.by_shard.unflatten(-1, (-1, self.head_size))
            q = ops.rope_kv_pages_update(
                qkv,
                rotation.positions,
                slots,
                rotation.layer.cos_sin_cache,
                kv_cache,
                **scales,
                **_norm_options(rotation),
            )
        else:
            dtype = query.dtype if is_fp8 else kv_cache.dtype
            padding = (0, padded_head_dim(self.head_size) - self.head_size)
            q, k, v = (
                pad(x.to(dtype).reshape(len(x), -1, self.head_size), padding)
                for x in (query, key, value)
            )
            if self.kv_sharing_target_layer_name is None:
                torch.ops.xla_gpu.kv_pages_update(k, v, slots, kv_cache, **scales)
        attended = torch.ops.xla_gpu.ragged_paged_attention(
            q,
            kv_cache,
            attn_metadata.kv_lens,
            attn_metadata.page_indices,
            attn_metadata.cu_q_lens,
            attn_metadata.num_seqs,
            sm_scale=self.scale,
            sliding_window=self.sliding_window,
            soft_cap=self.logits_soft_cap,
            sinks=None if self.sinks is None else self.sinks.float(),
            max_q_len=attn_metadata.max_q_len,
            **scales,
        )
        return attended[..., : self.head_size].flatten(-2).to(query.dtype)

    def _rotation(
        self,
        query: torch.Tensor | Deferred,
        key: torch.Tensor | Deferred,
        value: torch.Tensor | Deferred,
        kv_cache: torch.Tensor,
    ) -> Rotation | None:
        """Return the rotary embedding if one kernel can apply it and write the cache, else None."""
        rotation = rotation_of(query, key, value)
        if rotation is None:
            return None
        layer, is_fp8 = rotation.layer, kv_cache.dtype.itemsize == 1
        fits = (
            self.kv_sharing_target_layer_name is None
            and layer.is_neox_style
            and layer.head_size == self.head_size == padded_head_dim(self.head_size)
            and layer.cos_sin_cache.dtype == query.dtype
            and (is_fp8 or kv_cache.dtype == query.dtype)
            and self._fit_norms(rotation)
        )
        return rotation if fits else None

    def _fit_norms(self, rotation: Rotation) -> bool:
        """Return whether the kernel can compute the norms of queries and keys, if there are any."""
        norms = [rotation.query.norm, rotation.key.norm]
        if None in norms:
            return norms == [None, None]
        weights = [norm.layer.weight for norm in norms]
        return (
            len({(norm.layer.variance_epsilon, norm.adds_one) for norm in norms}) == 1
            and all(len(weight) == self.head_size for weight in weights)
            and all(weight.dtype == rotation.columns.by_shard.dtype for weight in weights)
        )


def _norm_options(rotation: Rotation) -> dict[str, object]:
    """Return the arguments for the norms in `ops.rope_kv_pages_update`."""
    query, key = rotation.query.norm, rotation.key.norm
    if query is None:
        return {}
    return {
        "query_norm": query.layer.weight,
        "key_norm": key.layer.weight,
        "norm_epsilon": query.layer.variance_epsilon,
        "norm_adds_one": query.adds_one,
    }
