"""Replace torch-tpu's scaled_dot_product_attention, which is a kernel for TPUs.

Here PyTorch composes it from matmuls and a softmax; on a GPU with TORCH_XLA_GPU_CUDNN_ATTENTION=1,
cuDNN computes calls for which its result is the same.
"""

import math
import os

import torch

ENVIRONMENT = "TORCH_XLA_GPU_CUDNN_ATTENTION"

_LIBRARY = torch.library.Library("aten", "IMPL")
_OPERATOR = torch.ops.aten.scaled_dot_product_attention.default
_uses_cudnn = False


def install(platform: str) -> None:
    """Register the operator for the device's tensors."""
    global _uses_cudnn
    _uses_cudnn = platform == "CUDA" and os.environ.get(ENVIRONMENT, "0") not in ("", "0")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        _LIBRARY.impl(_OPERATOR, _attention, key)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if _uses_cudnn and attn_mask is None and dropout_p == 0:
        from xla_kernels.attention import cudnn as cudnn_attention

        cudnn_attention.look_at_gpu()
        if _is_cudnns(query, key, value, enable_gqa, cudnn_attention.max_head_dim):
            factor = 1 / math.sqrt(query.shape[3]) if scale is None else scale
            return cudnn_attention.cudnn_attention(query, key, value, is_causal, factor)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        zeros = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = zeros.masked_fill(~attn_mask, -math.inf)
    result, _ = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return result


def _is_cudnns(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool, max_head_dim: int
) -> bool:
    """Return whether cuDNN computes the same result; a single query needs no fused kernel."""
    from xla_kernels.attention.cudnn import DTYPES, HEAD_DIM_MULTIPLE

    tensors = (query, key, value)
    if query.dtype not in DTYPES or {t.dtype for t in tensors} != {query.dtype}:
        return False
    if {t.dim() for t in tensors} != {4} or key.shape != value.shape or query.shape[2] == 1:
        return False
    batch_size, num_heads, _, head_dim = query.shape
    if 0 in (*query.shape, *key.shape) or (batch_size, head_dim) != (key.shape[0], key.shape[3]):
        return False
    if num_heads != key.shape[1] and not (enable_gqa and num_heads % key.shape[1] == 0):
        return False
    return head_dim <= max_head_dim and head_dim % HEAD_DIM_MULTIPLE == 0
