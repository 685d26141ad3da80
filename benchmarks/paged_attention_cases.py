"""The cases of paged_attention.py (shapes, data, references), and its peers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    import flashinfer
except ImportError:
    flashinfer = None

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 16
SCALE = HEAD_DIM**-0.5
DTYPE = torch.bfloat16
ERROR_LIMIT = 1e-2  # relative error of bfloat16


@dataclass(frozen=True)
class Case:
    """A batch of sequences, each with its number of queries and of tokens in the cache."""

    name: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    cache_dtype: torch.dtype = DTYPE

    @property
    def kind(self) -> str:
        if max(self.q_lens) == 1:
            return "decode"
        return "prefill" if self.q_lens == self.kv_lens else "mixed"

    @property
    def cache_bytes(self) -> int:
        return sum(self.kv_lens) * 2 * KV_HEADS * HEAD_DIM * self.cache_dtype.itemsize

    @property
    def bytes(self) -> int:
        """The bytes that must move: keys, values, queries and results once each."""
        return self.cache_bytes + 2 * sum(self.q_lens) * HEADS * HEAD_DIM * DTYPE.itemsize

    @property
    def flops(self) -> int:
        """Floating-point operations of the two matrix products, of visible pairs only."""
        pairs = sum(
            q * (kv - q) + q * (q + 1) // 2 for q, kv in zip(self.q_lens, self.kv_lens, strict=True)
        )
        return 4 * HEADS * HEAD_DIM * pairs


def decode(seqs: int, length: int, cache_dtype: torch.dtype = DTYPE) -> Case:
    """Return a case with one query token per sequence."""
    suffix = "" if cache_dtype == DTYPE else ", fp8 cache"
    return Case(f"decode {seqs} x {length}{suffix}", (1,) * seqs, (length,) * seqs, cache_dtype)


def prefill(seqs: int, length: int) -> Case:
    return Case(f"prefill {seqs} x {length}", (length,) * seqs, (length,) * seqs)


CASES = [
    decode(128, 4096),
    decode(64, 1024),
    decode(16, 4096),
    decode(1, 131072),
    decode(1, 8192),
    decode(128, 4096, torch.float8_e4m3fn),
    decode(16, 4096, torch.float8_e4m3fn),
    prefill(1, 8192),
    prefill(8, 2048),
    Case("mixed 2 x 2048 + 62 x 1 of 2048", (2048,) * 2 + (1,) * 62, (2048,) * 64),
    *(
        Case(f"{new} of {seqs} x {length}{suffix}", (new,) * seqs, (length,) * seqs, dtype)
        for new, seqs, length in ((512, 1, 16384), (64, 1, 65536), (4, 32, 4096))
        for suffix, dtype in (("", DTYPE), (", fp8 cache", torch.float8_e4m3fn))
    ),
]


@dataclass
class Inputs:
    """A set of operands, with the cache in both layouts."""

    q: torch.Tensor  # [tokens, heads, HEAD_DIM]
    key_cache: torch.Tensor  # [pages, PAGE_SIZE, kv_heads, HEAD_DIM]
    value_cache: torch.Tensor
    kv_pages: torch.Tensor  # [pages, PAGE_SIZE, 2 * kv_heads, HEAD_DIM], interleaved
    tables: torch.Tensor  # i32[seqs, pages_per_seq]
    kv_lens: torch.Tensor  # i32[seqs]
    cu_q_lens: torch.Tensor  # i32[seqs + 1]
    num_seqs: torch.Tensor  # i32[1]


def make_inputs(case: Case, device: torch.device) -> Inputs:
    """Return random operands; the pages of the sequences are shuffled."""
    counts = [-(-n // PAGE_SIZE) for n in case.kv_lens]
    num_pages = sum(counts)
    order = torch.randperm(num_pages, dtype=torch.int32).split(counts)
    tables = torch.nn.utils.rnn.pad_sequence(list(order), batch_first=True)

    def cache() -> torch.Tensor:
        shape = (num_pages, PAGE_SIZE, KV_HEADS, HEAD_DIM)
        return torch.randn(shape, dtype=DTYPE, device=device).to(case.cache_dtype)

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32).to(device)

    key, value = cache(), cache()
    # As bytes: torch cannot stack every dtype.
    parts = [x.view(torch.uint8) for x in (key, value)]
    pages = torch.stack(parts, 3).flatten(2, 3).view(case.cache_dtype)
    starts = torch.tensor([0, *case.q_lens]).cumsum(0).tolist()
    q = torch.randn(sum(case.q_lens), HEADS, HEAD_DIM, dtype=DTYPE, device=device)
    return Inputs(
        q,
        key,
        value,
        pages,
        tables.to(device),
        ints(list(case.kv_lens)),
        ints(starts),
        ints([len(case.q_lens)]),
    )


def error(case: Case, inputs: Inputs, out: torch.Tensor) -> float:
    """Return the relative error of sampled rows of `out` [tokens, heads, HEAD_DIM] against float64.

    Raises:
        AssertionError: a row of `out` is still NaN, as before the call, or the error is too large.
    """
    assert not bool(out.isnan().any()), "the result has NaN, or rows that were not written"
    difference = norm = 0.0
    last = len(case.q_lens) - 1
    for seq in sorted({0, last // 2, last}):
        q_len = case.q_lens[seq]
        rows = sorted({0, q_len - 1, *(random.randrange(q_len) for _ in range(14))})
        expected = reference(case, inputs, seq, rows)
        begin = sum(case.q_lens[:seq])
        indices = torch.tensor([begin + row for row in rows], device=out.device)
        came = _take(out.detach(), indices).double()
        difference += float((came - expected).square().sum())
        norm += float(expected.square().sum())
    relative = (difference / norm) ** 0.5
    assert relative <= ERROR_LIMIT, f"relative error {relative:.2e}"
    return relative


def reference(case: Case, inputs: Inputs, seq: int, rows: list[int]) -> torch.Tensor:
    """Return rows of a sequence's result in float64, [rows, heads, HEAD_DIM]."""
    length, q_len = case.kv_lens[seq], case.q_lens[seq]
    pages = inputs.tables[seq, : -(-length // PAGE_SIZE)].long()
    keys, values = _take(inputs.key_cache, pages), _take(inputs.value_cache, pages)
    begin = sum(case.q_lens[:seq])
    q = _take(inputs.q, torch.tensor([begin + row for row in rows], device=inputs.q.device))
    keys, values = (x.flatten(0, 1)[:length].float().double() for x in (keys, values))
    q = q.double().unflatten(1, (KV_HEADS, -1))
    logits = torch.einsum("rhgd,nhd->hgrn", q, keys) * SCALE
    position = torch.tensor(rows, device=q.device) + length - q_len
    hidden = torch.arange(length, device=q.device) > position[:, None]
    weights = logits.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hgrn,nhd->rhgd", weights, values).flatten(1, 2)


def _take(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    # As bytes: torch cannot index every dtype.
    return x.view(torch.uint8)[rows].view(x.dtype)


# A call, and a function that returns its result as [tokens, HEADS, HEAD_DIM].
Bound = tuple[Callable[[], object], Callable[[], torch.Tensor]]


def sdpa(case: Case, inputs: Inputs, backend: SDPBackend) -> Bound:
    """Return torch's attention on a dense copy."""
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
    q = inputs.q.view(seqs, -1, HEADS, HEAD_DIM).transpose(1, 2).contiguous()
    results = []

    def call() -> None:
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=case.kind == "prefill", scale=SCALE, enable_gqa=True
            )
        results[:] = [out]

    return call, lambda: results[0].transpose(1, 2).flatten(0, 1)


def _page_lists(case: Case, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return FlashInfer's page tables: kv_indptr, kv_indices, kv_last_page_len."""
    counts = torch.tensor([-(-n // PAGE_SIZE) for n in case.kv_lens])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()
    used = torch.arange(inputs.tables.shape[1]) < counts[:, None]
    indices = inputs.tables[used.to(inputs.tables.device)]
    last = torch.tensor([(n - 1) % PAGE_SIZE + 1 for n in case.kv_lens], dtype=torch.int32)
    device = inputs.tables.device
    return indptr.to(device), indices, last.to(device)


def flashinfer_decode(case: Case, inputs: Inputs) -> Bound:
    workspace = _workspace(inputs)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    return _planned(wrapper, case, inputs)


def flashinfer_prefill(case: Case, inputs: Inputs, backend: str) -> Bound:
    workspace = _workspace(inputs)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)
    return _planned(wrapper, case, inputs, inputs.cu_q_lens, causal=True)


def _workspace(inputs: Inputs) -> torch.Tensor:
    return torch.zeros(256 << 20, dtype=torch.uint8, device=inputs.q.device)


def _planned(
    wrapper: object, case: Case, inputs: Inputs, *starts: torch.Tensor, **options: bool
) -> Bound:
    pages, sizes = _page_lists(case, inputs), (HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE)
    dtypes = {"q_data_type": DTYPE, "kv_data_type": case.cache_dtype}
    wrapper.plan(*starts, *pages, *sizes, **dtypes, **options)
    out = torch.full_like(inputs.q, float("nan"))
    caches = (inputs.key_cache, inputs.value_cache)
    return lambda: wrapper.run(inputs.q, caches, out=out), lambda: out


def attention_peers(case: Case) -> dict[str, Callable[[Case, Inputs], Bound]]:
    """Return the peers for a case, by name."""
    peers: dict[str, Callable[[Case, Inputs], Bound]] = {}
    if case.kind != "mixed" and case.cache_dtype == DTYPE:
        peers["SDPA cuDNN, dense"] = lambda c, i: sdpa(c, i, SDPBackend.CUDNN_ATTENTION)
    if flashinfer is not None:
        if case.kind == "decode":
            peers["FlashInfer, tensor cores"] = flashinfer_decode
        else:
            peers["FlashInfer fa3"] = lambda c, i: flashinfer_prefill(c, i, "fa3")
            peers["FlashInfer fa2"] = lambda c, i: flashinfer_prefill(c, i, "fa2")
    return peers
