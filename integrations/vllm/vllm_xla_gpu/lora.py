"""LoRA adapters: apply each token's adapter, and load adapters to the device."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch.nn import functional
from vllm.lora.punica_wrapper.punica_base import PunicaWrapperBase

import torch_xla_ext
from vllm_xla_gpu.deferred import Columns, PendingSum
from vllm_xla_gpu.processes import fingerprint
from vllm_xla_gpu.tensor_parallel import Devices, adapter_dimensions, stacks

if TYPE_CHECKING:
    from vllm.lora.models import LoRAModelManager


class Adapters(PunicaWrapperBase):
    """Adapters, which the layers of a model call.

    Attributes:
        slots: int32 [num_tokens]; Batch.adapters of the step that is being traced.
    """

    slots: torch.Tensor

    def __init__(
        self, max_num_batched_tokens: int, max_batches: int, device: torch.device, **kwargs: object
    ) -> None:
        """Initialize without vLLM's tensors of indices: a step has its indices in its Batch."""

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
        """Add the products of x with each token's adapter to slices of the columns of `y`.

        Args:
            y: [num_tokens, sum of output_slices].
            x: [num_tokens, in_features].
            lora_a_stacked: for each slice [num_slots, 1, rank, in_features].
            lora_b_stacked: for each slice [num_slots, 1, slice, rank].
            lora_bias_stacked: None; checks.py refuses biases.
            scale: the factor of the products.
            output_slices: the number of columns in each slice.

        Returns:
            [num_tokens, sum of output_slices] of y's dtype; y is not changed.
        """
        products = functools.partial(_products, scale=scale)
        if isinstance(y, PendingSum):
            ((a,), (b,)) = lora_a_stacked, lora_b_stacked
            return y.plus_product(products, a.flatten(0, 2), _side_by_side(b), self._is_own(a))
        # Some models' adapters have a single A for all slices.
        of_slices = lora_a_stacked * (len(lora_b_stacked) // len(lora_a_stacked))
        added = [
            products(x, a.flatten(0, 2), _side_by_side(b), self._is_own(a))
            for a, b in zip(of_slices, lora_b_stacked, strict=True)
        ]
        return y.plus(added) if isinstance(y, Columns) else y + torch.cat(added, dim=-1)

    def _is_own(self, a: torch.Tensor) -> torch.Tensor:
        """Return which rows of A are for a token's adapter, bool [num_tokens, num_slots * rank]."""
        slots = torch.arange(a.shape[0], device=a.device)
        return (self.slots[:, None] == slots).repeat_interleave(a.shape[2], dim=1)

    def _refuse(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(
            "vllm-xla-gpu does not support LoRA adapters of embeddings and of lm_head"
        )

    add_shrink = add_expand = add_lora_embedding = add_lora_logits = _refuse


def _products(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, is_own: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return the product of x with both matrices of each token's adapter.

    Two products read all adapters' matrices once: their ranks are concatenated.

    Args:
        x: [num_tokens, in_features].
        a: [num_slots * rank, in_features].
        b: [out_features, num_slots * rank].
        is_own: bool [num_tokens, num_slots * rank].
        scale: the factor of the result.

    Returns:
        [num_tokens, out_features] of x's dtype; zero for a token without an adapter.
    """
    inner = functional.linear(x, a.to(x.dtype)).masked_fill(~is_own, 0)
    return functional.linear(inner, b.to(x.dtype)) * scale


def _side_by_side(b: torch.Tensor) -> torch.Tensor:
    """Reshape [num_slots, 1, out_features, rank] to [out_features, num_slots * rank]."""
    return b[:, 0].transpose(0, 1).flatten(1)


def write_slots_whole(manager: LoRAModelManager, devices: Devices | None) -> None:
    """Make the manager write any adapter with the same program.

    vLLM's own set_lora writes a slice of the adapter's rank at an index that is a constant of the
    program, so each new adapter would compile a program for each layer. Here set_lora runs on the
    host, on slots of zeros.

    Args:
        manager: the manager of a model that is not on `devices` yet.
        devices: the devices that will share the model, if there are several.
    """
    manager.activate_adapter = _Writer(manager, devices)


class _Writer:
    """Replaces a manager's activate_adapter: writes an adapter to a slot if it is in none."""

    def __init__(self, manager: LoRAModelManager, devices: Devices | None) -> None:
        self._manager, self._devices = manager, devices
        self._activate = manager.activate_adapter
        self._layers = list(manager.modules.values())
        # The matrices to which set_lora writes. On several devices there may be more of them, for
        # the devices' shards.
        self._slots = [
            [torch.empty(1, *stack.shape[1:], dtype=stack.dtype, device="meta") for stack in part]
            for layer in self._layers
            for part in stacks(layer)
        ]
        self._write = torch_xla_ext.capture(self._write_stacks, check_python=False)
        for layer in self._layers:
            layer.set_lora = _at_first_slot(layer.set_lora)
            layer.reset_lora = _at_first_slot(layer.reset_lora)

    def _parts(self) -> list[tuple[torch.Tensor, ...]]:
        """Return A and B of each layer."""
        return [part for layer in self._layers for part in stacks(layer)]

    def _write_stacks(self, slot: torch.Tensor, *values: torch.Tensor) -> None:
        for stack, value in zip(itertools.chain(*self._parts()), values, strict=True):
            stack.index_copy_(0, slot, value)

    def __call__(self, name: int) -> bool:
        manager = self._manager
        if name in manager.lora_index_to_id:  # vLLM asks at each step
            return self._activate(name)
        values: list[torch.Tensor] = []
        with self._on_host() as written:
            if not self._activate(name):
                return False
        for part, matrices in zip(self._parts(), written, strict=True):
            if len(part) == len(matrices):
                values += matrices
            else:
                (whole,) = matrices
                values += whole.split([stack.shape[2] for stack in part], dim=2)
        if self._devices is not None and self._devices.peers is not None:
            self._devices.peers.note(fingerprint(values).encode())
        slot = torch.tensor([manager.lora_index_to_id.index(name)])
        self._write(*self._send(slot, values))
        return True

    def _send(self, slot: torch.Tensor, values: list[torch.Tensor]) -> list[torch.Tensor]:
        if self._devices is None:
            return xm.send_cpu_data_to_device([slot, *values], torch_xla.device())
        dims = [
            dim
            for layer in self._layers
            for part, dim in zip(stacks(layer), adapter_dimensions(layer), strict=True)
            for _ in part
        ]
        return self._devices.send([slot, *values], [None, *dims])

    @contextlib.contextmanager
    def _on_host(self) -> Iterator[list[tuple[torch.Tensor, ...]]]:
        """In a block, give each layer one slot of zeros on the host, and yield the slots."""
        saved = [stacks(layer) for layer in self._layers]
        slots = iter([[torch.zeros_like(s, device="cpu") for s in part] for part in self._slots])
        for layer in self._layers:
            layer.lora_a_stacked, layer.lora_b_stacked = next(slots), next(slots)
        try:
            yield self._parts()
        finally:
            for layer, stacked in zip(self._layers, saved, strict=True):
                layer.lora_a_stacked, layer.lora_b_stacked = stacked


def _at_first_slot(function: Callable[..., None]) -> Callable[..., None]:
    return lambda _, *weights: function(0, *weights)
