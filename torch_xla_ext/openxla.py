"""The results of ``torch.compile(backend="openxla")``, each where it belongs.

torch_xla 2.8's bridge to Dynamo traces a function once, and has to know which tensors the compiled
program returns. It takes two tensors with one value for one result, where the program returns both
(``return y, y.clone()``): the results behind them are shifted by one. And it expects a result for a
tensor whose value is another input's buffer (``state.copy_(x)``, ``x.detach()``), where the program
has none: a call fails. Here every result is a tensor of its own, which the program computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch


def replace(module: ModuleType) -> None:
    """Changes torch_xla._dynamo.dynamo_bridge, once."""
    if module.Deduper.dedup is _dedup:
        return
    module.Deduper.dedup = _dedup
    stock = module.SpecialReturnHandler.__init__

    def __init__(  # noqa: N807
        self: object,
        inputs: Sequence[torch.Tensor],
        outputs: list[torch.Tensor],
        is_updated: Sequence[bool],
        constants: list[tuple[int, float]],
    ) -> None:
        # The caller goes on with its list: it hashes and compiles what is there.
        outputs[:] = computed(inputs, outputs, is_updated)
        stock(self, inputs, outputs, is_updated, constants)
        # Only their positions are needed from here on, and they would keep buffers alive.
        self.trace_inputs = self.trace_outputs = self.deduped_trace_outputs = None

    module.SpecialReturnHandler.__init__ = __init__


def computed(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], is_updated: Sequence[bool]
) -> list[torch.Tensor]:
    """The outputs, each that is not an unchanged input as a clone, which a program returns.

    torch_xla computes a clone also if its value is an input's buffer, so that the two can be
    written to and donated apart. A clone of what is computed anyway costs no operation.
    """
    unchanged = {id(t): t for t, updated in zip(inputs, is_updated, strict=True) if not updated}
    made: dict[int, torch.Tensor] = dict(unchanged)
    for output in outputs:
        if id(output) not in made:
            made[id(output)] = torch.clone(output)
    return [made[id(output)] for output in outputs]


def _dedup(self: object, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Deduper.dedup: as the program does, which returns each tensor once."""
    first: dict[int, int] = {}
    unique = []
    self.permute_for_orig = []
    for tensor in tensors:
        if id(tensor) not in first:
            first[id(tensor)] = len(unique)
            unique.append(tensor)
        self.permute_for_orig.append(first[id(tensor)])
    return unique
