"""Start the next token's forward pass before transformers' loop has chosen the token.

The loop waits for logits and chooses on the host, which would leave the device idle. A greedy loop
nearly always chooses the likeliest token, which the device has computed. If it does not, the pass
runs again with the right token, and overwrites the same positions of the cache.
"""

import dataclasses
from collections.abc import Mapping

import torch

from torch_xla_huggingface.results import Results

_FREE_MISSES = 2  # misses that are allowed without any hits
_HITS_OF_A_MISS = 4


@dataclasses.dataclass
class Pass:
    """A forward pass that was started.

    Attributes:
        inputs: the model's inputs by name: input_ids on the device, the others on the host.
        options: the model's arguments that are not tensors.
        before: the results of the pass before, among them input_ids.
        results: the results, which may not be computed yet.
    """

    inputs: dict[str, torch.Tensor]
    options: dict[str, object]
    before: Results
    results: Results


class Ahead:
    """The state of one greedy call of `generate` without the caller's own code in the loop.

    Args:
        last: the maximum number of positions in the text.
        keeps_logits: whether `generate` returns logits.

    Attributes:
        hits, misses: how many started passes were needed, and how many were not.
        started: the started pass that has been neither taken nor dropped.
    """

    def __init__(self, last: int, *, keeps_logits: bool) -> None:
        self._last, self.keeps_logits = last, keeps_logits
        self._checked: set[object] = set()
        self.misses = self.hits = 0
        self.started: Pass | None = None

    def has_checked(self, step: object) -> bool:
        """Return whether this step has run in this call, so that its inputs are unchanged."""
        known = step in self._checked
        self._checked.add(step)
        return known

    def can_start(self, position: int, size: int) -> bool:
        """Return whether the pass for the token at `position` is likely to be needed.

        Args:
            size: the number of positions in the cache.
        """
        likely = self.misses <= _FREE_MISSES + self.hits // _HITS_OF_A_MISS
        return likely and position < min(self._last - 1, size)

    def take(
        self,
        tensors: Mapping[str, torch.Tensor],
        options: Mapping[str, object],
        repeated: torch.Tensor,
    ) -> Results | None:
        """Return the results of the started pass, if it is the requested one.

        Args:
            tensors: the requested inputs, on the host.
            options: the requested inputs that are not tensors.
            repeated: [batch], on the host: filled with the tokens of sequences that differ from the
                expected ones.
        """
        started, self.started = self.started, None
        if started is None:
            return None
        alike = started.options == options and started.inputs.keys() == tensors.keys()
        differ = {
            name: value.cpu() != tensors[name] for name, value in started.inputs.items() if alike
        }
        if alike and not any(bool(value.any()) for value in differ.values()):
            self.hits += 1
            return started.results
        self.misses += 1
        if alike:  # an ended sequence gets the same token repeatedly
            other = differ["input_ids"][:, 0]
            repeated[other] = tensors["input_ids"][other, 0]
        return None


def next_inputs(
    tensors: Mapping[str, torch.Tensor], tokens: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the inputs, with these tokens, of the pass after the one with `tensors`."""
    following = {
        "input_ids": lambda _: tokens,
        "position_ids": lambda value: value + 1,
        "cache_position": lambda value: value + 1,
        "positions": lambda value: value + 1,
        "columns": torch.ones_like,
    }
    return {
        name: following.get(name, lambda value: value)(value) for name, value in tensors.items()
    }
