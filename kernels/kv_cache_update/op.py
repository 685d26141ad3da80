"""Write new keys and values into a paged cache, in place."""

import torch

from xla_kernels import Value, define_in_place_operator, define_operator

from . import _paged

__all__ = ["kv_cache_update", "kv_pages_update", "rope_kv_pages_update"]

CACHE_TARGET = "XlaGpuKvCacheUpdate"
PAGES_TARGET = "XlaGpuKvPagesUpdate"
ROPE_TARGET = "XlaGpuRopeKvPagesUpdate"


def _check_cache(
    key_cache: torch.Tensor, key_scale: float | None, value_scale: float | None, **others: Value
) -> None:
    _paged.require_scales(
        "xla_gpu::kv_cache_update", key_cache, key_scale=key_scale, value_scale=value_scale
    )


def _check_pages(
    kv_pages: torch.Tensor, k_scale: float | None, v_scale: float | None, **others: Value
) -> None:
    _paged.require_scales("xla_gpu::kv_pages_update", kv_pages, k_scale=k_scale, v_scale=v_scale)


def _check_rope(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    kv_pages: torch.Tensor,
    k_scale: float | None,
    v_scale: float | None,
    query_norm: torch.Tensor | None,
    key_norm: torch.Tensor | None,
    **others: Value,
) -> None:
    operator = "xla_gpu::rope_kv_pages_update"
    _paged.require_scales(operator, kv_pages, k_scale=k_scale, v_scale=v_scale)
    shards, heads, head_dim = qkv.shape[1:]
    if kv_pages.shape[2] % (2 * shards) or _num_query_heads(qkv, kv_pages) <= 0:
        raise ValueError(
            f"{operator}: kv_pages: expected 2 * num_kv_heads heads, a multiple of {2 * shards} "
            f"(qkv has {shards} shards) and fewer than qkv's {shards * heads}, but got "
            f"{kv_pages.shape[2]}"
        )
    rotary_dim = cos_sin.shape[1]
    if rotary_dim % 2 or head_dim % 2 or rotary_dim > head_dim or not cos_sin.shape[0]:
        raise ValueError(
            f"{operator}: cos_sin: expected [max_position, rotary_dim] with at least one row and "
            f"an even rotary_dim of at most head_dim, {head_dim}, which must be even, too, but got "
            f"{tuple(cos_sin.shape)}"
        )
    if (query_norm is None) != (key_norm is None):
        raise ValueError(f"{operator}: query_norm and key_norm must be given together")


def _num_query_heads(qkv: torch.Tensor, kv_pages: torch.Tensor) -> int:
    """Return how many heads in a shard belong to the query."""
    return qkv.shape[2] - kv_pages.shape[2] // qkv.shape[1]


def _rope_rule(qkv: torch.Tensor, kv_pages: torch.Tensor, **others: Value) -> str:
    pages = f"_ _ (s {kv_pages.shape[2] // qkv.shape[1]}) _"
    return f"_ s _ _, _, _, _ _, {pages}, _, _ -> _ s _ _, {pages}"


def _attributes(
    key_scale: float | None, value_scale: float | None, **others: Value
) -> dict[str, object]:
    return {
        "key_scale": 1.0 if key_scale is None else key_scale,
        "value_scale": 1.0 if value_scale is None else value_scale,
        "report_out_of_range": _paged.reports_out_of_range(),
    }


def _rope_attributes(
    k_scale: float | None,
    v_scale: float | None,
    norm_epsilon: float,
    norm_adds_one: bool,
    **others: Value,
) -> dict[str, object]:
    norm = {"norm_epsilon": norm_epsilon, "norm_adds_one": norm_adds_one}
    return _attributes(k_scale, v_scale) | norm


define_in_place_operator(
    "xla_gpu::kv_cache_update(Tensor key, Tensor value, Tensor slot_mapping, Tensor(a!) key_cache, "
    "Tensor(b!) value_cache, float? key_scale=None, float? value_scale=None) -> ()",
    target=CACHE_TARGET,
    environment=(_paged.REPORT_ENVIRONMENT,),
    check=_check_cache,
    attributes=_attributes,
    sharding_rule="_ k _, _ k _, _, _ _ k _, _ _ k _ -> _ _ k _, _ _ k _",
)
define_in_place_operator(
    "xla_gpu::kv_pages_update(Tensor key, Tensor value, Tensor slot_mapping, Tensor(a!) kv_pages, "
    "float? k_scale=None, float? v_scale=None) -> ()",
    target=PAGES_TARGET,
    environment=(_paged.REPORT_ENVIRONMENT,),
    check=_check_pages,
    attributes=lambda k_scale, v_scale, **others: _attributes(k_scale, v_scale),
    sharding_rule="_ k _, _ k _, _, _ _ (k 2) _ -> _ _ (k 2) _",
)
define_operator(
    "xla_gpu::rope_kv_pages_update(Tensor qkv, Tensor positions, Tensor slot_mapping, "
    "Tensor cos_sin, Tensor kv_pages, float? k_scale=None, float? v_scale=None, "
    "Tensor? query_norm=None, Tensor? key_norm=None, float norm_epsilon=1e-6, "
    "bool norm_adds_one=False) -> (Tensor, Tensor)",
    target=ROPE_TARGET,
    environment=(_paged.REPORT_ENVIRONMENT,),
    check=_check_rope,
    attributes=_rope_attributes,
    sizes=lambda qkv, kv_pages, **others: {"query_heads": _num_query_heads(qkv, kv_pages)},
    sharding_rule=_rope_rule,
)


def kv_cache_update(
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key_scale: float | None = None,
    value_scale: float | None = None,
) -> None:
    """Write tokens into the cache of `paged_attention`: ``torch.ops.xla_gpu.kv_cache_update``.

    Token t goes to row ``slot % block_size`` of block ``slot // block_size``, where slot is
    ``slot_mapping[t]``. Slots that are negative or beyond the cache are skipped. If several tokens
    have the same slot, each element comes from one of them. With
    TORCH_XLA_EXT_REPORT_OUT_OF_RANGE=1 the kernel prints slots beyond the cache.

    The caches are written in place. On an XLA device this happens when the program runs, without
    a copy.

    Args:
        key, value: [num_tokens, num_kv_heads, head_dim], float16, bfloat16 or float32.
        slot_mapping: [num_tokens], int32 or int64.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], of the keys' dtype
            or float8_e4m3fn. Contiguous, unless they are XLA tensors; they must not overlap.
        key_scale, value_scale: the factors by which attention multiplies a float8_e4m3fn cache,
            into which ``key / key_scale`` is written, rounded to nearest even and saturated at 448.

    Raises:
        TypeError: a tensor has an unsupported or mismatched dtype.
        ValueError: the tensors are on different devices, a shape or scale does not match, or
            caches are not contiguous or overlap (for XLA tensors: are the same tensor).
        NotImplementedError: autograd would record the call.

    Example:
        >>> caches = [torch.zeros(2, 8, 1, 4, device="xla") for _ in range(2)]
        >>> tokens = torch.arange(1.0, 9, device="xla").reshape(2, 1, 4)
        >>> kv_cache_update(tokens, -tokens, torch.tensor([13, -1], device="xla"), *caches)
        >>> caches[0][1, 5], caches[1].sum().item()
        (tensor([[1., 2., 3., 4.]], device='xla:0'), -10.0)
    """
    torch.ops.xla_gpu.kv_cache_update(
        key, value, slot_mapping, key_cache, value_cache, key_scale, value_scale
    )


def kv_pages_update(
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_pages: torch.Tensor,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> None:
    """Write tokens into the pages of `ragged_paged_attention`, in place.

    ``torch.ops.xla_gpu.kv_pages_update`` is `kv_cache_update` for one tensor of pages: the keys of
    kv head g are head ``2 * g``, and its values head ``2 * g + 1``.

    Args:
        key, value, slot_mapping, k_scale, v_scale: as in `kv_cache_update`.
        kv_pages: [num_pages, page_size, 2 * num_kv_heads, head_dim], of the keys' dtype or
            float8_e4m3fn. Contiguous, unless it is an XLA tensor.

    Raises:
        As `kv_cache_update`.

    Example:
        >>> pages = torch.zeros(2, 8, 2, 4, device="xla")
        >>> tokens = torch.ones(1, 1, 4, device="xla")
        >>> kv_pages_update(tokens, 2 * tokens, torch.tensor([9], device="xla"), pages)
        >>> pages[1, 1]
        tensor([[1., 1., 1., 1.],
                [2., 2., 2., 2.]], device='xla:0')
    """
    torch.ops.xla_gpu.kv_pages_update(key, value, slot_mapping, kv_pages, k_scale, v_scale)


def rope_kv_pages_update(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin: torch.Tensor,
    kv_pages: torch.Tensor,
    k_scale: float | None = None,
    v_scale: float | None = None,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    norm_epsilon: float = 1e-6,
    norm_adds_one: bool = False,
) -> torch.Tensor:
    """Rotate queries and keys, write keys and values into pages, and return the queries.

    The input is the result of a layer that computes queries, keys and values. Positions are encoded
    as in Su et al., "RoFormer", 2021, where element i of a head is rotated with element ``i +
    rotary_dim // 2``; elements after the first rotary_dim are unchanged. Products and sums are in
    float32. On XLA devices the cache is not copied; on others it is.

    With `query_norm` and `key_norm`, an RMS norm (Zhang and Sennrich, 2019) is first applied to
    each head x of the queries and keys: ``n * query_norm``, where ``n = x / sqrt(mean(x ** 2) +
    norm_epsilon)`` in the dtype of `qkv`; or, with `norm_adds_one` as in Gemma, ``n * (1 +
    query_norm)`` with a float32 n.

    Args:
        qkv: [num_tokens, shards, heads, head_dim], float16, bfloat16 or float32: for each shard the
            heads of the query, then those of the keys, then those of the values. `shards` is 1 on a
            single device. Shards follow one another in `kv_pages` and in the result, and devices
            may divide them.
        positions: [num_tokens], of the dtype of `slot_mapping`; clamped to the rows of `cos_sin`.
        slot_mapping, k_scale, v_scale: as in `kv_pages_update`.
        cos_sin: [num_positions, rotary_dim], of the dtype of `qkv`: the cosines of a position's
            angles, then their sines. rotary_dim is even, and at most head_dim.
        kv_pages: [num_pages, page_size, 2 * num_kv_heads, head_dim], as in `kv_pages_update`.
        query_norm, key_norm: [head_dim], of the dtype of `qkv`: the weights of the norms.
        norm_epsilon: the number that the norms add to the mean.
        norm_adds_one: whether the norms add 1 to their weights.

    Returns:
        The rotated queries, [num_tokens, num_q_heads, head_dim] of the dtype of `qkv`.

    Raises:
        As `kv_pages_update`.

    Example:
        >>> pages = torch.zeros(2, 8, 2, 4, device="xla")
        >>> qkv = torch.ones(1, 1, 3, 4, device="xla")  # a query, a key, a value
        >>> position, slot = torch.tensor([[1], [9]], device="xla")
        >>> cos_sin = torch.tensor([[1.0, 1, 0, 0], [0, 1, 1, 0]], device="xla")
        >>> rope_kv_pages_update(qkv, position, slot, cos_sin, pages)
        tensor([[[-1.,  1.,  1.,  1.]]], device='xla:0')
        >>> pages[1, 1]
        tensor([[-1.,  1.,  1.,  1.],
                [ 1.,  1.,  1.,  1.]], device='xla:0')
    """
    query, updated = torch.ops.xla_gpu.rope_kv_pages_update(
        qkv,
        positions,
        slot_mapping,
        cos_sin,
        kv_pages,
        k_scale,
        v_scale,
        query_norm,
        key_norm,
        norm_epsilon,
        norm_adds_one,
    )
    kv_pages.copy_(updated)
    return query.flatten(1, 2)
