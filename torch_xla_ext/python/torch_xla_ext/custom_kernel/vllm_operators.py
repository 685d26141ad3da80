"""The operators that vllm-tpu 0.10.1.1 defines as ``torch.ops.xla.<name>``, on other devices.

vLLM's own implementations call JAX for XLA tensors, and for others they return their argument or
uninitialized memory. Here they consist of PyTorch operations. They are defined together with
those of torch_xla.experimental.custom_kernel (install.py); when vLLM defines them
again, its implementations are used only on TPUs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_xla_ext.custom_kernel.grouped_matmul import bgmv


def kv_cache_update(
    kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache: torch.Tensor,
    num_kv_update_slices: torch.Tensor,
    page_size: int,
    num_slices_per_block: int,
) -> torch.Tensor:
    """The cache with new keys and values in it.

    Args:
        kv: [num_tokens, 2 * num_kv_heads, head_dim], of any dtype.
        slot_mapping: int32 [3, num_slices]: for each slice its first row of the cache, its first
            token and how many there are. No token is in two slices.
        kv_cache: [num_rows, 2 * num_kv_heads, head_dim] of kv's dtype. It stays as it is, and what
            is copied back to it is written in place.
        num_kv_update_slices: int32 [1]; the slices behind these are ignored.
        page_size, num_slices_per_block: of the kernel for TPUs; without effect.

    Returns:
        [num_rows, 2 * num_kv_heads, head_dim].

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    fits = kv.dim() == kv_cache.dim() == 3 and kv.shape[1:] == kv_cache.shape[1:]
    fits = fits and slot_mapping.dim() == 2 and slot_mapping.shape[0] == 3
    if not fits or kv.dtype != kv_cache.dtype:
        raise ValueError(
            "kv_cache_update_op: expected kv [tokens, heads, head_dim] and kv_cache [rows, heads, "
            "head_dim] of one dtype and slot_mapping [3, slices], but got "
            f"{list(kv.shape)} of {kv.dtype}, {list(kv_cache.shape)} of {kv_cache.dtype} and "
            f"{list(slot_mapping.shape)}"
        )
    if not kv.shape[0]:
        return kv_cache.clone()
    if kv.dtype.itemsize == 1:  # fp8, of which torch has few operators
        return _updated(
            kv.view(torch.int8), slot_mapping, kv_cache.view(torch.int8), num_kv_update_slices
        ).view(kv.dtype)
    return _updated(kv, slot_mapping, kv_cache, num_kv_update_slices)


def _updated(
    kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache: torch.Tensor,
    num_kv_update_slices: torch.Tensor,
) -> torch.Tensor:
    first_row, first_token, count = slot_mapping.long()
    number = torch.arange(count.shape[0], device=count.device)
    count = torch.where(number < num_kv_update_slices, count, 0)
    place = torch.arange(kv.shape[0], device=count.device)[:, None] - first_token
    is_in = (place >= 0) & (place < count)
    has_row = is_in.any(1)
    row = torch.where(is_in, first_row + place, 0).sum(1)
    # A token of no slice writes what another one writes, or what the cache has there already.
    other = has_row.int().argmax()
    row = torch.where(has_row, row, row[other])
    spare = torch.where(has_row.any(), kv[other], kv_cache[0])
    values = torch.where(has_row[:, None, None], kv, spare)
    return kv_cache.index_copy(0, row, values)


_OPERATORS: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "bgmv": ("(Tensor inputs, Tensor loras, Tensor idxs) -> Tensor", bgmv),
    "kv_cache_update_op": (
        "(Tensor kv, Tensor slot_mapping, Tensor kv_cache, Tensor num_kv_update_slices, "
        "int page_size, int num_slices_per_block) -> Tensor",
        kv_cache_update,
    ),
}


def define(library: torch.library.Library, is_ours: Callable[[torch.device], bool]) -> None:
    """Defines the operators in torch_xla's own library, which vLLM uses for them too.

    Args:
        library: torch_xla.experimental.custom_kernel.XLA_LIB.
        is_ours: whether the operators of a device are those of this module.
    """
    stock_define, stock_impl = library.define, library.impl
    vllms: dict[str, Callable[..., torch.Tensor]] = {}  # for XLA tensors

    def dispatching(name: str, function: Callable[..., torch.Tensor]) -> Callable:
        def operator(first: torch.Tensor, *others: object) -> torch.Tensor:
            called = function if is_ours(first.device) else vllms.get(name, function)
            return called(first, *others)

        return operator

    for name, (signature, function) in _OPERATORS.items():
        stock_define(name + signature)
        stock_impl(name, dispatching(name, function), "CompositeImplicitAutograd")

    def define_others(schema: str, *args: object, **kwargs: object) -> object:
        if schema.split("(")[0] in _OPERATORS:
            return None
        return stock_define(schema, *args, **kwargs)

    def implement_others(name: str, function: Callable, key: str = "", *args: object) -> object:
        if name not in _OPERATORS:
            return stock_impl(name, function, key, *args)
        if key == "XLA":
            vllms[name] = function
        return None

    library.define, library.impl = define_others, implement_others
