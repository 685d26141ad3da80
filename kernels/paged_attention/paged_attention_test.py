"""XlaGpuPagedAttention against attention in float64."""

import pytest
import torch
from testing.paged import (
    FP8,
    Pages,
    assert_close,
    assert_lse_close,
    attention,
    attention_and_lse,
    int32,
)

from torch_xla_ext import custom_call
from torch_xla_ext.ops import paged_attention

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
for_each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def check(
    device: torch.device,
    pages: Pages,
    num_heads: int,
    dtype: torch.dtype,
    key_scale: float | None = None,
    value_scale: float | None = None,
    **options: object,
) -> None:
    """Compares calls with the reference, and with calls on the CPU without XLA."""
    head_dim = pages.keys.shape[-1]
    query = torch.randn(len(pages.lengths), num_heads, head_dim).to(dtype)
    scale = head_dim**-0.5
    args = query, pages.keys, pages.values, pages.tables, int32(pages.lengths)
    scales = {"key_scale": key_scale, "value_scale": value_scale}

    def call(place: torch.device | str) -> torch.Tensor:
        moved = {k: v.to(place) if torch.is_tensor(v) else v for k, v in options.items()}
        tensors = [arg.to(place) for arg in args]
        result = paged_attention(*tensors, scale, **scales, **moved).cpu()
        same, lse = paged_attention(*tensors, scale, **scales, **moved, return_lse=True)
        assert torch.equal(result, same.cpu())
        assert_lse_close(lse, expected_lse)
        return result

    expected = torch.zeros(query.shape, dtype=torch.float64)
    sinks = options.get("sinks", torch.tensor(float("-inf")))
    expected_lse = sinks.double().expand(query.shape[:2]).clone()
    for s, length in enumerate(pages.lengths):
        if length > 0:
            keys, values = pages.tokens(s)
            keys, values = keys * (key_scale or 1), values * (value_scale or 1)
            rows = attention_and_lse(query[s : s + 1], keys, values, scale=scale, **options)
            expected[s], expected_lse[s] = rows[0][0], rows[1][0]
    result = call(device)
    assert_close(result, expected)
    empty = [length == 0 for length in pages.lengths]
    assert torch.equal(result[empty], torch.zeros_like(result[empty]))
    assert torch.equal(result, call(device))  # the same bits again
    torch.testing.assert_close(call("cpu").float(), result.float(), rtol=2e-2, atol=2e-2)


@for_each_dtype
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_head_dims(device: torch.device, head_dim: int, dtype: torch.dtype) -> None:
    check(device, Pages.random([33, 0, 1, 70], 2, head_dim, 16, dtype), 8, dtype)


@for_each_dtype
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"), [(1, 1), (4, 4), (8, 1), (12, 4), (32, 8), (7, 1), (40, 2)]
)
def test_numbers_of_heads(
    device: torch.device, num_heads: int, num_kv_heads: int, dtype: torch.dtype
) -> None:
    check(device, Pages.random([19, 45], num_kv_heads, 64, 16, dtype), num_heads, dtype)


@pytest.mark.parametrize("page_size", [8, 13, 16, 32, 100, 128, 256])
def test_page_sizes(device: torch.device, page_size: int) -> None:
    pages = Pages.random([page_size - 1, page_size, 2 * page_size + 1], 2, 64, page_size, DTYPES[0])
    check(device, pages, 4, DTYPES[0])


OPTIONS = {
    "window of 1": {"sliding_window": 1},
    "window": {"sliding_window": 20},
    "window beyond the context": {"sliding_window": 10_000},
    "soft cap": {"soft_cap": 2.5},
    "soft cap that caps nothing": {"soft_cap": 1e6},
    "ALiBi": {"alibi_slopes": -torch.linspace(0.01, 0.5, 8)},
    "ALiBi that prefers far tokens": {"alibi_slopes": torch.linspace(0.01, 0.1, 8)},
    "all": {"sliding_window": 37, "soft_cap": 5.0, "alibi_slopes": torch.full((8,), 0.03)},
    "sinks": {"sinks": torch.linspace(-3, 3, 8)},
    "sinks that are larger than all logits": {"sinks": torch.full((8,), 7.0)},
    "sinks that are none": {"sinks": torch.full((8,), float("-inf"))},
    "sinks and all": {
        "sinks": torch.linspace(2, -2, 8),
        "sliding_window": 37,
        "soft_cap": 5.0,
        "alibi_slopes": torch.full((8,), 0.03),
    },
}


@for_each_dtype
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_against_float64(
    device: torch.device, options: dict[str, object], dtype: torch.dtype
) -> None:
    check(device, Pages.random([100, 5, 64, 0], 2, 64, 16, dtype), 8, dtype, **options)


@for_each_dtype
def test_tokens_before_the_window_may_have_any_value(
    device: torch.device, dtype: torch.dtype
) -> None:
    """Tokens that the query does not see may have any value, as tokens behind the context may."""
    pages = Pages.random([200, 33], 2, 64, 16, dtype)
    for table, length in zip(pages.tables, pages.lengths, strict=True):
        unseen = torch.arange(length - 20)
        rows = table[unseen // 16].long(), unseen % 16
        pages.keys[rows], pages.values[rows] = float("nan"), float("nan")
    query = torch.randn(2, 8, 64).to(dtype)
    args = query, pages.keys, pages.values, pages.tables, int32(pages.lengths)
    result = paged_attention(*(x.to(device) for x in args), 0.125, sliding_window=20).cpu()
    pages.keys.nan_to_num_(0), pages.values.nan_to_num_(0)
    for s in range(2):
        expected = attention(query[s : s + 1], *pages.tokens(s), scale=0.125, sliding_window=20)
        assert_close(result[s : s + 1], expected)


@for_each_dtype
def test_quantized_cache(device: torch.device, dtype: torch.dtype) -> None:
    pages = Pages.random([50, 3, 0], 2, 128, 16, FP8)
    check(device, pages, 8, dtype)
    check(device, pages, 8, dtype, key_scale=0.5, value_scale=3.0, soft_cap=4.0)


@pytest.mark.parametrize("cache", [torch.bfloat16, FP8], ids=str)
@pytest.mark.parametrize("scale", [None, 0.5, torch.linspace(0.3, 2, 8)], ids=["1", "one", "heads"])
def test_quantized_queries(
    device: torch.device, scale: float | torch.Tensor | None, cache: torch.dtype
) -> None:
    pages = Pages.random([50, 3, 300], 2, 128, 16, cache)
    query = (3 * torch.randn(3, 8, 128)).to(FP8)
    tensors = [query, pages.keys, pages.values, pages.tables, int32(pages.lengths)]
    given = scale.to(device) if torch.is_tensor(scale) else scale
    moved = [tensor.to(device) for tensor in tensors]
    result, lse = paged_attention(*moved, 0.1, query_scale=given, return_lse=True)
    assert result.dtype == torch.bfloat16
    factors = torch.as_tensor(1.0 if scale is None else scale).double().expand(8)
    queries = query.float().double() * factors[:, None]
    for s in range(3):
        rows = attention_and_lse(queries[s : s + 1], *pages.tokens(s), scale=0.1)
        assert_close(result[s : s + 1], rows[0])
        torch.testing.assert_close(lse[s : s + 1].cpu().double(), rows[1], rtol=1e-2, atol=1e-2)


def test_wrong_scales_of_queries() -> None:
    pages = Pages.random([5], 1, 64, 16, torch.bfloat16)
    rest = pages.keys, pages.values, pages.tables, int32([5]), 1.0
    wide, narrow = torch.ones(1, 2, 64).bfloat16(), torch.ones(1, 2, 64).to(FP8)
    for query, scale, error, text in [
        (wide, 1.0, ValueError, "query_scale is for a query of torch.float8_e4m3fn"),
        (narrow, 0.0, ValueError, "query_scale must be from 1e-12 to 1e12, but is 0.0"),
        (narrow, torch.ones(2).half(), TypeError, "query_scale must be float32"),
        (
            narrow,
            torch.ones(3),
            ValueError,
            r"of shape \[num_heads\], \[2\], but is of shape \[3\]",
        ),
    ]:
        with pytest.raises(error, match=text):
            paged_attention(query, *rest, query_scale=scale)


def test_shared_pages(device: torch.device) -> None:
    pages = Pages.random([40, 60, 33], 2, 64, 16, DTYPES[0], shared_pages=2)
    check(device, pages, 8, DTYPES[0])


@pytest.mark.parametrize("sinks", [None, torch.linspace(-1, 9, 4)], ids=["plain", "sinks"])
@pytest.mark.parametrize("lengths", [[5000, 17], [5000], [700] * 9], ids=str)
def test_long_contexts(
    device: torch.device, lengths: list[int], sinks: torch.Tensor | None
) -> None:
    """On a GPU these contexts are split in all possible ways."""
    options = {} if sinks is None else {"sinks": sinks}
    check(device, Pages.random(lengths, 1, 64, 16, DTYPES[0]), 4, DTYPES[0], **options)


def test_random_batches(device: torch.device) -> None:
    for _ in range(12):
        dtype, kv = DTYPES[torch.randint(3, ()).item()], 2 ** torch.randint(3, ()).item()
        lengths = torch.randint(0, 200, (int(torch.randint(1, 9, ())),)).tolist()
        pages = Pages.random(lengths, kv, 64, int(torch.randint(8, 40, ())), dtype)
        check(device, pages, kv * int(torch.randint(1, 9, ())), dtype)


def test_no_sequences(device: torch.device) -> None:
    cache = torch.zeros(2, 8, 1, 64, dtype=DTYPES[0], device=device)
    query = torch.zeros(0, 4, 64, dtype=DTYPES[0], device=device)
    tables = torch.zeros(0, 3, dtype=torch.int32, device=device)
    lengths = torch.zeros(0, dtype=torch.int32, device=device)
    assert paged_attention(query, cache, cache, tables, lengths, 1.0).shape == (0, 4, 64)


def test_blocks_without_tokens(device: torch.device) -> None:
    """The signature refuses these blocks, for direct calls of the kernel, too."""
    query = torch.randn(1, 2, 64).half().to(device)
    cache = torch.zeros(3, 0, 1, 64).half().to(device)
    data = int32([[0, 1]]).to(device), int32([5]).to(device)
    attributes = {"scale": 1.0, "sliding_window": 0, "soft_cap": 0.0, "key_scale": 1.0}
    attributes |= {"value_scale": 1.0, "report_out_of_range": True}
    with pytest.raises(ValueError, match="expected block_size to be 8 to 256 but got 0"):
        custom_call(
            "XlaGpuPagedAttention",
            [query, cache, cache, *data, None, None],
            [query, ([0, 2], torch.float32), ([4], torch.float32)],
            attributes=attributes,
        )


@for_each_dtype
def test_data_out_of_range(device: torch.device, dtype: torch.dtype) -> None:
    """Lengths are clamped, and tokens in blocks that do not exist take no part."""
    pages = Pages.random([64, 64, 30, 48], 2, 64, 16, dtype)
    tables = pages.tables[:, :4].clone()
    num_blocks = pages.keys.shape[0]
    tables[1, 1], tables[1, 2] = -1, num_blocks
    tables[3] = int32([2**31 - 1, -(2**31), num_blocks + 7, -5])
    query = torch.randn(4, 8, 64).to(dtype)
    args = query, pages.keys, pages.values, tables, int32([10_000, 64, -3, 48])
    result = paged_attention(*(arg.to(device) for arg in args), 0.125).cpu()
    expected = torch.zeros(query.shape, dtype=torch.float64)
    for s in (0, 1):
        present = torch.ones(64, dtype=torch.bool)
        if s == 1:
            present[16:48] = False
        keys, values = pages.tokens(s)
        expected[s] = attention(query[s : s + 1], keys, values, scale=0.125, present=present)[0]
    assert_close(result, expected)
    assert result[2:].count_nonzero() == 0
    assert_close(result[1:2], expected[1:2])


def test_rows_of_lse(device: torch.device) -> None:
    """Direct calls of the kernel refuse shapes of lse that the signature cannot exclude."""
    query = torch.randn(2, 2, 64).half().to(device)
    cache = torch.zeros(3, 8, 1, 64).half().to(device)
    data = int32([[0, 1], [0, 1]]).to(device), int32([5, 5]).to(device)
    attributes = {"scale": 1.0, "sliding_window": 0, "soft_cap": 0.0, "key_scale": 1.0}
    attributes |= {"value_scale": 1.0, "report_out_of_range": False}
    with pytest.raises(RuntimeError, match=r"\(lse\): expected dimension 0 to be 0 or 2 but got 1"):
        custom_call(
            "XlaGpuPagedAttention",
            [query, cache, cache, *data, None, None],
            [query, ([1, 2], torch.float32), ([4], torch.float32)],
            attributes=attributes,
        )[0].cpu()


def test_large_logits(device: torch.device) -> None:
    pages = Pages.random([50], 1, 64, 16, torch.float16)
    query = torch.full((1, 2, 64), 300.0, dtype=torch.float16)
    args = query, pages.keys, pages.values, pages.tables, int32([50])
    result = paged_attention(*(arg.to(device) for arg in args), 10.0).cpu()
    assert_close(result, attention(query, *pages.tokens(0), scale=10.0))
