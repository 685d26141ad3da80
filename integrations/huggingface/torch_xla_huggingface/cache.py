"""Key and value caches with fixed shapes, for transformers' models and generation loop."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.cache_utils import Cache

from torch_xla_huggingface.ahead import Ahead
from torch_xla_huggingface.results import ResultMemory

_SMALLEST = 64


def bucket(length: int, limit: int | None = None) -> int:
    """Return the smallest of 64, 96, 128, 192, 256, 384, … that is not below `length`.

    The result is at most `limit`, the positions that a model supports, unless `length` is greater.
    """
    size = _SMALLEST
    while size < length:
        size *= 2
    if size > _SMALLEST and size * 3 // 4 >= length:
        size = size * 3 // 4
    return size if limit is None else min(size, max(length, limit))


@dataclasses.dataclass
class _Layer:
    """A layer of a GenerationCache, with the attributes of a layer of transformers' caches."""

    cache: GenerationCache
    number: int

    @property
    def keys(self) -> torch.Tensor:
        return self.cache[self.number][0]

    @property
    def values(self) -> torch.Tensor:
        return self.cache[self.number][1]


class GenerationCache(Cache):
    """The cache that the generation loop holds, on the host; the tensors are on the device.

    `model.generate` returns it as `past_key_values`, and accepts it to continue the text.

    Attributes:
        limit: the number of positions that the model supports, for `bucket`.
        size: the number of positions in the tensors.
        length: the number of filled positions.
        tensors: for each layer its keys and values, [batch, heads, size, head_dim]; empty at first.
        mask: [batch, size], whether a position is attended; None for models without a mask.
        host_mask: the part of the mask that is known on the host, [batch, length].
        results: the memory of the steps' results; None at first.
        beams: for each sequence in the next step, the sequence that it continues.
        ahead: the started passes of the running call, if that is greedy.
        repeated: [batch], on the host, of that call: the token that a sequence is expected to
            repeat, or -1.
    """

    # Otherwise the loop would make a mask [batch, 1, queries, size] on the host for each step.
    is_compileable = False
    inputs_are_on_host = True  # for transformers_hooks.py

    def __init__(self, length: int, limit: int | None) -> None:
        self.size, self.limit, self.length = bucket(length, limit), limit, 0
        self.tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.mask: torch.Tensor | None = None
        self.host_mask: torch.Tensor | None = None
        self.results: ResultMemory | None = None
        self.beams: torch.Tensor | None = None
        self.ahead: Ahead | None = None
        self.repeated: torch.Tensor | None = None

    @property
    def is_initialized(self) -> bool:
        return self.length > 0

    def get_seq_length(self, layer_idx: int = 0, cache_position: Any = None) -> int:
        return self.length

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1  # it grows

    get_max_length = get_max_cache_shape  # its name in 5.24

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.beams = beam_idx if self.beams is None else self.beams[beam_idx]

    @property
    def layers(self) -> list[_Layer]:
        """The filled positions of each layer."""
        return [_Layer(self, layer_idx) for layer_idx in range(len(self))]

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.tensors[layer_idx]
        return keys[:, :, : self.length], values[:, :, : self.length]

    def __iter__(self) -> Any:
        return (self[layer_idx] for layer_idx in range(len(self)))

    def __repr__(self) -> str:
        return f"GenerationCache(length={self.length}, size={self.size}, layers={len(self)})"

    def make_room(self, length: int) -> None:
        """Make the tensors larger if they have less than `length` positions."""
        if length <= self.size:
            return
        more = bucket(length, self.limit) - self.size
        self.size += more
        self.tensors = [
            (pad(keys, (0, 0, 0, more)), pad(values, (0, 0, 0, more)))
            for keys, values in self.tensors
        ]
        if self.mask is not None:
            self.mask = pad(self.mask, (0, more))


class _StepLayer:
    """A layer of a StepCache, without a reference to it, because a cycle would keep tensors."""

    is_compileable, is_sliding = True, False

    def __init__(
        self,
        size: int,
        positions: torch.Tensor,
        tensors: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        self._size, self._positions = size, positions
        self.keys, self.values = tensors or (None, None)
        self.is_new = tensors is None

    def update(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the step's keys and values; return those that its queries may attend to."""
        if self.is_new:
            more = self._size - keys.shape[2]
            self.keys, self.values = pad(keys, (0, 0, 0, more)), pad(values, (0, 0, 0, more))
            return keys, values
        for mine, new in (self.keys, keys), (self.values, values):
            mine.index_copy_(2, self._positions, new.to(mine.dtype))
        return self.keys, self.values


class StepCache(Cache):
    """The cache of one step. The first step creates the layers; later ones write in place.

    Args:
        layers: the tensors of a GenerationCache.
        size: the number of positions in the layers.
        positions: [queries], the positions of the step's tokens. In the first step, they are 0, 1,
            ….
    """

    is_compileable = True

    def __init__(
        self, layers: list[tuple[torch.Tensor, torch.Tensor]], size: int, positions: torch.Tensor
    ) -> None:
        self.size, self.positions, self._is_first = size, positions, not layers
        self.layers = [_StepLayer(size, positions, tensors) for tensors in layers]

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        while len(self.layers) <= layer_idx:
            self.layers.append(_StepLayer(self.size, self.positions))
        return self.layers[layer_idx].update(key_states, value_states)

    @property
    def is_initialized(self) -> bool:
        return not self._is_first

    def get_seq_length(self, layer_idx: int = 0, cache_position: Any = None) -> Any:
        return 0 if self._is_first else self.positions[0]

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return self.positions.shape[0] if self._is_first else self.size

    get_max_length = get_max_cache_shape  # its name in 5.24

    def get_mask_sizes(self, _: Any, layer_idx: int) -> tuple[int, int]:
        return self.get_max_cache_shape(), 0

    @property
    def is_sliding(self) -> list[bool]:
        """False for each layer: no layer drops tokens, because a window is only a mask."""
        return [False] * len(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def new_layers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the layers that the first step created."""
        return [(layer.keys, layer.values) for layer in self.layers if layer.is_new]
