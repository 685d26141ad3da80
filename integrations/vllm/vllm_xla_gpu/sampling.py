"""Apply penalties and biases, and draw tokens that depend only on a request's seed and position."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm.v1.sample.tpu.metadata import DEFAULT_SAMPLING_PARAMS, TPUSupportedSamplingMetadata
from vllm.v1.sample.tpu.sampler import Sampler, apply_top_k_top_p

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker.tpu_input_batch import InputBatch

_WORD = 0xFFFFFFFF
# The number of random bits in a uniform float32 below 1.
_UNIFORM_BITS = 23
# A lower temperature selects the best token.
_LEAST_TEMPERATURE = 1e-5
# The columns of `pack_params`' result: these float32 numbers, top_k, and the two words of a key.
_FLOATS = ("temperature", "min_p", "top_p")
NUM_PARAMS = 6


def has_penalties(params: SamplingParams) -> bool:
    """Return whether penalties make a token's logits depend on the tokens before it."""
    return (
        params.presence_penalty != 0
        or params.frequency_penalty != 0
        or params.repetition_penalty != 1
    )


def penalty_operands(batch: InputBatch, num_seqs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the operands of `penalized` for a batch with known tokens, padded to `num_seqs`."""
    count = batch.num_reqs
    tokens = np.zeros((num_seqs, batch.token_ids_cpu.shape[1] + 2), dtype=np.int32)
    tokens[:count, 0] = batch.num_prompt_tokens[:count]
    tokens[:count, 1] = batch.num_tokens[:count]
    tokens[:count, 2:] = batch.token_ids_cpu[:count]
    penalties = np.tile(np.array([0, 0, 1], dtype=np.float32), (num_seqs, 1))
    penalties[:count, 0] = batch.presence_penalties_cpu[:count]
    penalties[:count, 1] = batch.frequency_penalties_cpu[:count]
    penalties[:count, 2] = batch.repetition_penalties_cpu[:count]
    return torch.from_numpy(tokens), torch.from_numpy(penalties)


def pack_greedy_params(num_seqs: int) -> np.ndarray:
    """Pack the parameters of sequences that want the best tokens."""
    packed = np.zeros((num_seqs, NUM_PARAMS), dtype=np.int32)
    floats = packed.view(np.float32)
    for column, name in enumerate(_FLOATS):
        floats[:, column] = DEFAULT_SAMPLING_PARAMS[name]
    packed[:, 3] = DEFAULT_SAMPLING_PARAMS["top_k"]
    return packed


def pack_params(batch: InputBatch, keys: np.ndarray) -> np.ndarray:
    """Pack the sampling parameters of a batch's requests, for `unpack_params`.

    Args:
        batch: vLLM's batch.
        keys: uint32 [number of requests, 2], the results of `make_key`.

    Returns:
        int32 [number of requests, NUM_PARAMS].
    """
    count = len(keys)
    packed = np.empty((count, NUM_PARAMS), dtype=np.int32)
    floats = packed.view(np.float32)
    for column, name in enumerate(_FLOATS):
        floats[:, column] = getattr(batch, f"{name}_cpu")[:count]
    packed[:, 3] = batch.top_k_cpu[:count]
    packed[:, 4:] = keys.view(np.int32)
    return packed


@functools.cache
def _float_of_bits() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return Tensor.view(torch.float32) for the device; torch_xla's would use the host."""
    # The engine's process imports this module, and has no device.
    from torch_xla.core import xla_builder, xla_op_registry

    return xla_op_registry.register(
        "vllm_xla_gpu_float_of_bits", lambda bits: bits.bitcast(xla_builder.Type.F32)
    )


def unpack_params(packed: torch.Tensor) -> SamplingMetadata:
    """Unpack a tensor that `pack_params` packed, on the device."""
    columns = _float_of_bits()(packed[:, :3]).unbind(1)
    floats = dict(zip(_FLOATS, columns, strict=True))
    keys = packed[:, 4:].long() & _WORD
    return SamplingMetadata(**floats, top_k=packed[:, 3], all_greedy=False, keys=keys)


def penalized(logits: torch.Tensor, tokens: torch.Tensor, penalties: torch.Tensor) -> torch.Tensor:
    """Apply OpenAI's presence and frequency penalties and CTRL's repetition penalty.

    Args:
        logits: [num_seqs, vocabulary].
        tokens: int32 [num_seqs, 2 + longest text]: the number of tokens in the prompt, the number
            in all, then the tokens.
        penalties: float32 [num_seqs, 3]: presence, frequency (0 for none) and repetition (1 for
            none). The first two apply to tokens of the answer, the third also to tokens of the
            prompt.

    Returns:
        [num_seqs, vocabulary] of logits' dtype.
    """
    place = torch.arange(tokens.shape[1] - 2, device=tokens.device)
    is_text = place < tokens[:, 1:2]
    is_answer = is_text & (place >= tokens[:, :1])
    index = tokens[:, 2:].long().clamp(0, logits.shape[1] - 1)
    zeros = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
    in_text = zeros.scatter_add(1, index, is_text.float()) > 0
    in_answer = zeros.scatter_add(1, index, is_answer.float())
    presence, frequency, repetition = penalties[:, :, None].unbind(1)
    result = logits.float()
    repeated = torch.where(result > 0, result / repetition, result * repetition)
    result = torch.where(in_text, repeated, result)
    result = result - frequency * in_answer - presence * (in_answer > 0)
    return result.to(logits.dtype)


def has_biases(params: SamplingParams) -> bool:
    """Return whether a request forbids or favours some tokens."""
    return bool(
        params.logit_bias or params.min_tokens or params.allowed_token_ids or params.bad_words
    )


def write_bias(
    bias: np.ndarray, params: SamplingParams, num_tokens: int, answer: Sequence[int]
) -> None:
    """Add a request's biases to its next token's logits, as vLLM's sampler for GPUs does.

    Args:
        bias: float32 [vocabulary].
        params: the request's parameters.
        num_tokens: the number of tokens in its answer so far.
        answer: these tokens, if the request has bad words.
    """
    if params.allowed_token_ids:
        is_forbidden = np.ones(len(bias), dtype=bool)
        is_forbidden[params.allowed_token_ids] = False
        bias[is_forbidden] = -np.inf
    for token, added in (params.logit_bias or {}).items():
        bias[token] += added
    if num_tokens < params.min_tokens:
        bias[list(params.all_stop_token_ids)] = -np.inf
    for *before, last in params.bad_words_token_ids or ():
        if list(answer[num_tokens - len(before) :]) == before:
            bias[last] = -np.inf


def biased(logits: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Add a float32 bias to logits [num_seqs, vocabulary], in the logits' dtype."""
    return (logits.float() + bias).to(logits.dtype)


def make_key(seed: int, index: int) -> np.ndarray:
    """Return the key of the token at index `index` of a request with `seed`, uint32 [2]."""
    digest = hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest()
    return np.frombuffer(digest, dtype=np.uint32)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """Apply the final mix of MurmurHash3 to 32-bit words in int64."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _WORD
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _WORD
    return x ^ (x >> 16)


def exponential(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Draw independent values of the exponential distribution, above 0.

    Args:
        keys: int64 [rows, 2], words of 32 bits.
        count: how many values to draw for each row.

    Returns:
        float32 [rows, count]; a row depends only on its key.
    """
    numbers = torch.arange(count, device=keys.device) * 0x9E3779B1
    words = _mixed((numbers + keys[:, :1]) & _WORD)
    words = _mixed((words + keys[:, 1:]) & _WORD)
    uniform = ((words >> (32 - _UNIFORM_BITS)).float() + 0.5) / 2**_UNIFORM_BITS
    return -uniform.log()


@dataclasses.dataclass
class SamplingMetadata(TPUSupportedSamplingMetadata):
    """vLLM's SamplingMetadata, with keys in place of generators, which XLA does not have."""

    keys: torch.Tensor | None = None  # int64 [num_seqs, 2]


class KeyedSampler(Sampler):
    """vLLM's sampler for XLA devices, with different random numbers."""

    def sample(self, logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
        """Sample int64 [num_seqs] tokens with their probabilities, by the Gumbel trick.

        Args:
            logits: float32 [num_seqs, vocabulary], which is written to.
            metadata: the requests' parameters; a temperature below 0 means the best token.
        """
        best = self.greedy_sample(logits)
        logits = self.apply_temperature(logits, metadata.temperature)
        logits = self.apply_min_p(logits, metadata.min_p)
        logits = apply_top_k_top_p(logits, metadata.top_k, metadata.top_p)
        probs = logits.softmax(dim=-1, dtype=torch.float32)
        sampled = (probs / exponential(metadata.keys, probs.shape[1])).argmax(dim=-1)
        return torch.where(metadata.temperature < _LEAST_TEMPERATURE, best, sampled)
