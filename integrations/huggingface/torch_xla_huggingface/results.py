"""A step's results, in memory that later steps use again.

XLA runs a step as a CUDA graph, which it updates if the step's memory has moved. If results were
made and freed for each token, the memory of the step's temporary values would move, too.
"""

from __future__ import annotations

import dataclasses
import weakref

import torch


@dataclasses.dataclass(eq=False)
class Results:
    """The logits and tokens of a step, on the device.

    As long as this object exists, no other step writes to its tensors.

    Attributes:
        logits: [batch, 1, vocabulary].
        best: [batch], the likeliest tokens.
        tokens: [batch, 1], the next tokens.
    """

    logits: torch.Tensor
    best: torch.Tensor
    tokens: torch.Tensor

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.logits, self.best, self.tokens


class ResultMemory:
    """The memory of the results of one call's steps.

    Args:
        first: the results of the first step.
    """

    def __init__(self, first: Results) -> None:
        self._places = [(weakref.ref(first), first.tensors())]

    def __reduce__(self) -> tuple:
        _, tensors = self._places[0]
        return ResultMemory, (Results(*tensors),)

    def take(self) -> Results:
        """Return results that are used nowhere else, to write to."""
        for i, (user, _) in enumerate(self._places):
            if user() is None:
                _, tensors = self._places.pop(i)
                break
        else:
            _, like = self._places[0]
            tensors = tuple(torch.zeros(t.shape, dtype=t.dtype).to(t.device) for t in like)
        results = Results(*tensors)
        self._places.append((weakref.ref(results), tensors))
        return results
