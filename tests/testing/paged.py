"""Random batches on a paged cache, and attention to it in float64."""

import dataclasses
from collections.abc import Sequence

import torch

FP8 = torch.float8_e4m3fn
# Tolerances of the operators' results, relative to the reference's norm.
TOLERANCES = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 5e-6}


def int32(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative error of the norm; NaN if `actual` has a NaN."""
    difference = (actual.to(expected.device).double() - expected).norm()
    return (difference / expected.norm().clamp_min(1e-30)).item()


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.shape == expected.shape
    assert relative_error(actual, expected) <= TOLERANCES[actual.dtype]


@dataclasses.dataclass(frozen=True)
class Pages:
    """Sequences of tokens in a cache, which is NaN where no sequence has a token.

    Attributes:
        keys, values: [num_pages, page_size, num_kv_heads, head_dim].
        tables: [num_seqs, pages_per_seq], int32, shuffled.
        lengths: the sequences' numbers of tokens.
    """

    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    lengths: tuple[int, ...]

    @staticmethod
    def random(
        lengths: Sequence[int],
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        dtype: torch.dtype,
        shared_pages: int = 0,
    ) -> "Pages":
        """The first `shared_pages` pages of a sequence are those of the first sequence.

        Each sequence has one spare page, to which the unused entries of its table point.
        """
        pages_per_seq = max(1, -(-max(lengths) // page_size)) + 1
        counts = [-(-length // page_size) + 1 for length in lengths]
        pages = torch.randperm(sum(counts) + 3).to(torch.int32).split([*counts, 3])
        tables = torch.stack(
            [torch.cat([own, own[-1:].expand(pages_per_seq - len(own))]) for own in pages[:-1]]
        )
        tables[:, :shared_pages] = tables[0, :shared_pages]
        shape = (sum(counts) + 3, page_size, num_kv_heads, head_dim)
        keys, values = torch.randn(shape), torch.randn(shape)
        used = torch.zeros(shape[:2], dtype=torch.bool)
        for table, length in zip(tables, lengths, strict=True):
            token = torch.arange(length)
            used[table[token // page_size].long(), token % page_size] = True
        keys[~used], values[~used] = float("nan"), float("nan")
        return Pages(keys.to(dtype), values.to(dtype), tables, tuple(lengths))

    @property
    def combined(self) -> torch.Tensor:
        """[num_pages, page_size, 2 * num_kv_heads, head_dim]: keys and values alternate."""
        return (
            torch.stack([self.keys.float(), self.values.float()], dim=3)
            .flatten(2, 3)
            .to(self.keys.dtype)
        )

    def tokens(self, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of a sequence, [length, num_kv_heads, head_dim], float64."""
        page_size, length = self.keys.shape[1], self.lengths[sequence]
        token = torch.arange(length)
        page = self.tables[sequence, token // page_size].long()
        rows = page, token % page_size
        return self.keys.float()[rows].double(), self.values.float()[rows].double()


def attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **options: object
) -> torch.Tensor:
    """The first result of `attention_and_lse`."""
    return attention_and_lse(queries, keys, values, **options)[0]


def attention_and_lse(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    present: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    causal: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of a sequence's last tokens, in float64, and log(sum(exp(logits))).

    Args:
        queries: [num_queries, num_heads, head_dim].
        keys, values: [num_tokens, num_kv_heads, head_dim].
        present: [num_tokens] or [num_queries, num_tokens], bool: which tokens take part.
        sinks: [num_heads]: an additional logit for each row, without a value.
        causal: whether tokens behind a query's are hidden.
    """
    num_queries, (num_tokens, num_kv_heads, _) = len(queries), keys.shape
    grouped = queries.double().unflatten(1, (num_kv_heads, -1))
    logits = torch.einsum("qhgd,thd->hgqt", grouped, keys).flatten(0, 1) * scale
    if soft_cap is not None:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    token = torch.arange(num_tokens, device=keys.device)
    query = torch.arange(num_tokens - num_queries, num_tokens, device=keys.device)
    distance = token - query[:, None]
    if alibi_slopes is not None:
        logits = logits + alibi_slopes.double()[:, None, None] * distance
    visible = distance <= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if sliding_window is not None:
        visible &= distance > -sliding_window
    if present is not None:
        visible &= present
    logits = logits.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        sink = sinks.double()[:, None, None].expand(-1, num_queries, 1)
        logits = torch.cat([logits, sink], dim=-1)
    weights = logits.softmax(dim=-1)[..., :num_tokens].nan_to_num(0)
    grouped = weights.unflatten(0, (num_kv_heads, -1))
    attended = torch.einsum("hgqt,thd->qhgd", grouped, values.nan_to_num(0)).flatten(1, 2)
    return attended, logits.logsumexp(dim=-1).transpose(0, 1)


def attention_of_last_tokens(queries: torch.Tensor, pages: Pages, scale: float) -> torch.Tensor:
    """Attention of one query for each sequence; zeros for sequences without tokens."""
    results = torch.zeros_like(queries, dtype=torch.float64)
    for sequence, length in enumerate(pages.lengths):
        if length:
            query = queries[sequence : sequence + 1]
            results[sequence] = attention(query, *pages.tokens(sequence), scale=scale)[0]
    return results


def assert_lse_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == torch.float32
    actual = actual.to(expected.device).double()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-3)
