"""Four ways to generate greedily on the XLA device, and PyTorch on the CPU, which they equal."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch_xla
import torch_xla_ext
from transformers import PreTrainedModel, StaticCache

Inputs = dict[str, torch.Tensor]  # of model.chat
Step = Callable[..., torch.Tensor]


def with_generate(model: PreTrainedModel, inputs: Inputs, count: int) -> torch.Tensor:
    """transformers' generate, on the model's device.

    Returns:
        The new tokens, [sequences, count], beyond the end of a text, too.
    """
    inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    tokens = model.generate(**inputs, max_new_tokens=count, do_sample=False, eos_token_id=None)
    return tokens[:, -count:].cpu()


def lazily(step: Step) -> Step:
    """Traces each step; its program is compiled once."""

    def run(*arguments: object) -> torch.Tensor:
        token = step(*arguments)
        torch_xla.sync()
        return token

    return run


def captured(step: Step) -> Step:
    """Traces the step once and replays it."""
    return torch_xla_ext.capture(step)


def under_openxla(step: Step) -> Step:
    """Compiles the step with torch.compile."""
    return torch.compile(step, backend="openxla")


WAYS = {"lazily": lazily, "captured": captured, "under openxla": under_openxla}


@torch.no_grad()
def with_loop(
    model: PreTrainedModel, inputs: Inputs, count: int, way: Callable[[Step], Step]
) -> torch.Tensor:
    """A loop of one's own with a static cache, whose step runs in a `way`.

    Returns:
        The new tokens, [sequences, count].
    """
    device = model.device
    sequences, length = inputs["input_ids"].shape
    room = length + count
    cache = StaticCache(config=model.config, max_cache_len=room)
    # What follows the prompt is attended as soon as it is there: the causal mask sees to that.
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, count), value=1).to(device)
    padding = (1 - inputs["attention_mask"]).sum(1, keepdim=True).to(device)

    def step(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The most likely token after `tokens`, [sequences, 1]."""
        logits = model(
            tokens,
            attention_mask=mask,
            position_ids=(positions - padding).clamp(min=0),
            cache_position=positions,
            past_key_values=cache,
            logits_to_keep=1,
        ).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    tokens = [step(inputs["input_ids"].to(device), torch.arange(length, device=device))]
    torch_xla.sync()
    step = way(step)
    for position in range(length, room - 1):
        tokens.append(step(tokens[-1], torch.tensor([position], device=device)))
    return torch.cat(tokens, dim=1).cpu()
