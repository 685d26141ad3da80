"""LoRA adapters: the adapter of each token, and loading weights to the device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch_xla.core.xla_model as xm
from vllm.lora.punica_wrapper.punica_base import PunicaWrapperBase

import torch_xla_ext
from torch_xla_ext.products import bgmv

if TYPE_CHECKING:
    from vllm.lora.models import LoRAModelManager


class Adapters(PunicaWrapperBase):
    """What the layers of a model with adapters call.

    Attributes:
        slots: int32 [num_tokens]; Batch.adapters of the step that is traced.
    """

    slots: torch.Tensor

    def __init__(
        self, max_num_batched_tokens: int, max_batches: int, device: torch.device, **kwargs: object
    ) -> None:
        """vLLM's own tensors of indices are not made: a step has its indices in its Batch."""

    def update_metadata(self, *args: object, **kwargs: object) -> None:
        pass

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: Sequence[torch.Tensor],
        lora_b_stacked: Sequence[torch.Tensor],
        lora_bias_stacked: None,
        scale: float,
        output_slices: Sequence[int],
        **kwargs: object,
    ) -> torch.Tensor:
        """`y` and, in each slice of its columns, the products of x with the token's adapter.

        Args:
            y: [num_tokens, sum of output_slices].
            x: [num_tokens, in_features].
            lora_a_stacked: for each slice [num_slots, 1, rank, in_features].
            lora_b_stacked: for each slice [num_slots, 1, slice, rank].
            lora_bias_stacked: None; checks.py refuses biases.
            scale: of the products.
            output_slices: columns of each slice.

        Returns:
            [num_tokens, sum of output_slices] of y's dtype; y stays as it is.
        """
        added = [
            bgmv(bgmv(x, a, self.slots), b, self.slots)
            for a, b in zip(lora_a_stacked, lora_b_stacked, strict=True)
        ]
        return y + torch.cat(added, dim=-1).to(y.dtype) * scale

    def _refuse(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError("LoRA adapters of embeddings and of lm_head")

    add_shrink = add_expand = add_lora_embedding = add_lora_logits = _refuse


def write_slots_whole(manager: LoRAModelManager) -> None:
    """Makes the manager write an adapter in one program, which is the same for all of them.

    vLLM's own set_lora writes a part of the size of the adapter's rank, at a place that is a number
    of the program: each other adapter would compile, for each layer. Here it runs on the host, on
    slots of zeros.
    """
    manager.activate_adapter = _Writer(manager, manager.activate_adapter)


class _Writer:
    """activate_adapter of a manager: writes an adapter to a slot, if it is in none."""

    def __init__(self, manager: LoRAModelManager, activate: Callable[[int], bool]) -> None:
        self._manager, self._activate = manager, activate
        self._write = torch_xla_ext.capture(self._write_stacks, check_python=False)
        for layer in manager.modules.values():
            layer.set_lora = _at_first_slot(layer.set_lora)
            layer.reset_lora = _at_first_slot(layer.reset_lora)

    def _stacks(self) -> list[torch.Tensor]:
        layers = self._manager.modules.values()
        return [s for layer in layers for s in (*layer.lora_a_stacked, *layer.lora_b_stacked)]

    def _write_stacks(self, slot: torch.Tensor, *values: torch.Tensor) -> None:
        for stack, value in zip(self._stacks(), values, strict=True):
            stack.index_copy_(0, slot, value)

    def __call__(self, name: int) -> bool:
        manager = self._manager
        device = self._stacks()[0].device
        with self._on_host() as values:
            if not self._activate(name):
                return False
        slot = torch.tensor([manager.lora_index_to_id.index(name)])
        self._write(*xm.send_cpu_data_to_device([slot, *values], device))
        return True

    @contextlib.contextmanager
    def _on_host(self) -> Iterator[list[torch.Tensor]]:
        """The layers have one slot of zeros each, on the host; gives them in _stacks' order."""
        layers = list(self._manager.modules.values())
        saved = [(layer.lora_a_stacked, layer.lora_b_stacked) for layer in layers]
        for layer, stacks in zip(layers, saved, strict=True):
            layer.lora_a_stacked, layer.lora_b_stacked = (
                tuple(torch.zeros(1, *s.shape[1:], dtype=s.dtype) for s in part) for part in stacks
            )
        try:
            yield self._stacks()
        finally:
            for layer, stacks in zip(layers, saved, strict=True):
                layer.lora_a_stacked, layer.lora_b_stacked = stacks


def _at_first_slot(function: Callable[..., None]) -> Callable[..., None]:
    return lambda _, *weights: function(0, *weights)
