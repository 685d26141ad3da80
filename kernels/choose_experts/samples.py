"""Samples of choose_experts for tests/ops."""

import torch
from testing.samples import Arguments, OperatorSamples

from torch_xla_ext import ops

_TOP_K = 3


def _arguments(dtype: torch.dtype) -> Arguments:
    return torch.randn(6, 16).to(dtype), torch.randn(16) / 4


def _reference(logits: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scores = logits.float().softmax(-1)
    experts = (scores + bias).topk(_TOP_K).indices
    weights = scores.gather(1, experts)
    return torch.cat([weights / weights.sum(1, keepdim=True), experts.float()])


def _of_tensors(logits: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    weights, experts = torch.ops.xla_gpu.choose_experts(logits, bias, None, _TOP_K)
    return torch.cat([weights, experts.float()])


SAMPLES = [
    OperatorSamples(
        documented=ops.choose_experts,
        target="XlaGpuChooseExperts",
        reference=_reference,
        dtypes=(torch.float32, torch.float16, torch.bfloat16),
        arguments=_arguments,
        others=(None, _TOP_K),
        of_tensors=_of_tensors,
        tolerance=1e-6,
    )
]
