"""The operators on paged caches, at sizes for a GPU. The kernels' own tests have small sizes."""

import pytest
import torch
import torch_xla
from testing.paged import Pages, assert_close, attention, int32
from torch_xla.core import xla_model

from torch_xla_ext.ops import kv_cache_update, paged_attention, ragged_paged_attention

BF16 = torch.bfloat16


def decode(pages: Pages, num_heads: int, device: torch.device, **options: object) -> None:
    query = torch.randn(len(pages.lengths), num_heads, pages.keys.shape[-1]).to(BF16)
    scale = pages.keys.shape[-1] ** -0.5
    args = query, pages.keys, pages.values, pages.tables, int32(pages.lengths)
    args = [arg.to(device) for arg in args]
    result = paged_attention(*args, scale, **options).cpu()
    expected = torch.zeros(query.shape, dtype=torch.float64)
    for s, length in enumerate(pages.lengths):
        if length:
            expected[s] = attention(query[s : s + 1], *pages.tokens(s), scale=scale, **options)[0]
    assert_close(result, expected)
    assert torch.equal(paged_attention(*args, scale, **options).cpu(), result)


@pytest.mark.parametrize("length", [8192, 131_072, 200_003])
def test_decode_of_one_long_context(device: torch.device, length: int) -> None:
    decode(Pages.random([length], 1, 128, 16, BF16), 4, device)


def test_decode_of_many_sequences(device: torch.device) -> None:
    lengths = torch.randint(0, 2000, (128,)).tolist()
    decode(Pages.random([*lengths, 20_000], 2, 128, 16, BF16), 8, device)


def test_decode_with_a_window_in_a_long_context(device: torch.device) -> None:
    pages = Pages.random([131_072, 100], 1, 128, 16, BF16)
    decode(pages, 4, device, sliding_window=4096, soft_cap=30.0)


@pytest.mark.parametrize(
    ("kv_lens", "q_lens"),
    [([4096], [4096]), ([2048, 131_072], [2048, 64]), ([3000] * 5 + [1] * 11, [1] * 16)],
    ids=["prefill", "chunk of a long context", "decode"],
)
def test_ragged(device: torch.device, kv_lens: list[int], q_lens: list[int]) -> None:
    pages = Pages.random(kv_lens, 1, 128, 16, BF16)
    ends = torch.tensor([0, *q_lens]).cumsum(0).int()
    q = torch.randn(int(ends[-1]), 4, 128).to(BF16)
    args = q, pages.combined, int32(kv_lens), pages.tables, ends, int32([len(q_lens)])
    args = [arg.to(device) for arg in args]
    result = ragged_paged_attention(*args, 128**-0.5).cpu()
    assert torch.equal(ragged_paged_attention(*args, 128**-0.5).cpu(), result)
    for s, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        # Only the last queries are compared: the CPU would take long for all of them.
        first = max(begin, end - 64)
        expected = attention(q[first:end], *pages.tokens(s), scale=128**-0.5)
        assert_close(result[first:end], expected)


def test_device_memory_does_not_grow_and_the_cache_is_not_copied(device: torch.device) -> None:
    """1,000 steps on caches of 1 GiB each, of which a copy would show in the peak."""
    shape = (32_768, 16, 8, 128)
    caches = [torch.zeros(shape, dtype=BF16, device=device) for _ in range(2)]
    key = torch.randn(64, 8, 128).to(BF16).to(device)
    torch_xla.sync(wait=True)
    used = []
    for step in range(1000):
        slots = torch.arange(64, dtype=torch.int32) * 16 + step % 16
        kv_cache_update(key, -key, slots.to(device), *caches)
        torch_xla.sync(wait=step % 100 == 9)
        if step % 100 == 9:
            used.append(xla_model.get_memory_info(device))
    assert used[-1]["bytes_used"] - used[0]["bytes_used"] < 1 << 20, used
    # There are two caches, and never a third.
    assert used[-1]["peak_bytes_used"] < (2 << 30) + (1 << 20), used
    assert torch.equal(caches[0][0, :16].cpu(), key[:1].cpu().expand(16, -1, -1))
    assert torch.equal(caches[1][63, :16].cpu(), -key[63:].cpu().expand(16, -1, -1))
