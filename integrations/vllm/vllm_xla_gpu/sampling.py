"""Random tokens that depend on the request's seed and the token's place, not on the batch."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_tpu
from vllm.v1.sample.tpu.metadata import TPUSupportedSamplingMetadata
from vllm.v1.sample.tpu.sampler import Sampler

if TYPE_CHECKING:
    from vllm.v1.worker.tpu_input_batch import InputBatch

_WORD = 0xFFFFFFFF
# Of a float32 below 1, less one bit.
_UNIFORM_BITS = 23


def make_key(seed: int, place: int) -> np.ndarray:
    """uint32 [2] for token `place` of a request with `seed`."""
    digest = hashlib.blake2b(f"{seed} {place}".encode(), digest_size=8).digest()
    return np.frombuffer(digest, dtype=np.uint32)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """The last part of MurmurHash3, of words of 32 bits in int64."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _WORD
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _WORD
    return x ^ (x >> 16)


def exponential(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Independent numbers of the exponential distribution, above 0.

    Args:
        keys: int64 [rows, 2], words of 32 bits.
        count: numbers in a row.

    Returns:
        float32 [rows, count]; a row depends on its key alone.
    """
    numbers = torch.arange(count, device=keys.device) * 0x9E3779B1
    words = _mixed((numbers + keys[:, :1]) & _WORD)
    words = _mixed((words + keys[:, 1:]) & _WORD)
    uniform = ((words >> (32 - _UNIFORM_BITS)).float() + 0.5) / 2**_UNIFORM_BITS
    return -uniform.log()


@dataclasses.dataclass
class SamplingMetadata(TPUSupportedSamplingMetadata):
    """vLLM's, with keys in place of generators, which XLA does not have."""

    keys: torch.Tensor | None = None  # int64 [num_seqs, 2]

    @property
    def generators(self) -> torch.Tensor:
        return self.keys

    @classmethod
    def from_input_batch(
        cls, batch: InputBatch, num_seqs: int, device: torch.device, also_if_greedy: bool = False
    ) -> SamplingMetadata:
        result = super().from_input_batch(batch, num_seqs, device, also_if_greedy)
        if result.temperature is not None:
            result.keys = torch.zeros(num_seqs, 2, dtype=torch.int64).to(device)
        return result


class _TopKTopPSampler(nn.Module):
    def forward(
        self, logits: torch.Tensor, keys: torch.Tensor, k: torch.Tensor, p: torch.Tensor
    ) -> torch.Tensor:
        """int64 [num_seqs]; a token is taken with its probability, by the Gumbel trick."""
        probs = apply_top_k_top_p_tpu(logits, k, p).softmax(dim=-1, dtype=torch.float32)
        return (probs / exponential(keys, probs.shape[1])).argmax(dim=-1)


class KeyedSampler(Sampler):
    """vLLM's sampler for XLA devices, but for its random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.topk_topp_sampler = _TopKTopPSampler()
