"""Samples of paged_attention for tests/ops."""

import torch
from testing.paged import TOLERANCES, Pages, attention_of_last_tokens, int32
from testing.samples import Arguments, OperatorSamples

from torch_xla_ext import ops

_LENGTHS = (5, 0, 17)


def _arguments(dtype: torch.dtype) -> Arguments:
    pages = Pages.random(_LENGTHS, 2, 64, 16, dtype)
    keys, values = pages.keys.nan_to_num(0), pages.values.nan_to_num(0)
    return torch.randn(3, 4, 64).to(dtype), keys, values, pages.tables, int32(_LENGTHS)


def _reference(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    pages = Pages(keys, values, tables, tuple(lengths.tolist()))
    return attention_of_last_tokens(query, pages, 0.125).to(query.dtype)


SAMPLES = [
    OperatorSamples(
        documented=ops.paged_attention,
        target="XlaGpuPagedAttention",
        reference=_reference,
        dtypes=(torch.bfloat16, torch.float16, torch.float32),
        arguments=_arguments,
        others=(0.125,),
        tolerance=TOLERANCES[torch.bfloat16],
    )
]
