"""The captured step of `generate`: a model's forward pass for some tokens."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.utils import _pytree as pytree
from transformers.generation.utils import GenerationMixin

from torch_xla_huggingface.cache import StepCache

# A model's name of the cache: `cache` in 5.24, which still accepts the earlier name.
_PARAMETERS = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE = "cache" if "cache" in _PARAMETERS else "past_key_values"


def step(
    model: Any,
    tensors: dict[str, torch.Tensor],
    options: dict[str, Any],
    layers: list[tuple[torch.Tensor, torch.Tensor]],
    mask: torch.Tensor | None,
    size: int,
    results: tuple[torch.Tensor, ...] | None,
) -> Any:
    """Run a model for some tokens.

    Args:
        tensors: the model's inputs by name, and `positions`, those of the tokens in the cache,
            unless `cache_position` is an input; `columns`, the attention mask of the tokens;
            `last`, the position among the tokens whose logits are needed; `beams`, the sequence
            that each sequence continues; `repeated`, each sequence's next token, or -1.
        options: the model's other arguments.
        layers: the tensors of a GenerationCache, which are written in place; empty before the first
            tokens.
        mask: the mask of a GenerationCache, which is written in place.
        size: the size of a GenerationCache.
        results: tensors that get the logits of the last token, [batch, 1, vocabulary], the
            likeliest tokens, [batch], and the next tokens, [batch, 1], which are the likeliest
            unless `repeated` gives other ones; None in the first step.

    Returns:
        In the first step, such tensors, new layers and a new mask; later nothing.
    """
    tensors = dict(tensors)
    positions, repeated = tensors.pop("positions", None), tensors.pop("repeated")
    if positions is None:
        positions = tensors["cache_position"]
    columns, last, beams = (tensors.pop(name, None) for name in ("columns", "last", "beams"))
    if beams is not None:
        for tensor in pytree.tree_leaves(layers):
            tensor.copy_(tensor.index_select(0, beams))
    if columns is not None:
        if not layers:
            mask = columns.new_zeros(columns.shape[0], size)
        mask.index_copy_(1, positions, columns)
        tensors["attention_mask"] = mask if layers else columns
    cache = StepCache(layers, size, positions)
    outputs = model.forward(**tensors, **options, **{CACHE: cache})
    logits = outputs.logits
    logits = logits[:, -1:] if last is None else logits.index_select(1, last)
    best = logits[:, -1].argmax(-1)
    tokens = torch.where(repeated < 0, best, repeated)[:, None]
    if results is None:
        return logits, best, tokens, cache.new_layers(), mask
    for result, value in zip(results, (logits, best, tokens), strict=True):
        result.copy_(value)
    return None
