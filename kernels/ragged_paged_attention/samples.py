"""Samples of ragged_paged_attention for tests/ops."""

import torch
from testing.paged import TOLERANCES, Pages, attention, int32
from testing.samples import Arguments, OperatorSamples

from torch_xla_ext import ops

# For a prompt and a decode step: the numbers of tokens, and of new tokens.
_LENGTHS, _NEW = (9, 21), (4, 1)


def _arguments(dtype: torch.dtype) -> Arguments:
    pages = Pages.random(_LENGTHS, 2, 64, 16, dtype)
    rows = int32([0, 4, 5])
    query = torch.randn(6, 4, 64).to(dtype)  # the last row is of no sequence
    return query, pages.combined.nan_to_num(0), int32(_LENGTHS), pages.tables, rows, int32([2])


def _reference(
    query: torch.Tensor,
    kv_pages: torch.Tensor,
    lengths: torch.Tensor,
    tables: torch.Tensor,
    rows: torch.Tensor,
    count: torch.Tensor,
) -> torch.Tensor:
    pages = Pages(kv_pages[:, :, ::2], kv_pages[:, :, 1::2], tables, tuple(lengths.tolist()))
    result = torch.zeros(query.shape, dtype=torch.float64)
    for sequence in range(int(count)):
        new = slice(int(rows[sequence]), int(rows[sequence + 1]))
        result[new] = attention(query[new], *pages.tokens(sequence), scale=0.125)
    return result.to(query.dtype)


SAMPLES = [
    OperatorSamples(
        documented=ops.ragged_paged_attention,
        target="XlaGpuRaggedPagedAttention",
        reference=_reference,
        dtypes=(torch.bfloat16, torch.float16, torch.float32),
        arguments=_arguments,
        others=(0.125,),
        tolerance=TOLERANCES[torch.bfloat16],
    )
]
