"""Samples of kv_cache_update and kv_pages_update for tests/ops."""

import torch
from testing.samples import Arguments, OperatorSamples

from torch_xla_ext import ops

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SLOTS = (13, -1, 0)


def _tokens(dtype: torch.dtype) -> Arguments:
    return torch.randn(3, 2, 4).to(dtype), torch.randn(3, 2, 4).to(dtype), torch.tensor(_SLOTS)


def _updated_caches(
    key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, *caches: torch.Tensor
) -> torch.Tensor:
    copies = [cache.clone() for cache in caches]
    ops.kv_cache_update(key, value, slots, *copies)
    return torch.stack(copies)


def _updated_pages(
    key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, pages: torch.Tensor
) -> torch.Tensor:
    copy = pages.clone()
    ops.kv_pages_update(key, value, slots, copy)
    return copy


def _written(cache: torch.Tensor, tokens: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    rows = cache.clone().flatten(0, 1)
    rows[slots[slots >= 0]] = tokens[slots >= 0]
    return rows.reshape(cache.shape)


def _expected_caches(
    key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, *caches: torch.Tensor
) -> torch.Tensor:
    pairs = zip(caches, (key, value), strict=True)
    return torch.stack([_written(cache, tokens, slots) for cache, tokens in pairs])


def _expected_pages(
    key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, pages: torch.Tensor
) -> torch.Tensor:
    return _written(pages, torch.stack([key, value], dim=2).flatten(1, 2), slots)


def _rope_arguments(dtype: torch.dtype) -> Arguments:
    angles = torch.arange(20)[:, None] * torch.tensor([1.0, 0.1])
    return (
        torch.randn(3, 2, 4, 6).to(dtype),
        torch.tensor([0, 19, 7]),
        torch.tensor(_SLOTS),
        torch.cat([angles.cos(), angles.sin()], dim=-1).to(dtype),
        torch.randn(3, 8, 4, 6).to(dtype),
    )


def _rotated_and_written(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    pages: torch.Tensor,
) -> torch.Tensor:
    copy = pages.clone()
    query = ops.rope_kv_pages_update(qkv, positions, slots, cos_sin, copy)
    return torch.cat([query.flatten(), copy.flatten()])


def _expected_rotation(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    pages: torch.Tensor,
) -> torch.Tensor:
    cos, sin = cos_sin.float()[positions][:, None, None].chunk(2, dim=-1)
    x, y, rest = qkv.float().split([2, 2, 2], dim=-1)
    rotated = torch.cat([x * cos - y * sin, y * cos + x * sin, rest], dim=-1).to(qkv.dtype)
    query, key, value = rotated[:, :, :2], rotated[:, :, 2], qkv[:, :, 3]
    return torch.cat([query.flatten(), _expected_pages(key, value, slots, pages).flatten()])


SAMPLES = [
    OperatorSamples(
        documented=ops.kv_cache_update,
        target="XlaGpuKvCacheUpdate",
        reference=_expected_caches,
        dtypes=_DTYPES,
        arguments=lambda dtype: (
            *_tokens(dtype),
            torch.randn(3, 8, 2, 4).to(dtype),
            torch.randn(3, 8, 2, 4).to(dtype),
        ),
        of_tensors=_updated_caches,
    ),
    OperatorSamples(
        documented=ops.kv_pages_update,
        target="XlaGpuKvPagesUpdate",
        reference=_expected_pages,
        dtypes=_DTYPES,
        arguments=lambda dtype: (*_tokens(dtype), torch.randn(3, 8, 4, 4).to(dtype)),
        of_tensors=_updated_pages,
    ),
    OperatorSamples(
        documented=ops.rope_kv_pages_update,
        target="XlaGpuRopeKvPagesUpdate",
        reference=_expected_rotation,
        dtypes=_DTYPES,
        arguments=_rope_arguments,
        of_tensors=_rotated_and_written,
        tolerance=1e-3,  # the kernel may round once where the reference rounds twice
    ),
]
