"""The peers that paged_attention.py measures: PyTorch's SDPA and FlashInfer.

Each function takes a case and a set of inputs and returns a call, and a function that returns the
call's result as [tokens, HEADS, HEAD_DIM]. It raises if the library does not support the case.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from paged_attention_cases import (
    DTYPE,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    PAGE_SIZE,
    SCALE,
    Case,
    Inputs,
    Update,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

Bound = tuple[Callable[[], object], Callable[[], torch.Tensor]]

try:
    import flashinfer
except ImportError as missing:
    flashinfer, WHY_NOT = None, str(missing)


def sdpa(case: Case, inputs: Inputs, backend: SDPBackend, repeat: bool = False) -> Bound:
    """torch's attention of a dense copy; with `repeat`, of one with a KV head for each head."""
    if case.kind == "mixed" or case.cache_dtype != DTYPE:
        raise NotImplementedError("needs equal lengths and a cache of q's dtype")
    seqs, length = len(case.kv_lens), case.kv_lens[0]
    k, v = (
        cache[inputs.tables.long().flatten()]
        .view(seqs, -1, KV_HEADS, HEAD_DIM)[:, :length]
        .transpose(1, 2)
        .contiguous()
        for cache in (inputs.key_cache, inputs.value_cache)
    )
    if repeat:
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    q = inputs.q.view(seqs, -1, HEADS, HEAD_DIM).transpose(1, 2).contiguous()
    results = []

    def call() -> None:
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=case.kind == "prefill", scale=SCALE, enable_gqa=not repeat
            )
        results[:] = [out]

    return call, lambda: results[0].transpose(1, 2).flatten(0, 1)


def _page_lists(case: Case, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """FlashInfer's form of the page tables: kv_indptr, kv_indices, kv_last_page_len."""
    counts = torch.tensor([-(-n // PAGE_SIZE) for n in case.kv_lens])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()
    used = torch.arange(inputs.tables.shape[1]) < counts[:, None]
    indices = inputs.tables[used.to(inputs.tables.device)]
    last = torch.tensor([(n - 1) % PAGE_SIZE + 1 for n in case.kv_lens], dtype=torch.int32)
    device = inputs.tables.device
    return indptr.to(device), indices, last.to(device)


def _workspace(device: torch.device) -> torch.Tensor:
    return torch.zeros(256 << 20, dtype=torch.uint8, device=device)


def flashinfer_decode(case: Case, inputs: Inputs) -> Bound:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        _workspace(inputs.q.device), "NHD", use_tensor_cores=True
    )
    wrapper.plan(
        *_page_lists(case, inputs),
        HEADS,
        KV_HEADS,
        HEAD_DIM,
        PAGE_SIZE,
        q_data_type=DTYPE,
        kv_data_type=case.cache_dtype,
    )
    return _bind(wrapper, inputs)


def flashinfer_prefill(case: Case, inputs: Inputs, backend: str) -> Bound:
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        _workspace(inputs.q.device), "NHD", backend=backend
    )
    wrapper.plan(
        inputs.cu_q_lens,
        *_page_lists(case, inputs),
        HEADS,
        KV_HEADS,
        HEAD_DIM,
        PAGE_SIZE,
        causal=True,
        q_data_type=DTYPE,
        kv_data_type=case.cache_dtype,
    )
    return _bind(wrapper, inputs)


def _bind(wrapper: object, inputs: Inputs) -> Bound:
    out = torch.full_like(inputs.q, float("nan"))
    caches = (inputs.key_cache, inputs.value_cache)
    return lambda: wrapper.run(inputs.q, caches, out=out), lambda: out


def flashinfer_append(case: Case, update: Update) -> Callable[[], object]:
    """FlashInfer's update of a cache."""
    indptr, indices, last = _page_lists(case, update.inputs)
    seqs, tokens = len(case.kv_lens), len(update.slots)
    new = tokens // seqs
    device = update.slots.device
    rows = torch.arange(tokens, dtype=torch.int32, device=device)
    batch = rows // new
    position = case.kv_lens[0] - new + rows % new
    caches = (update.inputs.key_cache, update.inputs.value_cache)
    return lambda: flashinfer.append_paged_kv_cache(
        update.key, update.value, batch, position, caches, indices, indptr, last
    )


def attention_peers(case: Case) -> dict[str, Callable[[Case, Inputs], Bound]]:
    """The peers for a case, by name."""
    cudnn, flash = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
    peers: dict[str, Callable[[Case, Inputs], Bound]] = {}
    if case.kind != "mixed" and case.cache_dtype == DTYPE:
        peers["SDPA cuDNN, dense"] = lambda c, i: sdpa(c, i, cudnn)
        peers["SDPA flash, dense"] = lambda c, i: sdpa(c, i, flash)
        if case.kind == "prefill":
            peers["SDPA cuDNN, dense, KV heads repeated"] = lambda c, i: sdpa(c, i, cudnn, True)
            peers["SDPA flash, dense, KV heads repeated"] = lambda c, i: sdpa(c, i, flash, True)
    if flashinfer is not None:
        if case.kind == "decode":
            peers["FlashInfer, tensor cores"] = flashinfer_decode
        else:
            peers["FlashInfer fa3"] = lambda c, i: flashinfer_prefill(c, i, "fa3")
            peers["FlashInfer fa2"] = lambda c, i: flashinfer_prefill(c, i, "fa2")
    return peers
