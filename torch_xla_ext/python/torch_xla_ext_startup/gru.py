"""torch.nn.GRU on any device, and under torch.compile.

``import torch_xla`` replaces torch.nn.GRU by a loop that XLA compiles once for all steps. The loop
accepts XLA tensors only, no packed sequences, and no tracing by Dynamo. Everything else is
PyTorch's layer here.
"""

from __future__ import annotations

import functools

import torch
from torch.nn.modules import rnn
from torch_xla.experimental.gru import GRU


def replace() -> None:
    """Changes torch_xla's layer."""
    loop = GRU.forward

    @functools.wraps(loop)
    def forward(
        self: GRU,
        input: torch.Tensor | rnn.PackedSequence,
        hx: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor | rnn.PackedSequence, torch.Tensor]:
        if (
            torch.compiler.is_compiling()
            or not isinstance(input, torch.Tensor)
            or input.device.type != "xla"
        ):
            return rnn.GRU.forward(self, input, hx)
        return loop(self, input, hx)

    GRU.forward = forward
