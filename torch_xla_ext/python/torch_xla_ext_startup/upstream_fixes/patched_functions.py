"""Undo or repair torch_xla's replacements of PyTorch functions, which affect all devices.

torch_xla replaces torch.nn.GRU by a loop that XLA compiles once for all steps. The loop supports
neither other devices' tensors, packed sequences nor Dynamo; for these, PyTorch's layer runs here.

torch_xla replaces torch.nn.utils.clip_grad_norm_ by a copy of an older version, which refuses
foreach=True. Here PyTorch's function is restored.

torch.norm of an XLA tensor refuses a dtype without `p`, because PyTorch's Python code does not know
XLA tensors. Here the default is the 2-norm of all elements, as for other tensors.
"""

import functools
import types
from collections.abc import Callable, Iterable

import torch
from torch.nn.modules import rnn
from torch_xla.experimental.gru import GRU


def gru(original: Callable[..., object]) -> Callable[..., object]:
    """Replace torch_xla's GRU.forward."""

    @functools.wraps(original)
    def forward(
        self: GRU, input: torch.Tensor | rnn.PackedSequence, hx: torch.Tensor | None = None
    ) -> tuple[torch.Tensor | rnn.PackedSequence, torch.Tensor]:
        is_on_xla = isinstance(input, torch.Tensor) and input.device.type == "xla"
        if torch.compiler.is_compiling() or not is_on_xla:
            return rnn.GRU.forward(self, input, hx)
        return original(self, input, hx)

    return forward


def clip_grad_norm(_: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Replace torch.nn.utils.clip_grad_norm_."""
    upstream = torch.nn.utils.clip_grad.clip_grad_norm_

    @functools.wraps(upstream)
    def clip_grad_norm_(
        parameters: torch.Tensor | Iterable[torch.Tensor],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if any(parameter.device.type == "xla" for parameter in parameters):
            foreach = False  # XLA makes such kernels of the program
        total = upstream(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        if parameters and all(parameter.grad is None for parameter in parameters):
            total = total.to(parameters[0].device)  # PyTorch's 0 is on the CPU
        return total

    return clip_grad_norm_


def norm(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Replace torch.norm, which Tensor.norm calls."""

    @functools.wraps(original)
    def norm(
        input: torch.Tensor,
        p: float | str | None = "fro",
        dim: int | list[int] | None = None,
        keepdim: bool = False,
        out: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        if dtype is not None and p == "fro" and input.device.type == "xla":
            p = 2
        return original(input, p, dim, keepdim, out, dtype)

    # TorchScript compiles the original's source, and looks up its names in this function's globals.
    scriptable = types.FunctionType(
        norm.__code__, original.__globals__, "norm", norm.__defaults__, norm.__closure__
    )
    return functools.wraps(original)(scriptable)
