"""Detect packed sequences in a batch, without reading positions that the model has made.

Several sequences may be packed into a row, each with positions from 0. In each forward pass without
a cache, such as the Trainer's, transformers 5 reads the positions, and so waits for the device;
earlier versions always make a mask. But most models receive no positions, and count from 0.
"""

import functools
from collections.abc import Callable

import torch
import torch_xla


def find_packed_sequence_indices(
    original: Callable[[torch.Tensor], torch.Tensor | None],
) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """Replace the function of transformers.masking_utils, which returns None without packing."""

    @functools.wraps(original)
    def find_packed_sequence_indices(position_ids: torch.Tensor) -> torch.Tensor | None:
        is_lazy = position_ids.device.type == "xla" and not torch.compiler.is_dynamo_compiling()
        if is_lazy and _count_from_zero(position_ids):
            return None
        return original(position_ids)

    return find_packed_sequence_indices


def _count_from_zero(positions: torch.Tensor) -> bool:
    """Return whether the tensor's lazy graph computes transformers' default positions."""
    batch, length = positions.shape
    try:
        return _hash(positions) == _hash_from_zero(batch, length, positions.device)
    except RuntimeError:  # a tensor of torch.export or torch.func, without a graph
        return False


@functools.lru_cache(maxsize=256)
def _hash_from_zero(batch: int, length: int, device: torch.device) -> bytes:
    positions = (torch.arange(length, device=device) + 0).unsqueeze(0)
    return _hash(positions if batch == 1 else positions.expand(batch, -1))


def _hash(tensor: torch.Tensor) -> bytes:
    return torch_xla._XLAC._get_graph_hash([tensor])
