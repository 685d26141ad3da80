"""``torch.nn.functional.scaled_dot_product_attention``: torch-tpu's own is a TPU's kernel.

Here it is PyTorch's composition of products and a softmax. # cuDNN
"""

import math

import torch

_LIBRARY = torch.library.Library("aten", "IMPL")
_OPERATOR = torch.ops.aten.scaled_dot_product_attention.default


def install(platform: str) -> None:
    """Registers the operator for the device's tensors."""
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
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        zeros = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = zeros.masked_fill(~attn_mask, -math.inf)
    result, _ = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return result
