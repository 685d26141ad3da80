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
    def use_gqa_in_sdpa(attention_mask: torch.Tensor | None, key: torch.Tensor) -> bool:
        if isinstance(key, torch.Tensor) and key.device.type == "xla":
            return True
        return original(attention_mask, key)

    return use_gqa_in_sdpa
