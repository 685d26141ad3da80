"""Functions of transformers that are replaced without importing more of it.

transformers may be imported before torch_xla, and while that happens accelerate may import
torch_xla.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch


def generate(original: Callable[..., object]) -> Callable[..., object]:
    """Replace GenerationMixin.generate; the first call imports generate.py."""

    @functools.cache
    def own() -> Callable[..., object]:
        try:
            from torch_xla_huggingface import generate
        except ImportError:  # this transformers lacks what our module imports
            return original
        return generate.replacement(original)

    @functools.wraps(original)
    def generate(self: object, *args: object, **options: object) -> object:
        return own()(self, *args, **options)

    return generate


def use_gqa_in_sdpa(original: Callable[..., bool]) -> Callable[..., bool]:
    """Pass kv heads to attention as they are, where transformers would repeat them."""

    @functools.wraps(original)
    def use_gqa_in_sdpa(
        attention_mask: torch.Tensor | None, key: torch.Tensor, *value: torch.Tensor
    ) -> bool:
        if isinstance(key, torch.Tensor) and key.device.type == "xla":
            return True
        return original(attention_mask, key, *value)  # 5.24 passes the value, too

    return use_gqa_in_sdpa


def move_to_device(original: Callable[..., object]) -> Callable[..., object]:
    """Leave the inputs of a forward pass where they are, if generate.py moves them."""

    @functools.wraps(original)
    def move_to_device(value: object, device: torch.device) -> object:
        cache = value.get("cache") if isinstance(value, dict) else None
        if getattr(cache, "inputs_are_on_host", False):
            return value
        return original(value, device)

    return move_to_device
