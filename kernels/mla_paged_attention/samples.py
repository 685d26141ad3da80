"""Samples of mla_paged_attention for tests/ops."""

import torch
from testing.paged import TOLERANCES, Pages, attention_of_last_tokens, int32
from testing.samples import Arguments, OperatorSamples

from torch_xla_ext import ops

_LENGTHS = (5, 0, 17)


def _arguments(dtype: torch.dtype) -> Arguments:
    pages = Pages.random(_LENGTHS, 1, 576, 16, dtype)
    cache = pages.keys.nan_to_num(0).squeeze(2)
    return torch.randn(3, 4, 576).to(dtype), cache, pages.tables, int32(_LENGTHS)


def _reference(
    query: torch.Tensor, cache: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    rows = cache.unsqueeze(2)
    pages = Pages(rows, rows, tables, tuple(lengths.tolist()))
    return attention_of_last_tokens(query, pages, 0.07)[..., :512].to(query.dtype)


SAMPLES = [
    OperatorSamples(
        documented=ops.mla_paged_attention,
        target="XlaGpuMlaPagedAttention",
        reference=_reference,
        dtypes=(torch.bfloat16, torch.float16),
        arguments=_arguments,
        others=(0.07,),
        tolerance=TOLERANCES[torch.bfloat16],
    )
]
