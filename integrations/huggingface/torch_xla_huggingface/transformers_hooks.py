"""Replacements for functions of transformers that do not import more of transformers.

transformers may be imported before torch_xla, and accelerate may import torch_xla during that
import.
"""

import functools
import logging
import threading
from collections.abc import Callable

import torch


def generate(original: Callable[..., object]) -> Callable[..., object]:
    """Replace GenerationMixin.generate; its first call imports generate.py."""

    @functools.cache
    def own() -> Callable[..., object]:
        try:
            from torch_xla_huggingface import generate
        except ImportError as error:
            # Otherwise an unsupported version would only be slow, without a warning.
            logging.getLogger("torch_xla_ext.generate").warning(
                'generate compiles a program for each token: %s; pip install "transformers>=4.55,'
                '<5.25"',
                error,
            )
            return original
        return generate.replacement(original)

    @functools.wraps(original)
    def generate(self: object, *args: object, **options: object) -> object:
        return own()(self, *args, **options)

    return generate


def use_gqa_in_sdpa(original: Callable[..., bool]) -> Callable[..., bool]:
    """Pass kv heads to attention unrepeated, where transformers would repeat them."""

    @functools.wraps(original)
    def use_gqa_in_sdpa(
        attention_mask: torch.Tensor | None, key: torch.Tensor, *value: torch.Tensor
    ) -> bool:
        if isinstance(key, torch.Tensor) and key.device.type == "xla":
            return True
        return original(attention_mask, key, *value)  # 5.24 passes the value, too

    return use_gqa_in_sdpa


class _Preparing(threading.local):
    """The model whose inputs this thread prepares on the host, for generate.py to move."""

    model: object = None


_preparing = _Preparing()


def prepare_inputs(original: Callable[..., dict]) -> Callable[..., dict]:
    """Leave a model's inputs on the host; newer versions move them to the model's device."""

    @functools.wraps(original)
    def prepare_inputs_for_generation(self: object, *args: object, **options: object) -> dict:
        cache = options.get("cache", options.get("past_key_values"))
        before = _preparing.model
        _preparing.model = self if getattr(cache, "inputs_are_on_host", False) else before
        try:
            return original(self, *args, **options)
        finally:
            _preparing.model = before

    return prepare_inputs_for_generation


def device(original: property) -> property:
    """Return the host as the device of a model whose inputs are being prepared there."""

    def device(self: object) -> torch.device:
        return torch.device("cpu") if self is _preparing.model else original.fget(self)

    return property(device, doc=original.__doc__)
