"""XlaGpuMlaPagedAttention against attention in float64."""

import pytest
import torch
from testing.paged import FP8, Pages, assert_close, assert_lse_close, attention_and_lse, int32

from torch_xla_ext import debug
from torch_xla_ext.ops import merge_attention_states, mla_paged_attention

DTYPES = [torch.bfloat16, torch.float16]
for_each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SCALE = 192**-0.5


def expected(
    query: torch.Tensor, pages: Pages, kv_scale: float = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.zeros(*query.shape[:2], 512, dtype=torch.float64)
    lse = torch.full(query.shape[:2], float("-inf"), dtype=torch.float64)
    for s, length in enumerate(pages.lengths):
        if length > 0:
            rows = pages.tokens(s)[0] * kv_scale
            results = attention_and_lse(query[s : s + 1], rows, rows, scale=SCALE)
            out[s], lse[s] = results[0][0, :, :512], results[1][0]
    return out, lse


def check(
    device: torch.device,
    lengths: list[int],
    num_heads: int,
    dtype: torch.dtype,
    cache: torch.dtype | None = None,
    block_size: int = 16,
    kv_scale: float | None = None,
) -> None:
    """Compares calls with the reference, and with calls on the CPU without XLA."""
    pages = Pages.random(lengths, 1, 576, block_size, cache or dtype)
    query = torch.randn(len(lengths), num_heads, 576).to(dtype)
    args = query, pages.keys.squeeze(2), pages.tables, int32(lengths)
    out, lse = expected(query, pages, kv_scale or 1)
    for place in (device, "cpu"):
        tensors = [tensor.to(place) for tensor in args]
        result = mla_paged_attention(*tensors, SCALE, kv_scale).cpu()
        assert_close(result, out)
        again, result_lse = mla_paged_attention(*tensors, SCALE, kv_scale, return_lse=True)
        assert torch.equal(result, again.cpu())  # the same bits again
        assert_lse_close(result_lse, lse)


@for_each_dtype
@pytest.mark.parametrize("num_heads", [1, 16, 17, 64, 128])
def test_numbers_of_heads(device: torch.device, num_heads: int, dtype: torch.dtype) -> None:
    check(device, [33, 0, 1, 70], num_heads, dtype)


@pytest.mark.parametrize("block_size", [8, 13, 64, 256])
def test_block_sizes(device: torch.device, block_size: int) -> None:
    check(device, [block_size - 1, block_size, 2 * block_size + 1], 20, DTYPES[0], None, block_size)


@for_each_dtype
@pytest.mark.parametrize("kv_scale", [None, 0.5])
@pytest.mark.parametrize("num_heads", [16, 40])
def test_quantized_cache(
    device: torch.device, num_heads: int, kv_scale: float | None, dtype: torch.dtype
) -> None:
    check(device, [50, 3, 0, 700], num_heads, dtype, FP8, kv_scale=kv_scale)


@pytest.mark.parametrize("lengths", [[2000, 17], [1500], [257] * 3], ids=str)
@pytest.mark.parametrize("num_heads", [16, 24])
def test_long_contexts(device: torch.device, num_heads: int, lengths: list[int]) -> None:
    """A GPU splits these contexts over its multiprocessors."""
    check(device, lengths, num_heads, DTYPES[0])


def test_no_sequences(device: torch.device) -> None:
    cache = torch.zeros(2, 8, 576, dtype=DTYPES[0], device=device)
    query = torch.zeros(0, 4, 576, dtype=DTYPES[0], device=device)
    tables = torch.zeros(0, 3, dtype=torch.int32, device=device)
    lengths = torch.zeros(0, dtype=torch.int32, device=device)
    assert mla_paged_attention(query, cache, tables, lengths, 1.0).shape == (0, 4, 512)


@pytest.mark.parametrize("num_heads", [16, 20])
def test_data_out_of_range(device: torch.device, num_heads: int) -> None:
    """Lengths are clamped, and tokens in blocks that do not exist take no part."""
    pages = Pages.random([64, 64, 30, 48], 1, 576, 16, DTYPES[0])
    tables = pages.tables[:, :4].clone()
    num_blocks = pages.keys.shape[0]
    tables[1, 1], tables[1, 2] = -1, num_blocks
    tables[3] = int32([2**31 - 1, -(2**31), num_blocks + 7, -5])
    query = torch.randn(4, num_heads, 576).to(DTYPES[0])
    args = query, pages.keys.squeeze(2), tables, int32([10_000, 64, -3, 48])
    result = mla_paged_attention(*(arg.to(device) for arg in args), SCALE).cpu()
    out = torch.zeros(result.shape, dtype=torch.float64)
    for s in (0, 1):
        present = torch.ones(64, dtype=torch.bool)
        if s == 1:
            present[16:48] = False
        rows = pages.tokens(s)[0]
        results = attention_and_lse(query[s : s + 1], rows, rows, scale=SCALE, present=present)
        out[s] = results[0][0, :, :512]
    assert_close(result, out)
    assert result[2:].count_nonzero() == 0


def test_report_out_of_range(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("TORCH_XLA_EXT_REPORT_OUT_OF_RANGE", "1")
    cache = torch.zeros(4, 16, 576, dtype=DTYPES[0], device=device)
    query = torch.zeros(2, 4, 576, dtype=DTYPES[0], device=device)
    tables, lengths = int32([[77, 1], [0, 0]]).to(device), int32([20, -3]).to(device)
    mla_paged_attention(query, cache, tables, lengths, SCALE).cpu()
    captured = capfd.readouterr()
    text = captured.out + captured.err
    assert "XlaGpuMlaPagedAttention: block_tables[0][0]" in text
    assert "XlaGpuMlaPagedAttention: context_lens[1]" in text


def test_merged_with_another_part(device: torch.device) -> None:
    pages = Pages.random([90], 1, 576, 16, DTYPES[0])
    query = torch.randn(1, 16, 576).to(DTYPES[0])
    cache = pages.keys.squeeze(2)
    parts = [(pages.tables[:, :2], int32([32])), (pages.tables[:, 2:], int32([58]))]
    states = []
    for table, length in parts:
        args = (x.contiguous().to(device) for x in (query, cache, table, length))
        states += mla_paged_attention(*args, SCALE, return_lse=True)
    merged, lse = merge_attention_states(*states)
    out, out_lse = expected(query, pages)
    assert_close(merged, out)
    assert_lse_close(lse, out_lse)


def test_reference_implementation(device: torch.device) -> None:
    pages = Pages.random([40, 0, 7], 1, 576, 16, DTYPES[0])
    query = torch.randn(3, 16, 576).to(DTYPES[0])
    args = query, pages.keys.squeeze(2), pages.tables, int32(pages.lengths)
    with debug.use_reference("XlaGpuMlaPagedAttention"):
        result, lse = mla_paged_attention(*(x.to(device) for x in args), SCALE, return_lse=True)
    out, out_lse = expected(query, pages)
    assert_close(result, out)
    assert_lse_close(lse, out_lse)


WRONG = [
    (0, torch.zeros(2, 4, 512, dtype=DTYPES[0]), ValueError, r"\(query\): expected dimension 2 to"),
    (0, torch.zeros(2, 4, 576), TypeError, r"\(query\): expected dtype F16 or BF16 but got F32"),
    (1, torch.zeros(4, 16, 576).half(), TypeError, r"\(kv_cache\): expected dtype BF16 or F8E4"),
    (1, torch.zeros(4, 7, 576, dtype=DTYPES[0]), ValueError, "expected block_size to be 8 to 256"),
    (2, torch.zeros(3, 3, dtype=torch.int32), ValueError, r"\(block_tables\): expected dimension"),
    (4, float("inf"), ValueError, "scale must be from -1e12 to 1e12, but is inf"),
    (5, 2.0, ValueError, "kv_scale is for a cache of torch.float8_e4m3fn"),
]


@pytest.mark.parametrize(("index", "value", "error", "text"), WRONG)
@pytest.mark.parametrize("return_lse", [False, True])
def test_wrong_calls(
    index: int, value: object, error: type[Exception], text: str, return_lse: bool
) -> None:
    arguments = [
        torch.zeros(2, 4, 576, dtype=DTYPES[0]),
        torch.zeros(4, 16, 576, dtype=DTYPES[0]),
        torch.zeros(2, 3, dtype=torch.int32),
        int32([5, 0]),
        SCALE,
        None,
    ]
    arguments[index] = value
    with pytest.raises(error, match=f"xla_gpu::mla_paged_attention.*: .*{text}"):
        mla_paged_attention(*arguments, return_lse=return_lse)
