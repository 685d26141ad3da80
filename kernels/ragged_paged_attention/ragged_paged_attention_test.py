"""XlaGpuRaggedPagedAttention against float64, and against upstream's own implementation."""

import itertools

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
from torch_xla.experimental.custom_kernel import ragged_paged_attention as upstream

from torch_xla_ext import custom_call, debug
from torch_xla_ext.ops import ragged_paged_attention

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
for_each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


class Batch:
    """New tokens of several sequences, with room for more of both."""

    def __init__(
        self,
        pages: Pages,
        q_lens: list[int],
        num_heads: int,
        dtype: torch.dtype,
        spare_rows: int = 3,
        spare_seqs: int = 2,
    ) -> None:
        self.pages, self.q_lens = pages, q_lens
        ends = [0, *itertools.accumulate(q_lens)]
        self.rows = [slice(begin, end) for begin, end in itertools.pairwise(ends)]
        self.q = torch.randn(ends[-1] + spare_rows, num_heads, pages.keys.shape[-1]).to(dtype)
        # Elements beyond num_seqs are ignored, so they may have any value.
        spare = [2**31 - 1] * spare_seqs
        tables = pages.tables
        filler = torch.full((spare_seqs, tables.shape[1]), -7, dtype=torch.int32)
        self.args = (
            self.q,
            pages.combined,
            int32([*pages.lengths, *spare]),
            torch.cat([tables, filler]),
            int32([*ends, *spare]),
            int32([len(q_lens)]),
        )

    def expected(self, **options: object) -> torch.Tensor:
        return self.expected_with_lse(**options)[0]

    def expected_with_lse(
        self,
        k_scale: float = 1,
        v_scale: float = 1,
        custom_mask: torch.Tensor | None = None,
        **options: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result = torch.zeros(self.q.shape, dtype=torch.float64)
        sinks = options.get("sinks", torch.tensor(float("-inf")))
        lse = sinks.double().expand(self.q.shape[:2]).clone()
        for s, rows in enumerate(self.rows):
            keys, values = self.pages.tokens(s)
            present = None
            if custom_mask is not None:
                present = shown(custom_mask[rows], len(keys))
            if rows.start < rows.stop:
                result[rows], lse[rows] = attention_and_lse(
                    self.q[rows], keys * k_scale, values * v_scale, present=present, **options
                )
        return result, lse


def shown(mask: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """The tokens that custom_mask shows to a sequence's rows, [rows, num_tokens]."""
    bits = (mask.unsqueeze(-1) >> torch.arange(32)) & 1
    bits = bits.flatten(1)[:, : len(mask)].bool()
    result = torch.ones(len(mask), num_tokens, dtype=torch.bool)
    first = num_tokens - len(mask)
    result[:, first : first + bits.shape[1]] = bits
    return result


def check(device: torch.device, batch: Batch, **options: object) -> None:
    """Compares calls with the reference, and with calls on the CPU without XLA."""
    scale = batch.q.shape[-1] ** -0.5

    def call(place: torch.device | str, **more: object) -> object:
        moved = {k: v.to(place) if torch.is_tensor(v) else v for k, v in options.items()}
        args = (x.to(place) for x in batch.args)
        return ragged_paged_attention(*args, scale, **moved, **more)

    expected, expected_lse = batch.expected_with_lse(scale=scale, **options)
    result = call(device).cpu()
    assert_close(result, expected)
    assert result[batch.rows[-1].stop :].count_nonzero() == 0
    again, lse = call(device, return_lse=True)
    assert torch.equal(result, again.cpu())
    assert_lse_close(lse, expected_lse)
    direct, direct_lse = call("cpu", return_lse=True)
    torch.testing.assert_close(direct.float(), result.float(), rtol=2e-2, atol=2e-2)
    assert_lse_close(direct_lse, expected_lse)


@for_each_dtype
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_head_dims(device: torch.device, head_dim: int, dtype: torch.dtype) -> None:
    pages = Pages.random([33, 40, 1, 70], 2, head_dim, 16, dtype)
    check(device, Batch(pages, [33, 1, 1, 20], 4, dtype))


@for_each_dtype
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"), [(1, 1), (4, 4), (8, 1), (12, 4), (32, 8), (7, 1)]
)
def test_numbers_of_heads(
    device: torch.device, num_heads: int, num_kv_heads: int, dtype: torch.dtype
) -> None:
    pages = Pages.random([19, 45], num_kv_heads, 64, 16, dtype)
    check(device, Batch(pages, [7, 45], num_heads, dtype))


@pytest.mark.parametrize("page_size", [8, 13, 16, 32, 100, 128, 256])
def test_page_sizes(device: torch.device, page_size: int) -> None:
    pages = Pages.random([page_size - 1, page_size, 2 * page_size + 1], 1, 64, page_size, DTYPES[0])
    check(device, Batch(pages, [1, page_size, page_size + 3], 4, DTYPES[0]))


OPTIONS = {
    "window of 1": {"sliding_window": 1},
    "window": {"sliding_window": 20},
    "window beyond the context": {"sliding_window": 10_000},
    "soft cap": {"soft_cap": 2.5},
    "soft cap that caps nothing": {"soft_cap": 1e6},
    "both": {"sliding_window": 37, "soft_cap": 5.0},
    "sinks": {"sinks": torch.linspace(-3, 3, 8)},
    "sinks that are larger than all logits": {"sinks": torch.full((8,), 7.0)},
    "sinks that are none": {"sinks": torch.full((8,), float("-inf"))},
    "sinks and both": {"sinks": torch.linspace(2, -2, 8), "sliding_window": 37, "soft_cap": 5.0},
    "not causal": {"causal": False},
    "not causal, soft cap and sinks": {
        "causal": False,
        "soft_cap": 5.0,
        "sinks": torch.linspace(2, -2, 8),
    },
}


@for_each_dtype
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_against_float64(
    device: torch.device, options: dict[str, object], head_dim: int, dtype: torch.dtype
) -> None:
    pages = Pages.random([100, 5, 64], 2, head_dim, 16, dtype)
    check(device, Batch(pages, [60, 5, 1], 8, dtype), **options)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_rows_without_causality(device: torch.device, head_dim: int) -> None:
    """Cross-attention: some sequences have more rows than tokens, and some have no tokens."""
    pages = Pages.random([20, 300, 40], 2, head_dim, 16, DTYPES[0])
    batch = Batch(pages, [70, 9, 200], 8, DTYPES[0])
    check(device, batch, causal=False)
    q, kv_pages, _, *others = (x.to(device) for x in batch.args)
    lengths = int32([0, 300, 40, 0, 0]).to(device)
    result = ragged_paged_attention(q, kv_pages, lengths, *others, causal=False).cpu()
    assert result[:70].count_nonzero() == 0
    expected = batch.expected(scale=1.0, causal=False)
    assert_close(result[70:], expected[70:])


# A GPU splits the context of few query tokens over its multiprocessors.
@pytest.mark.parametrize("options", [{}, {"sliding_window": 700}, {"causal": False}], ids=str)
@pytest.mark.parametrize("num_heads", [4, 5, 12, 16])
def test_few_query_tokens_at_long_contexts(
    device: torch.device, num_heads: int, options: dict[str, object]
) -> None:
    pages = Pages.random([3000, 1500, 40, 2500, 5], 1, 128, 16, DTYPES[0])
    batch = Batch(pages, [4, 1, 16, 8, 2], num_heads, DTYPES[0])
    check(device, batch, sinks=torch.linspace(-1, 7, num_heads), **options)


@for_each_dtype
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"soft_cap": 4.0}], ids=str)
@pytest.mark.parametrize("q_lens", [[4], [2, 2], [3, 0], [9]], ids=str)
def test_few_query_tokens_of_few_sequences(
    device: torch.device, q_lens: list[int], options: dict[str, object], dtype: torch.dtype
) -> None:
    pages = Pages.random([1200, 70][: len(q_lens)], 8, 128, 16, dtype)
    check(device, Batch(pages, q_lens, 32, dtype, spare_rows=1, spare_seqs=0), **options)


def random_trees(batch: Batch, words: int) -> torch.Tensor:
    """Return random masks of the new tokens that each new token sees; it sees itself."""
    mask = torch.randint(-(2**31), 2**31, (len(batch.q), words)).int()
    for rows in batch.rows:
        for i, row in enumerate(range(rows.start, rows.stop)):  # a token sees itself
            if i < 32 * words:
                bit = torch.tensor(1) << i % 32
                mask[row, i // 32] |= torch.where(bit >= 2**31, bit - 2**32, bit).int()
    return mask


@for_each_dtype
@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_custom_mask(device: torch.device, head_dim: int, words: int, dtype: torch.dtype) -> None:
    pages = Pages.random([100, 5, 64, 2000, 70], 2, head_dim, 16, dtype)
    batch = Batch(pages, [60, 5, 1, 8, 70], 8, dtype)
    mask = random_trees(batch, words)
    check(device, batch, custom_mask=mask)
    check(device, batch, custom_mask=mask, causal=False, soft_cap=4.0)
    check(device, batch, custom_mask=mask, sliding_window=13, sinks=torch.linspace(-2, 2, 8))


@for_each_dtype
def test_a_mask_that_hides_everything(device: torch.device, dtype: torch.dtype) -> None:
    """Rows that see no token are zeros."""
    pages = Pages.random([6, 30], 1, 64, 16, dtype)
    batch = Batch(pages, [6, 3], 4, dtype)
    check(device, batch, custom_mask=torch.zeros(len(batch.q), 1, dtype=torch.int32))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("q_lens", [[1, 1], [7, 40]], ids=str)
def test_tokens_before_the_window_may_have_any_value(
    device: torch.device, q_lens: list[int], head_dim: int
) -> None:
    """Tokens that no row sees may have any value, as tokens behind the context may."""
    pages = Pages.random([200, 331], 2, head_dim, 16, DTYPES[0])
    for table, length, q_len in zip(pages.tables, pages.lengths, q_lens, strict=True):
        unseen = torch.arange(length - q_len - 20 + 1)
        rows = table[unseen // 16].long(), unseen % 16
        pages.keys[rows], pages.values[rows] = float("nan"), float("nan")
    batch = Batch(pages, q_lens, 8, DTYPES[0])
    result = ragged_paged_attention(
        *(x.to(device) for x in batch.args), head_dim**-0.5, sliding_window=20
    ).cpu()
    pages.keys.nan_to_num_(0), pages.values.nan_to_num_(0)
    assert_close(result, batch.expected(scale=head_dim**-0.5, sliding_window=20))


@for_each_dtype
def test_quantized_pages(device: torch.device, dtype: torch.dtype) -> None:
    batch = Batch(Pages.random([50, 3, 20], 2, 128, 16, FP8), [9, 3, 1], 8, dtype)
    check(device, batch)
    check(device, batch, k_scale=0.5, v_scale=3.0)


@pytest.mark.parametrize("cache", [torch.bfloat16, FP8], ids=str)
@pytest.mark.parametrize("scale", [None, 0.5, torch.linspace(0.3, 2, 8)], ids=["1", "one", "heads"])
def test_quantized_queries(
    device: torch.device, scale: float | torch.Tensor | None, cache: torch.dtype
) -> None:
    batch = Batch(Pages.random([50, 3, 300], 2, 128, 16, cache), [9, 3, 1], 8, FP8)
    given = scale.to(device) if torch.is_tensor(scale) else scale
    args = [x.to(device) for x in batch.args]
    result = ragged_paged_attention(*args, 0.1, q_scale=given)
    assert result.dtype == torch.bfloat16
    (call,) = debug.custom_calls(result)
    # Multiplied by one factor per head, the elements are not representable in float8 any more.
    is_float8 = str(not torch.is_tensor(scale)).lower()
    assert f"q_is_float8 = {is_float8}" in call.payload
    factors = torch.as_tensor(1.0 if scale is None else scale).double().expand(8)
    batch.q = batch.q.float().double() * factors[:, None]
    assert_close(result, batch.expected(scale=0.1))


def test_decode_and_prefill_alone(device: torch.device) -> None:
    pages = Pages.random([129, 64, 300], 2, 64, 16, DTYPES[0], shared_pages=2)
    check(device, Batch(pages, [1, 1, 1], 8, DTYPES[0], spare_rows=0, spare_seqs=0))
    check(device, Batch(pages, [129, 64, 300], 8, DTYPES[0]))


@pytest.mark.parametrize("lengths", [[3, 512, 200, 1], [3, 513, 2000], [40] * 30, [700] * 30])
def test_one_query_of_each_sequence(device: torch.device, lengths: list[int]) -> None:
    """Contexts of up to 512 tokens are not split, and a promise leaves kernels out."""
    pages = Pages.random(lengths, 2, 128, 16, DTYPES[0])
    batch = Batch(pages, [1] * len(lengths), 8, DTYPES[0], spare_rows=0)
    check(device, batch)
    args = [tensor.to(device) for tensor in batch.args]
    promised = ragged_paged_attention(*args, max_q_len=1)
    assert torch.equal(promised.cpu(), ragged_paged_attention(*args).cpu())


def test_sequences_without_queries(device: torch.device) -> None:
    pages = Pages.random([30, 20, 10], 1, 64, 16, DTYPES[0])
    check(device, Batch(pages, [0, 5, 0], 4, DTYPES[0]))


def test_random_batches(device: torch.device) -> None:
    for _ in range(12):
        dtype, kv = DTYPES[torch.randint(3, ()).item()], 2 ** torch.randint(3, ()).item()
        lengths = torch.randint(1, 200, (int(torch.randint(1, 9, ())),)).tolist()
        q_lens = [int(torch.randint(1, length + 1, ())) for length in lengths]
        pages = Pages.random(lengths, kv, 64, int(torch.randint(8, 40, ())), dtype)
        check(device, Batch(pages, q_lens, kv * int(torch.randint(1, 9, ())), dtype))


@for_each_dtype
@pytest.mark.parametrize(
    "options",
    [{}, {"sliding_window": 9}, {"soft_cap": 3.0}, {"mask_value": -1e30}],
    ids=["plain", "window", "soft cap", "mask value"],
)
def test_against_upstreams_implementation(
    device: torch.device, options: dict[str, object], dtype: torch.dtype
) -> None:
    batch = Batch(Pages.random([33, 80, 17], 2, 64, 16, dtype), [33, 1, 9], 8, dtype)
    q, kv_pages, *data = batch.args
    # It reads whole pages; and with its float32 there is little rounding in it.
    kv_pages = kv_pages.float().nan_to_num(0)
    expected = upstream(q.float(), kv_pages, *data, sm_scale=0.125, use_kernel=False, **options)
    args = [x.to(device) for x in (q, kv_pages.to(dtype), *data)]
    result = ragged_paged_attention(*args, 0.125, **options)
    assert_close(result[: len(expected)].cpu(), expected.double())


def test_pages_without_tokens(device: torch.device) -> None:
    """The signature refuses these pages, for direct calls of the kernel, too."""
    batch = Batch(Pages.random([5], 1, 64, 8, DTYPES[0]), [2], 4, DTYPES[0])
    args = [tensor.to(device) for tensor in batch.args]
    args[1] = args[1][:, :0]
    attributes = {"sm_scale": 1.0, "sliding_window": 0, "soft_cap": 0.0, "k_scale": 1.0}
    attributes |= {"v_scale": 1.0, "causal": True, "report_out_of_range": True}
    attributes |= {"q_is_float8": False, "max_q_len": 0}
    args += [None, None]
    outputs = [args[0], ([0, 4], torch.float32), ([1], torch.float32)]
    with pytest.raises(ValueError, match="expected page_size to be 8 to 256 but got 0"):
        custom_call("XlaGpuRaggedPagedAttention", args, outputs, attributes=attributes)


@for_each_dtype
def test_data_out_of_range(device: torch.device, dtype: torch.dtype) -> None:
    pages = Pages.random([64, 64, 20], 2, 64, 16, dtype)
    batch = Batch(pages, [6, 4, 3], 8, dtype, spare_seqs=0)
    q, kv_pages, _, tables, _, _ = batch.args
    tables = tables[:, :4].clone()
    tables[1, 1], tables[1, 2] = -1, kv_pages.shape[0]
    # The first length is beyond its table; rows begin before 0 and end beyond q. The third sequence
    # has more queries than tokens: only its last 2 rows see any.
    args = q, kv_pages, int32([10_000, 64, 2]), tables, int32([-5, 6, 10, 10_000]), int32([99])
    result = ragged_paged_attention(*(x.to(device) for x in args), 0.125).cpu()
    expected = torch.zeros(q.shape, dtype=torch.float64)
    expected[:6] = attention(q[:6], *pages.tokens(0), scale=0.125)
    present = torch.ones(64, dtype=torch.bool)
    present[16:48] = False
    expected[6:10] = attention(q[6:10], *pages.tokens(1), scale=0.125, present=present)
    keys, values = pages.tokens(2)
    expected[-2:] = attention(q[-2:], keys[:2], values[:2], scale=0.125)
    assert_close(result, expected)
    assert result[10:-2].count_nonzero() == 0


@pytest.mark.parametrize("num_seqs", [0, -4, -(2**31)])
def test_no_sequences(device: torch.device, num_seqs: int) -> None:
    batch = Batch(Pages.random([20], 1, 64, 16, DTYPES[0]), [5], 4, DTYPES[0])
    args = [*batch.args[:5], int32([num_seqs])]
    result = ragged_paged_attention(*(x.to(device) for x in args)).cpu()
    assert result.count_nonzero() == 0
