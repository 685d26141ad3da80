"""Definitions, checks and the debug switch that the operators on paged caches share."""

import os
from collections.abc import Callable

import torch

from xla_kernels import define_operator

QUANTIZED_DTYPE = torch.float8_e4m3fn
# Limits of scales and caps, whose products are then neither infinite nor 0 in float32.
_MIN_NUMBER, _MAX_NUMBER = 1e-12, 1e12

REPORT_ENVIRONMENT = "TORCH_XLA_EXT_REPORT_OUT_OF_RANGE"


def reports_out_of_range() -> bool:
    """Return whether kernels print out-of-range values in device data."""
    return os.environ.get(REPORT_ENVIRONMENT, "") not in ("", "0")


def require_scales(operator: str, cache: torch.Tensor, **scales: float | None) -> None:
    """Raise ValueError unless all are valid for `cache`: only quantized caches have scales."""
    for name, scale in scales.items():
        if scale is None:
            continue
        if not _MIN_NUMBER <= scale <= _MAX_NUMBER:
            raise ValueError(f"{operator}: {name} must be from 1e-12 to 1e12, but is {scale}")
        if scale != 1 and cache.dtype != QUANTIZED_DTYPE:
            raise ValueError(
                f"{operator}: {name} is for a cache of {QUANTIZED_DTYPE}; for one of {cache.dtype} "
                f"it must be None or 1, but is {scale}"
            )


def require_logit_options(
    operator: str, scale_name: str, scale: float, sliding_window: int | None, soft_cap: float | None
) -> None:
    """Raise ValueError unless the options of the logits are supported."""
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


def widened_query(
    operator: str,
    query: torch.Tensor | None,
    scale: float,
    query_scale: float | torch.Tensor | None,
    name: str = "query_scale",
) -> tuple[torch.Tensor, float]:
    """Return a float8_e4m3fn query as bfloat16, which is exact; other queries unchanged.

    Args:
        operator: the operator's name in errors.
        query: [rows, num_heads, head_dim], or None, which the operator refuses.
        scale: the scale of the logits.
        query_scale: the factor of the query's elements: a number, or one for each head,
            [num_heads]; None for 1.
        name: the name of `query_scale` in errors.

    Returns:
        The query, and the scale of its logits.

    Raises:
        TypeError, ValueError: `query_scale` does not fit `query`.
    """
    if query is None or query.dtype != QUANTIZED_DTYPE:
        if query is not None and query_scale is not None:
            raise ValueError(
                f"{operator}: {name} is for a query of {QUANTIZED_DTYPE}; for one of "
                f"{query.dtype} it must be None"
            )
        return query, scale
    if not isinstance(query_scale, torch.Tensor):
        factor = 1.0 if query_scale is None else query_scale
        if not _MIN_NUMBER <= factor <= _MAX_NUMBER:
            raise ValueError(f"{operator}: {name} must be from 1e-12 to 1e12, but is {query_scale}")
        return query.to(torch.bfloat16), scale * factor
    if query_scale.dtype != torch.float32:
        raise TypeError(f"{operator}: {name} must be float32, but is of dtype {query_scale.dtype}")
    if query.dim() != 3 or query_scale.shape != query.shape[1:2]:
        raise ValueError(
            f"{operator}: {name} must be a number or of shape [num_heads], "
            f"{list(query.shape[1:2])}, but is of shape {list(query_scale.shape)}"
        )
    return (query.float() * query_scale[:, None]).to(torch.bfloat16), scale


def define_attention(
    name: str,
    arguments: str,
    *,
    target: str,
    check: Callable[..., None],
    attributes: Callable[..., dict[str, object]],
    query: str,
    sharding_rule: str,
    lse_rule: str,
) -> None:
    """Define the operator `name`, and `name`_with_lse, which also returns the second result.

    Args:
        arguments: the arguments of both operators, in parentheses.
        target, check, attributes: as in define_operator.
        query: the argument that has the same rows as the second result.
        sharding_rule, lse_rule: the rule for the operands and the first result, and the part for
            the second result.
    """

    def define(name: str, results: str, rule: str, sizes: Callable[..., dict[str, int]]) -> None:
        define_operator(
            f"{name}{arguments} -> {results}",
            target=target,
            environment=(REPORT_ENVIRONMENT,),
            check=check,
            attributes=attributes,
            sizes=sizes,
            sharding_rule=rule,
        )

    define(name, "Tensor", sharding_rule, lambda **_: {"lse_rows": 0})
    define(
        f"{name}_with_lse",
        "(Tensor, Tensor)",
        f"{sharding_rule}, {lse_rule}",
        lambda **values: {"lse_rows": values[query].shape[0]},
    )


def attention_operator(name: str, return_lse: bool) -> Callable[..., object]:
    """Return the operator that define_attention defined as xla_gpu::`name`."""
    return getattr(torch.ops.xla_gpu, f"{name}_with_lse" if return_lse else name)
