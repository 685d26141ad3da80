"""Attention with one query per sequence (a decoding step), on XLA:GPU.

PyTorch's composed operations multiply float32 copies of all keys and values, which moves 2.8 times
as many bytes. Here XLA multiplies 16-bit values and accumulates in float32, once for all query
heads that share a key head.
"""

import math

import torch
import torch_xla

from xla_kernels.operator import torch_library

_NAME = "xla_gpu::matmul_with_float32_sums"
_LIBRARY = torch_library.open_library(_NAME, replaces=False)
_matmul = torch_library.declare(_LIBRARY, _NAME, f"{_NAME}(Tensor a, Tensor b) -> Tensor")


def _on_xla(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    batch = list(range(a.dim() - 2))
    dimensions = (([a.dim() - 1], [b.dim() - 2]), (batch, batch))
    return torch_xla._XLAC._xla_dot_general(a, b, dimensions, None, torch.float32)


def _described(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=torch.float32)


_LIBRARY.impl(_matmul, _on_xla, "XLA")
torch.library.register_fake(_NAME, _described, lib=_LIBRARY)


def attention_of_one_query(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Compute ``softmax(scale * query @ key.mT + mask) @ value``; not differentiable.

    Args:
        query: [batch_size, num_heads, 1, head_dim], float16 or bfloat16.
        key, value: [batch_size, num_kv_heads, kv_seq_len, head_dim], of query's dtype; num_heads is
            a multiple of num_kv_heads.
        mask: [batch_size or 1, num_heads or 1, 1, kv_seq_len or 1], values to add, or a boolean
            mask of visible keys.

    Returns:
        The shape and dtype of query; zeros for a query that sees no key.
    """
    batch, num_heads, _, head_dim = query.shape
    num_kv_heads = key.shape[1]
    groups = query.reshape(batch, num_kv_heads, -1, head_dim)
    logits = _matmul(groups, key.mT) * scale  # [batch, kv_heads, group, keys]
    if mask is not None:
        by_group = (num_kv_heads, -1) if mask.shape[1] == num_heads else (1, 1)
        mask = mask.reshape(mask.shape[0], *by_group, mask.shape[3])
        if mask.dtype == torch.bool:
            logits = logits.masked_fill(~mask, -math.inf)
        else:
            logits = logits + mask.float()
    weights = logits.softmax(-1)
    if mask is not None:
        weights = weights.masked_fill(logits.amax(-1, keepdim=True) == -math.inf, 0)
    result = _matmul(weights.to(value.dtype), value)
    return result.reshape(query.shape).to(query.dtype)
