"""Pack a step's input for the device into one tensor of integers, sent in one copy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from vllm.v1.worker.tpu_input_batch import InputBatch

from vllm_xla_gpu.sampling import NUM_PARAMS, pack_greedy_params

UNUSED_SLOT = -1  # kv_pages_update writes no token there
NO_ADAPTER = -1
KNOWN = -1  # the token is in input_ids
_MOST_DECODED = 64  # tokens; a step of more takes longer than reading the weights


# Sizes between powers of two, in eighths of the smaller one. Most are for steps with one to three
# prompts of several hundred tokens and a token of each other sequence.
_EIGHTHS = {256: (9, 12), 512: (9, 10, 12, 14), 1024: (9, 10, 12, 14), 2048: (9, 12)}


def step_sizes(sizes: Sequence[int], num_seqs: int) -> list[int]:
    """Return the numbers of tokens to which steps are padded; one program is compiled for each.

    Args:
        sizes: vLLM's sizes, by default powers of two (VLLM_TPU_BUCKET_PADDING_GAP).
        num_seqs: the maximum number of sequences in a step.

    Returns:
        These sizes and some between powers of two: a prompt of 512 tokens with tokens of other
        sequences is padded to 576 instead of 1,024, three such prompts to 1,792. No sizes are added
        for small steps and steps with one token per sequence, whose time is that of reading the
        weights, nor above 4,096 tokens, where steps are usually full.
    """
    fine = []
    for size, following in itertools.pairwise(sizes):
        if size >= num_seqs and following == 2 * size:
            fine += [size * eighths // 8 for eighths in _EIGHTHS.get(size, ())]
    return sorted([*sizes, *fine])


def decode_sizes(sizes: Sequence[int], num_seqs: int) -> list[int]:
    """Return the sizes with a faster program for steps with one token per sequence.

    A step of one sequence has a size of its own: its kernels are made for one token. The largest
    size is excluded, and so are sizes for which a step with more tokens per sequence would use the
    next larger size and take longer.

    Args:
        sizes: the result of step_sizes.
        num_seqs: the maximum number of sequences in a step.
    """
    found = [size for size in sizes[:-1] if size <= min(num_seqs, _MOST_DECODED)]
    return sorted({1, *found}) if found else []


@dataclass(frozen=True)
class BatchShape:
    """The shape of a padded batch; one program is compiled for each.

    Attributes:
        num_tokens: the number of tokens in all sequences.
        num_seqs: the number of sequences, each with at least one token.
        pages_per_seq: the number of entries in a sequence's page table.
        num_checked: the number of tokens whose next token is checked: drafts, and the tokens before
            them.
        max_q_len: the maximum number of tokens in a sequence; None for no limit.
    """

    num_tokens: int
    num_seqs: int
    pages_per_seq: int
    num_checked: int = 0
    max_q_len: int | None = None

    @property
    def fields(self) -> list[tuple[int, int]]:
        """Return the begin and end of each field of Batch, in their order."""
        sizes = [
            *[self.num_tokens] * 5,
            *(self.num_seqs * self.pages_per_seq, self.num_seqs),
            *(self.num_seqs + 1, 1, self.num_seqs, self.num_checked),
            self.num_seqs * NUM_PARAMS,
        ]
        ends = list(itertools.accumulate(sizes))
        return list(zip([0, *ends], ends, strict=False))


@dataclass(frozen=True)
class Batch:
    """A step's int32 tensors on the device, or arrays.

    T, S and P are num_tokens, num_seqs and pages_per_seq of the BatchShape.

    Attributes:
        input_ids, positions: [T].
        previous: [T]; KNOWN, or the row of the previous step, which may still run, whose token
            replaces input_ids.
        slots: [T]; where kv_pages_update writes each token.
        adapters: [T]; the slot of each token's LoRA adapter, or NO_ADAPTER.
        page_indices: [S, P].
        kv_lens: [S]; each sequence's number of tokens, including those of the step.
        cu_q_lens: [S + 1]; the first token of each sequence.
        num_seqs: [1]; how many sequences there are.
        last_tokens: [S]; the index of each sequence's last token.
        checked: [num_checked]; for each sequence with drafts, the token before the drafts, then the
            drafts.
        params: [S, NUM_PARAMS]; the sampling parameters of sampling.pack_params.
        max_q_len: as in BatchShape.
    """

    input_ids: torch.Tensor
    previous: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    adapters: torch.Tensor
    page_indices: torch.Tensor
    kv_lens: torch.Tensor
    cu_q_lens: torch.Tensor
    num_seqs: torch.Tensor
    last_tokens: torch.Tensor
    checked: torch.Tensor
    params: torch.Tensor
    max_q_len: int | None

    @classmethod
    def unpack(cls, packed: torch.Tensor | np.ndarray, shape: BatchShape) -> Batch:
        """Return the fields of an array that `pack` returned, as views."""
        parts = [packed[begin:end] for begin, end in shape.fields]
        for number in (5, -1):
            parts[number] = parts[number].reshape(shape.num_seqs, -1)
        return cls(*parts, shape.max_q_len)

    def by_token(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pages of each token's sequence, [T, P], and how many tokens it sees, [T]."""
        place = torch.arange(len(self.positions), device=self.positions.device)
        sequence = (place[:, None] >= self.cu_q_lens[1:]).sum(dim=1)
        sequence = sequence.clamp(max=len(self.page_indices) - 1)
        lengths = torch.where(place < self.cu_q_lens[-1], self.positions + 1, 0)
        return self.page_indices[sequence], lengths


def pack_empty(shape: BatchShape) -> np.ndarray:
    """Pack one sequence with one token, which is written to no page."""
    packed = np.zeros(shape.fields[-1][1], dtype=np.int32)
    batch = Batch.unpack(packed, shape)
    batch.slots[:], batch.previous[:], batch.adapters[:] = UNUSED_SLOT, KNOWN, NO_ADAPTER
    batch.kv_lens[0] = batch.num_seqs[0] = 1
    batch.cu_q_lens[1:] = 1
    batch.params[:] = pack_greedy_params(shape.num_seqs)
    return packed


def pack(
    shape: BatchShape,
    requests: InputBatch,
    new_tokens: np.ndarray,
    page_size: int,
    rows_before: np.ndarray,
    adapters: np.ndarray | int = NO_ADAPTER,
    num_drafts: np.ndarray | int = 0,
    params: np.ndarray | None = None,
) -> np.ndarray:
    """Return the next step of vLLM's batch as one array, for Batch.unpack.

    Args:
        shape: a shape with room for the step.
        requests: vLLM's batch, which has the tokens and pages.
        new_tokens: [number of requests]; how many tokens of each request the step computes.
        rows_before: [number of requests]; their rows in the previous step, for those whose last
            token is not known yet.
        adapters: [number of requests]; the slots of their adapters.
        num_drafts: [number of requests]; how many of their new tokens are drafts, which come last.
        params: the result of sampling.pack_params; None if all requests want the best tokens.

    Returns:
        int32 [end of the last field].

    Raises:
        RuntimeError: a token is missing.
    """
    num_seqs, total = len(new_tokens), int(new_tokens.sum())
    computed = requests.num_computed_tokens_cpu[:num_seqs]
    pages = requests.block_table[0].get_numpy_array()[:num_seqs]
    ends = np.cumsum(new_tokens)
    seq = np.repeat(np.arange(num_seqs), new_tokens)
    position = np.arange(total) + np.repeat(computed - ends + new_tokens, new_tokens)

    packed = pack_empty(shape)
    batch = Batch.unpack(packed, shape)
    batch.input_ids[:total] = requests.token_ids_cpu[seq, position]
    num_drafts = np.broadcast_to(num_drafts, num_seqs)
    is_known = position < (requests.num_tokens[:num_seqs] + num_drafts)[seq]
    batch.previous[:total] = np.where(is_known, KNOWN, rows_before[seq])
    if not (is_known | (rows_before[seq] != KNOWN)).all():
        raise RuntimeError("a token is neither known nor computed by the previous step")
    batch.positions[:total] = position
    batch.slots[:total] = pages[seq, position // page_size] * page_size + position % page_size
    batch.adapters[:total] = np.broadcast_to(adapters, num_seqs)[seq]
    batch.page_indices[:num_seqs] = pages
    batch.kv_lens[:num_seqs] = computed + new_tokens
    batch.cu_q_lens[1 : num_seqs + 1] = ends
    batch.cu_q_lens[num_seqs + 1 :] = total
    batch.num_seqs[0] = num_seqs
    batch.last_tokens[:num_seqs] = ends - 1
    has_drafts = num_drafts[seq] > 0
    checked = np.flatnonzero(has_drafts & (np.arange(total) >= (ends - num_drafts - 1)[seq]))
    batch.checked[: len(checked)] = checked
    if params is not None:
        batch.params[:num_seqs] = params
    return packed
