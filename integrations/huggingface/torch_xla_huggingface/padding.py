"""Look for padding in a batch with fewer reads from the device, for which the host waits.

Attention without a mask is faster. So in each forward pass, transformers reads whether a padding
mask is all ones; transformers 5 reads a mask with padding twice. Here each mask is read at most
once. After a mask with padding, later masks of the same shape are used without reading them, which
is right for any mask.

Without a mask, some models read tokens to decide whether to warn about padding. Here each model
does so only for its first batch.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

import torch
import torch_xla


class _OnHost:
    """A mask whose values are read once, when something needs them."""

    device = torch.device("cpu")

    def __init__(self, mask: torch.Tensor) -> None:
        self._mask = mask
        self.shape = mask.shape

    @functools.cached_property
    def _values(self) -> torch.Tensor:
        return self._mask.cpu()

    def __getattr__(self, name: str) -> object:
        return getattr(self._values, name)

    def __getitem__(self, index: object) -> torch.Tensor:
        return self._values[index]


def ignores(original: Callable[..., object]) -> Callable[..., object]:
    """Replace a function of transformers.masking_utils that returns whether to leave out a mask."""
    with_padding: set[tuple] = set()

    @functools.wraps(original)
    def ignores(padding_mask: torch.Tensor | None, *sizes: object, **options: object) -> object:
        if not _is_lazy(padding_mask):
            return original(padding_mask, *sizes, **options)
        key = (padding_mask.shape, *(size for size in sizes if isinstance(size, int)))
        if key in with_padding:
            return False
        result = bool(original(_OnHost(padding_mask), *sizes, **options))
        if not result:
            with_padding.add(key)
        return result

    return ignores


def warns_of_padding(original: Callable[..., None]) -> Callable[..., None]:
    """Replace PreTrainedModel.warn_if_padding_and_no_attention_mask."""
    checked: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    @functools.wraps(original)
    def warns_of_padding(
        self: torch.nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        if not _is_lazy(input_ids):
            original(self, input_ids, attention_mask)
        elif attention_mask is None and self not in checked:
            original(self, input_ids, attention_mask)
            checked.add(self)

    return warns_of_padding


def _is_lazy(tensor: torch.Tensor | None) -> bool:
    """Return whether a tensor has values on the device, unlike one that PyTorch traces with."""
    return (
        isinstance(tensor, torch.Tensor)
        and torch_xla._XLAC._xla_capture_is_supported(tensor)
        and not torch.compiler.is_compiling()
    )
