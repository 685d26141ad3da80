"""Compute PyTorch's flex_attention of XLA tensors by its definition, with all scores.

PyTorch refuses devices for which inductor has no kernel. Its operator for the others computes the
same, but its derivative for XLA tensors would leave out what a `score_mod` captures.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

Modification = Callable[..., Tensor]


def validate_device(original: Callable[..., None]) -> Callable[..., None]:
    """Accept XLA tensors."""

    @functools.wraps(original)
    def validate_device(query: Tensor, key: Tensor, value: Tensor) -> None:
        if query.device.type != "xla":
            original(query, key, value)

    return validate_device


def flex_attention(original: Callable[..., object]) -> Callable[..., object]:
    """Run the operator for XLA tensors, instead of a compiled function that consists of it."""

    @functools.wraps(original)
    def flex_attention(query: Tensor, *args: object, **options: object) -> object:
        if query.device.type != "xla" or torch.compiler.is_dynamo_compiling():
            return original(query, *args, **options)
        with torch.compiler.set_stance("force_eager"):
            return original(query, *args, **options)

    return flex_attention


def operator(original: Callable[..., object]) -> Callable[..., object]:
    """Replace the operator for XLA tensors."""

    def operator(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Modification,
        block_mask: tuple[object, ...],
        scale: float,
        *options: object,
    ) -> tuple[Tensor, Tensor]:
        if query.device.type != "xla":
            return original(query, key, value, score_mod, block_mask, scale, *options)
        return _attention(query, key, value, score_mod, block_mask[-1], scale)

    return operator


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Modification,
    mask_mod: Modification,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the result [batch, heads, queries, size], and the scores' log2-sum-exp2."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    batch, heads = query.shape[:2]
    key, value = (
        x.repeat_interleave(heads // x.size(1), 1).expand(batch, -1, -1, -1) for x in (key, value)
    )
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query @ key.mT).to(dtype) * scale
    places = [torch.arange(size, device=scores.device) for size in scores.shape]
    with TransformGetItemToIndex():  # lets tensors without dimensions be indices under vmap
        allowed = _vmap_for_bhqkv(mask_mod, prefix=())(*places)
        scores = _vmap_for_bhqkv(score_mod, prefix=(0,))(scores, *places)
    scores = scores.where(allowed, -torch.inf)
    is_empty = (scores == -torch.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(is_empty, 0)
    sums = scores.logsumexp(-1) / math.log(2)
    weights = scores.softmax(-1).masked_fill(is_empty, 0).to(query.dtype)
    return weights @ value, sums.masked_fill(is_empty.squeeze(-1), -torch.inf)


def index(original: Callable[[Tensor, list[Tensor]], Tensor]) -> Callable[..., Tensor]:
    """Index XLA tensors by an operator: torch.compile cannot trace PyTorch's autograd.Function."""

    def index(x: Tensor, indices: list[Tensor]) -> Tensor:
        if x.device.type == "xla":
            return torch.ops.aten.index(x, indices)
        return original(x, indices)

    return index
