"""Functions of transformers that are replaced without importing more of it.

transformers may be imported before torch_xla, and torch_xla in the middle of that: accelerate does
so.
"""

from __future__ import annotations

import contextlib
import functools
from types import ModuleType

import torch


def replace_generate(module: ModuleType) -> None:
    """Changes transformers.generation.utils; the first call of `generate` imports generate.py."""
    kind = module.GenerationMixin
    stock = kind.generate

    @functools.wraps(stock)
    def generate(self: object, *args: object, **options: object) -> object:
        kind.generate = stock
        with contextlib.suppress(ImportError):  # a transformers without what our module imports
            from torch_xla_huggingface import generate as own

            own.replace(module)
        return kind.generate(self, *args, **options)

    kind.generate = generate


def replace_use_gqa(module: ModuleType) -> None:
    """Gives attention the heads of keys as they are, where transformers repeats them for CUDA."""
    stock = module.use_gqa_in_sdpa

    @functools.wraps(stock)
    def use_gqa_in_sdpa(attention_mask: torch.Tensor | None, key: torch.Tensor) -> bool:
        if isinstance(key, torch.Tensor) and key.device.type == "xla":
            return True
        return stock(attention_mask, key)

    module.use_gqa_in_sdpa = use_gqa_in_sdpa
