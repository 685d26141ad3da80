"""LoRA adapters: which of them each token has, and how their weights come to the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch_xla
from torch import nn
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.lora.punica_wrapper.punica_base import PunicaWrapperBase

from torch_xla_ext.products import bgmv


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


def write_slots_whole(model: nn.Module) -> None:
    """Makes the model's layers write an adapter in one program for all ranks and slots.

    vLLM's own set_lora writes a part of the size of the adapter's rank, at a place that is a number
    of the program: each other adapter would compile. Here it runs on the host, on a slot of zeros.
    """
    for layer in model.modules():
        if isinstance(layer, BaseLayerWithLoRA):
            layer.set_lora = _Writer(layer, layer.set_lora)
            layer.reset_lora = _Writer(layer, layer.reset_lora)


class _Writer:
    """set_lora or reset_lora of a layer."""

    def __init__(self, layer: BaseLayerWithLoRA, function: object) -> None:
        self._layer, self._function = layer, function

    def __call__(self, index: int, *weights: object) -> None:
        """Writes an adapter's weights into slot `index`, or zeros."""
        layer = self._layer
        stacks = layer.lora_a_stacked, layer.lora_b_stacked
        if stacks[0][0].device.type != "xla":  # called by the other one of the two
            self._function(index, *weights)
            return
        on_host = [[torch.zeros(1, *s.shape[1:], dtype=s.dtype) for s in part] for part in stacks]
        layer.lora_a_stacked, layer.lora_b_stacked = on_host
        try:
            self._function(0, *weights)
        finally:
            layer.lora_a_stacked, layer.lora_b_stacked = stacks
        slot = torch.tensor([index]).to(stacks[0][0].device)
        for part, values in zip(stacks, on_host, strict=True):
            for stack, value in zip(part, values, strict=True):
                stack.index_copy_(0, slot, value.to(stack.device))
        torch_xla.sync()
