"""Operands of small steps, their values, and a small model."""

import torch
from torch import nn


def on_device(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to("xla")


def values(result: object) -> object:
    return torch.utils._pytree.tree_map(
        lambda x: x.detach().cpu() if isinstance(x, torch.Tensor) else x, result
    )


def check_equal(one: object, other: object) -> None:
    left, left_spec = torch.utils._pytree.tree_flatten(one)
    right, right_spec = torch.utils._pytree.tree_flatten(other)
    assert left_spec == right_spec
    for a, b in zip(left, right, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        else:
            assert a == b


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.power = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for layer in self.layers:
            x = layer(x).tanh()
        return x**self.power


def make_model() -> Model:
    torch.manual_seed(1)
    return Model().to("xla")
