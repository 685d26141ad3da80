"""Make batches for gpu_check.py: random operands and expected results."""

import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "kernels/common"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from paged_reference import unmasked
from testing.paged import FP8, attention_and_lse


@dataclass
class Batch:
    """The operands of a call, and its parameters."""

    q: torch.Tensor  # [max_num_batched_tokens, num_q_heads, head_dim]
    kv_pages: torch.Tensor  # [total_num_pages, page_size, 2 * num_kv_heads, head_dim]
    kv_lens: torch.Tensor  # i32[max_num_seqs]
    page_indices: torch.Tensor  # i32[max_num_seqs, pages_per_seq]
    cu_q_lens: torch.Tensor  # i32[max_num_seqs + 1]
    num_seqs: torch.Tensor  # i32[1]
    params: dict[str, float] = field(default_factory=dict)
    sinks: torch.Tensor | None = None  # [num_q_heads]
    custom_mask: torch.Tensor | None = None  # i32[max_num_batched_tokens, mask_words]

    def arrays(self) -> dict[str, torch.Tensor | None]:
        """Return the operands by their names."""
        return {name: value for name, value in vars(self).items() if name != "params"}


def make_batch(
    q_lens: list[int],
    kv_lens: list[int],
    *,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
    num_kv_heads: int = 8,
    group: int = 4,
    head_dim: int = 128,
    page_size: int = 16,
    spare_seqs: int = 0,
    spare_tokens: int = 0,
    first_row: int = 0,
    shared_pages: bool = False,
    bad_pages: bool = False,
    poison: bool = True,
    sinks: bool = False,
    mask_words: int = 0,
    q_is_float8: bool = False,
    **params: float,
) -> Batch:
    """Return random operands; cache entries that no token refers to are NaN."""
    device = "cuda"
    num_seqs, max_seqs = len(q_lens), len(q_lens) + spare_seqs
    num_tokens = first_row + sum(q_lens) + spare_tokens
    pages_per_seq = max([1, *((n + page_size - 1) // page_size for n in kv_lens)]) + 1
    used = sum((n + page_size - 1) // page_size for n in kv_lens)
    total_pages = max(used // (2 if shared_pages else 1), 1) + 3
    q = torch.randn(num_tokens, num_kv_heads * group, head_dim, device=device)
    if q_is_float8:
        q = q.to(FP8).float()
        params["q_is_float8"] = True
    pages = torch.randn(total_pages, page_size, 2 * num_kv_heads, head_dim, device=device)
    order = list(range(total_pages))
    random.shuffle(order)
    indices = torch.full((max_seqs, pages_per_seq), 0x7F7F7F7F, dtype=torch.int32)
    written = torch.zeros(total_pages, dtype=torch.int64)  # tokens of each page
    unseen: list[tuple[torch.Tensor, torch.Tensor]] = []  # pages and rows in front of windows
    at = 0
    for s, n in enumerate(kv_lens):
        count = max((n + page_size - 1) // page_size, 0)
        if count == 0:
            continue
        numbers = torch.tensor([order[(at + i) % total_pages] for i in range(count)])
        at += count
        filled = torch.full((count,), page_size)
        filled[-1] = n - (count - 1) * page_size
        written.scatter_reduce_(0, numbers, filled, "amax")
        front = max(n - q_lens[s], 0) - params.get("sliding_window", n) + 1
        if poison and not shared_pages and front > 0 and params.get("sliding_window", 0) > 0:
            token = torch.arange(min(front, n))
            unseen.append((numbers[token // page_size], token % page_size))
        if bad_pages:
            bad = torch.tensor([-1, total_pages, -(2**31), 2**31 - 1])[
                torch.randint(0, 4, (count,))
            ]
            numbers = torch.where(torch.rand(count) < 0.2, bad, numbers)
        indices[s, :count] = numbers.int()
    if poison:
        stale = torch.arange(page_size) >= written[:, None]
        pages[stale.to(device)] = float("nan")
    for numbers, rows in unseen:
        pages[numbers.to(device), rows.to(device)] = float("nan")
    cu = [first_row]
    for n in q_lens:
        cu.append(cu[-1] + n)
    cu += [random.randint(-5, 10**6) for _ in range(spare_seqs)]
    lens = kv_lens + [random.randint(-5, 10**6) for _ in range(spare_seqs)]

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return Batch(
        q.to(dtype),
        pages.to(cache_dtype or dtype),
        ints(lens),
        indices.to(device),
        ints(cu),
        ints([num_seqs]),
        {"sm_scale": head_dim**-0.5} | params,
        torch.randn(q.shape[1], device=device) * 4 if sinks else None,
        torch.randint(-(2**31), 2**31, (num_tokens, mask_words)).int().to(device)
        if mask_words
        else None,
    )


def random_batch(rng: random.Random, **fixed: object) -> tuple[str, Batch]:
    """Return a ragged batch of random shape, features and faults."""
    dtype = rng.choice([torch.bfloat16, torch.float16])
    options = {
        "dtype": dtype,
        "cache_dtype": rng.choice([dtype, dtype, FP8]),
        "num_kv_heads": rng.choice([1, 2, 3, 8]),
        "group": rng.choice([1, 2, 3, 4, 5, 8, 12, 16, 32, 71]),
        "head_dim": rng.choice([64, 96, 128, 128, 128, 192, 256]),
        "page_size": rng.choice([8, 16, 16, 24, 32, 64, 128, 256]),
        "sliding_window": rng.choice([0, 0, 0, 1, 7, 100, 300]),
        "soft_cap": rng.choice([0.0, 0.0, 5.0, 30.0, 1e6]),
        "v_scale": rng.choice([1.0, 0.5]),
        "sm_scale": rng.choice([0.05, 0.1, 0.1, -0.07]),
        "spare_seqs": rng.choice([0, 1, 40]),
        "spare_tokens": rng.choice([0, 1, 77]),
        "first_row": rng.choice([0, 0, 5]),
        "shared_pages": rng.random() < 0.3,
        "bad_pages": rng.random() < 0.2,
        "sinks": rng.random() < 0.3,
        "mask_words": rng.choice([0, 0, 0, 0, 1, 3]),
        "causal": rng.random() < 0.8,
    }
    options |= fixed
    if not options["causal"]:
        options["sliding_window"] = 0
    if options["cache_dtype"] == FP8:
        options["k_scale"] = 0.7
        options["q_is_float8"] = rng.random() < 0.4 and options["dtype"] == torch.bfloat16
    q_lens, kv_lens = [], []
    is_step = rng.random() < 0.4  # a decode step's shapes
    if is_step:
        changes = {"first_row": rng.choice([0, 0, 0, 2]), "spare_tokens": rng.choice([0, 0, 1])}
        options |= changes | {"spare_seqs": rng.choice([0, 0, 3, 40])}
    kinds = ["decode", "far", "prefill", "chunk", "empty", "none", "long", "guesses", "late"]
    if rng.random() < 0.3:  # a batch of one kind
        kinds = [rng.choice(kinds)]
    if is_step:
        kinds = ["decode", "far"]
        if rng.random() < 0.5:
            kinds = [*kinds * 3, "guesses", "empty", "empty", "empty"]
    for _ in range(rng.choice([1, 2, 5, 40])):
        kind = rng.choice(kinds)
        q_len = 1 if kind in ("decode", "far") else rng.randint(1, 300)
        extra = rng.randint(0, 9000 if kind == "far" else 700)
        if kind == "prefill":
            extra = 0
        elif kind == "guesses":  # of a speculative decoder
            q_len, extra = rng.randint(2, 9), rng.randint(0, 3000)
        elif kind == "late":  # the end of a long prompt
            extra = rng.randint(0, 4000)
        elif kind == "empty":
            q_len = 0
        elif kind == "none":
            extra = -q_len
        elif kind == "long":  # more rows than tokens
            extra = -rng.randint(0, q_len)
        q_lens.append(q_len)
        kv_lens.append(q_len + extra)
    text = ", ".join(f"{k}={v}" for k, v in options.items())
    return f"{text}: {list(zip(q_lens, kv_lens, strict=True))}", make_batch(
        q_lens, kv_lens, **options
    )


def few_queries_batch(rng: random.Random) -> tuple[str, Batch]:
    """Return a ragged batch for FewQueriesSplitKernel; one in five has a longer sequence."""
    dtype = rng.choice([torch.bfloat16, torch.float16])
    group = rng.choice([1, 2, 3, 4, 4, 5, 8])
    options = {
        "dtype": dtype,
        "num_kv_heads": rng.choice([1, 2, 3, 8]),
        "group": group,
        "page_size": rng.choice([8, 16, 16, 32, 64, 128, 256]),
        "soft_cap": rng.choice([0.0, 0.0, 5.0, 1e6]),
        "v_scale": rng.choice([1.0, 0.5]),
        "sm_scale": rng.choice([0.05, 0.1]),
        "spare_seqs": rng.choice([0, 0, 1, 3, 300]),
        "first_row": rng.choice([0, 0, 0, 3]),
        "shared_pages": rng.random() < 0.2,
        "bad_pages": rng.random() < 0.2,
        "sinks": rng.random() < 0.3,
        "causal": rng.random() < 0.8,
    }
    most = 16 // group
    q_lens = [rng.randint(0, most) for _ in range(rng.choice([1, 2, 3, 4, 9, 40]))]
    if rng.random() < 0.2:
        q_lens[rng.randrange(len(q_lens))] = most * rng.randint(1, 3) + 1
    kv_lens = []
    for q_len in q_lens:
        extra = rng.choice([0, rng.randint(-q_len, 40), rng.randint(0, 700), rng.randint(0, 20000)])
        kv_lens.append(q_len + extra)
    # More tokens than sequences: otherwise, these are the shapes of a decode step.
    seqs = len(q_lens) + options["spare_seqs"]
    used = sum(q_lens) + options["first_row"]
    options["spare_tokens"] = rng.choice([0, 1, 5]) + max(seqs + 1 - used, 0)
    text = ", ".join(f"{k}={v}" for k, v in options.items())
    return f"{text}: {list(zip(q_lens, kv_lens, strict=True))}", make_batch(
        q_lens, kv_lens, **options
    )


def fill_with_garbage(rng: random.Random, batch: Batch) -> None:
    """Replace lengths by meaningless numbers."""
    tokens, seqs = len(batch.q), len(batch.kv_lens)

    def ints(low: int, high: int, size: int) -> torch.Tensor:
        values = [rng.choice([rng.randint(low, high), rng.randint(-9, 9)]) for _ in range(size)]
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    batch.cu_q_lens.copy_(ints(-5, tokens + 5, seqs + 1))
    batch.kv_lens.copy_(ints(-(2**31), 2**31 - 1, seqs))
    batch.num_seqs.copy_(ints(-5, seqs + 5, 1))


def reference(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the results in float64, as kernels/ragged_paged_attention.h defines them."""
    num_tokens = len(batch.q)
    total_pages, page_size = batch.kv_pages.shape[:2]
    max_seqs, pages_per_seq = batch.page_indices.shape
    p = {"sliding_window": 0, "soft_cap": 0.0, "k_scale": 1.0, "v_scale": 1.0} | batch.params
    causal = p.get("causal", True)
    out = torch.zeros_like(batch.q, dtype=torch.float64)
    lse = torch.full_like(out[..., 0], float("-inf"))
    if batch.sinks is not None:
        lse[:] = batch.sinks.double()
    cu = batch.cu_q_lens.clamp(0, num_tokens).tolist()
    for s in range(min(max(int(batch.num_seqs), 0), max_seqs)):
        begin, end = cu[s], max(cu[s + 1], cu[s])
        kv_len = min(max(int(batch.kv_lens[s]), 0), pages_per_seq * page_size)
        first_new = kv_len - (end - begin)
        if causal:
            begin = max(begin, end - kv_len)
        if begin >= end or kv_len == 0:
            continue
        token = torch.arange(kv_len, device=out.device)
        page = batch.page_indices[s].long()[token // page_size]
        present = (page >= 0) & (page < total_pages)
        row = batch.kv_pages[page.clamp(0, total_pages - 1), token % page_size].float().double()
        if batch.custom_mask is not None:
            present = present & unmasked(batch.custom_mask[begin:end], first_new, kv_len)
        attended, lse[begin:end] = attention_and_lse(
            batch.q[begin:end],
            row[:, 0::2],
            row[:, 1::2],
            scale=p["sm_scale"] * p["k_scale"],
            sliding_window=p["sliding_window"] or None,
            soft_cap=p["soft_cap"] or None,
            present=present,
            sinks=batch.sinks,
            causal=causal,
        )
        out[begin:end] = attended * p["v_scale"]
    return out, lse
