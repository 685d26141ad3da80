"""The cases of paged_attention.py and paged_attention_xla.py: shapes, data, references."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 16
SCALE = HEAD_DIM**-0.5
DTYPE = torch.bfloat16
ERROR_LIMIT = 1e-2  # relative, of bfloat16


@dataclass(frozen=True)
class Case:
    """A batch of sequences, each with its number of queries and of tokens in the cache."""

    name: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    cache_dtype: torch.dtype = DTYPE
    heads: int = HEADS
    kv_heads: int = KV_HEADS

    @property
    def kind(self) -> str:
        if max(self.q_lens) == 1:
            return "decode"
        return "prefill" if self.q_lens == self.kv_lens else "mixed"

    @property
    def cache_bytes(self) -> int:
        return sum(self.kv_lens) * 2 * self.kv_heads * HEAD_DIM * self.cache_dtype.itemsize

    @property
    def bytes(self) -> int:
        """Those that have to move: keys and values, queries and results once."""
        return self.cache_bytes + 2 * sum(self.q_lens) * self.heads * HEAD_DIM * DTYPE.itemsize

    @property
    def flops(self) -> int:
        """Those of the two matrix products, of visible pairs only."""
        pairs = sum(
            q * (kv - q) + q * (q + 1) // 2 for q, kv in zip(self.q_lens, self.kv_lens, strict=True)
        )
        return 4 * self.heads * HEAD_DIM * pairs


def decode(seqs: int, length: int, cache_dtype: torch.dtype = DTYPE, shards: int = 1) -> Case:
    """One query token a sequence, with the heads of one of `shards` tensor-parallel devices."""
    suffix = "" if cache_dtype == DTYPE else ", fp8 cache"
    suffix += "" if shards == 1 else f", 1/{shards} of the heads"
    return Case(
        f"decode {seqs} x {length}{suffix}",
        (1,) * seqs,
        (length,) * seqs,
        cache_dtype,
        HEADS // shards,
        KV_HEADS // shards,
    )


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
]


@dataclass
class Inputs:
    """A set of operands, with the cache in both layouts or in one of them."""

    q: torch.Tensor  # [tokens, heads, HEAD_DIM]
    key_cache: torch.Tensor | None  # [pages, PAGE_SIZE, kv_heads, HEAD_DIM]
    value_cache: torch.Tensor | None
    kv_pages: torch.Tensor | None  # [pages, PAGE_SIZE, 2 * kv_heads, HEAD_DIM], interleaved
    tables: torch.Tensor  # i32[seqs, pages_per_seq]
    kv_lens: torch.Tensor  # i32[seqs]
    cu_q_lens: torch.Tensor  # i32[seqs + 1]
    num_seqs: torch.Tensor  # i32[1]


def make_inputs(case: Case, device: torch.device, layouts: str = "split pages") -> Inputs:
    """Random operands, the pages of the sequences shuffled among one another."""
    counts = [-(-n // PAGE_SIZE) for n in case.kv_lens]
    num_pages = sum(counts)
    order = torch.randperm(num_pages, dtype=torch.int32).split(counts)
    tables = torch.nn.utils.rnn.pad_sequence(list(order), batch_first=True)

    def cache(heads: int) -> torch.Tensor:
        shape = (num_pages, PAGE_SIZE, heads, HEAD_DIM)
        return torch.randn(shape, dtype=DTYPE, device=device).to(case.cache_dtype)

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32).to(device)

    key = value = pages = None
    if "split" in layouts:
        key, value = cache(case.kv_heads), cache(case.kv_heads)
        if "pages" in layouts:
            # As bytes: torch cannot stack every dtype.
            parts = [x.view(torch.uint8) for x in (key, value)]
            pages = torch.stack(parts, 3).flatten(2, 3).view(case.cache_dtype)
    else:
        pages = cache(2 * case.kv_heads)
    starts = torch.tensor([0, *case.q_lens]).cumsum(0).tolist()
    q = torch.randn(sum(case.q_lens), case.heads, HEAD_DIM, dtype=DTYPE, device=device)
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
    """The relative error of sampled rows of `out` [tokens, heads, HEAD_DIM] against float64.

    Raises:
        AssertionError: a row of `out`, which is NaN before, was not written, or the error is too
            large.
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
    """Rows of a sequence's result in float64, [rows, heads, HEAD_DIM]."""
    length, q_len = case.kv_lens[seq], case.q_lens[seq]
    pages = inputs.tables[seq, : -(-length // PAGE_SIZE)].long()
    if inputs.key_cache is not None:
        keys, values = _take(inputs.key_cache, pages), _take(inputs.value_cache, pages)
    else:
        both = _take(inputs.kv_pages, pages)
        keys, values = both[:, :, 0::2], both[:, :, 1::2]
    begin = sum(case.q_lens[:seq])
    q = _take(inputs.q, torch.tensor([begin + row for row in rows], device=inputs.q.device))
    keys, values = (x.flatten(0, 1)[:length].float().double() for x in (keys, values))
    q = q.double().unflatten(1, (case.kv_heads, -1))
    logits = torch.einsum("rhgd,nhd->hgrn", q, keys) * SCALE
    position = torch.tensor(rows, device=q.device) + length - q_len
    hidden = torch.arange(length, device=q.device) > position[:, None]
    weights = logits.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hgrn,nhd->rhgd", weights, values).flatten(1, 2)


def _take(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    if x.device.type == "xla":  # the CPU computes the float64 reference
        return x[rows].cpu()
    # As bytes: torch cannot index every dtype.
    return x.view(torch.uint8)[rows].view(x.dtype)


@dataclass
class Update:
    """New tokens for a cache: UPDATE_SEQS sequences of UPDATE_TOKENS more each."""

    key: torch.Tensor  # [tokens, KV_HEADS, HEAD_DIM]
    value: torch.Tensor
    slots: torch.Tensor  # i32[tokens]
    inputs: Inputs  # whose cache it is


UPDATE_SEQS, UPDATE_TOKENS = 64, 128
UPDATE_CASE = decode(UPDATE_SEQS, 1152)
UPDATE_BYTES = UPDATE_SEQS * UPDATE_TOKENS * 2 * KV_HEADS * HEAD_DIM * DTYPE.itemsize * 2


def make_update(
    device: torch.device, layouts: str = "split pages", case: Case = UPDATE_CASE
) -> Update:
    """The last UPDATE_TOKENS of each sequence's tokens come anew."""
    inputs = make_inputs(case, device, layouts)
    tokens = len(case.kv_lens) * UPDATE_TOKENS
    key, value = (
        torch.randn(tokens, KV_HEADS, HEAD_DIM, dtype=DTYPE, device=device) for _ in range(2)
    )
    length = case.kv_lens[0]
    position = torch.arange(length - UPDATE_TOKENS, length, dtype=torch.int32)
    slots = inputs.tables.cpu()[:, position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE
    return Update(key, value, slots.flatten().to(device), inputs)
