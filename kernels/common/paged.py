"""What the operators on paged caches have in common: checks, and the debug switch."""

import os

import torch

from torch_xla_ext.operators import arguments

QUERY_DTYPES = (torch.float16, torch.bfloat16)
QUANTIZED_DTYPE = torch.float8_e4m3fn
HEAD_DIMS = (64, 96, 128, 192, 256)
MIN_PAGE_SIZE, MAX_PAGE_SIZE = 8, 256
# Of scales and caps: the kernels' products of them are numbers of float32, neither infinite nor 0.
_MIN_NUMBER, _MAX_NUMBER = 1e-12, 1e12

REPORT_ENVIRONMENT = "TORCH_XLA_EXT_REPORT_OUT_OF_RANGE"


def reports_out_of_range() -> bool:
    """Whether kernels are to print what is out of range in device data."""
    return os.environ.get(REPORT_ENVIRONMENT, "") not in ("", "0")


def require_cache_dtype(
    operator: str, name: str, cache: torch.Tensor, other_name: str, other: torch.Tensor
) -> None:
    """Raises TypeError unless `cache` has the dtype of `other`, or float8_e4m3fn."""
    if cache.dtype not in (other.dtype, QUANTIZED_DTYPE):
        raise TypeError(
            f"{operator}: {name} must have the dtype of {other_name}, {other.dtype}, or "
            f"{QUANTIZED_DTYPE}, but has {cache.dtype}"
        )


def require_scale(operator: str, name: str, scale: float | None, cache: torch.Tensor) -> None:
    """Raises ValueError unless `scale` is one of `cache`: only a quantized cache has scales."""
    if scale is None:
        return
    if not _MIN_NUMBER <= scale <= _MAX_NUMBER:
        raise ValueError(f"{operator}: {name} must be from 1e-12 to 1e12, but is {scale}")
    if scale != 1 and cache.dtype != QUANTIZED_DTYPE:
        raise ValueError(
            f"{operator}: {name} is for a cache of {QUANTIZED_DTYPE}; for one of {cache.dtype} it "
            f"must be None or 1, but is {scale}"
        )


def require_attention(
    operator: str,
    query_name: str,
    query: torch.Tensor,
    cache_name: str,
    cache: torch.Tensor,
    num_kv_heads: int,
) -> None:
    """Raises TypeError or ValueError unless there is a kernel for such queries and pages.

    Args:
        query: [any, num_heads, head_dim].
        cache: [num_pages, page_size, any, head_dim].
    """
    arguments.require_dtype(operator, query_name, query, QUERY_DTYPES)
    require_cache_dtype(operator, cache_name, cache, query_name, query)
    head_dim, page_size, num_heads = query.shape[2], cache.shape[1], query.shape[1]
    if head_dim not in HEAD_DIMS:
        raise ValueError(
            f"{operator}: the head_dim of {query_name} must be one of "
            f"{', '.join(map(str, HEAD_DIMS))}, but is {head_dim}"
        )
    if not MIN_PAGE_SIZE <= page_size <= MAX_PAGE_SIZE:
        raise ValueError(
            f"{operator}: {cache_name} must have {MIN_PAGE_SIZE} to {MAX_PAGE_SIZE} tokens in a "
            f"page, dimension 1, but has {page_size}"
        )
    if num_kv_heads == 0 or num_heads == 0 or num_heads % num_kv_heads != 0:
        raise ValueError(
            f"{operator}: the number of heads of {query_name}, {num_heads}, must be a multiple of "
            f"that of {cache_name}, {num_kv_heads}, and not 0"
        )


def require_logit_options(
    operator: str, scale_name: str, scale: float, sliding_window: int | None, soft_cap: float | None
) -> None:
    """Raises ValueError unless these can be used."""
    if not -_MAX_NUMBER <= scale <= _MAX_NUMBER:
        raise ValueError(f"{operator}: {scale_name} must be from -1e12 to 1e12, but is {scale}")
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(
            f"{operator}: sliding_window must be at least 1, or None, but is {sliding_window}"
        )
    if soft_cap is not None and not _MIN_NUMBER <= soft_cap <= _MAX_NUMBER:
        raise ValueError(
            f"{operator}: soft_cap must be from 1e-12 to 1e12, or None, but is {soft_cap}"
        )
