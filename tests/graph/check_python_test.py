"""capture(check_python=False): arguments and tensors are compared, Python objects are not."""

import pytest
import torch
import torch_xla
from testing.steps import on_device

from torch_xla_ext import CaptureError, capture


class Server:
    """Finds its tensors in places that capture does not compare, and counts its calls."""

    calls = 0

    def __init__(self) -> None:
        self.weight, self.cache = on_device(4), torch.zeros(4, device="xla")
        self.find = iter(self.weight for _ in range(100))

    def step(self, x: torch.Tensor) -> torch.Tensor:
        global _context
        _context = self
        self.calls += 1
        self.cache.add_(x * next(self.find))
        return self.cache * 2


_context: Server | None = None


def test_without_a_look_at_python() -> None:
    checked = capture(Server().step)
    checked(on_device(4))
    with pytest.raises(CaptureError, match="at each call, which a replay would not do"):
        checked(on_device(4))
    server = Server()
    step = capture(server.step, check_python=False)
    expected = torch.zeros(4)
    weight = server.weight.cpu()
    for seed in range(4):
        x = on_device(4, seed=seed)
        expected += x.cpu() * weight
        torch.testing.assert_close(step(x).cpu(), expected * 2)
    torch.testing.assert_close(server.cache.cpu(), expected)
    assert server.calls == step.num_captures == 1
    server.weight.copy_(weight + 1)  # tensors are looked at
    torch_xla.sync()
    torch.testing.assert_close(step(x).cpu(), (expected + x.cpu() * (weight + 1)) * 2)
    assert step.num_captures == 1
    step(on_device(1))
    assert step.num_captures == 2


weight: torch.Tensor | None = None


def test_globals_with_the_name_of_an_attribute() -> None:
    """`loss = step(batch)` in a script whose step reads `output.loss`."""
    global weight
    module, x = torch.nn.Linear(3, 2).to("xla"), torch.arange(3.0, device="xla")
    captured = capture(lambda x: (module.weight * x).detach())
    for _ in range(4):
        weight = captured(x)
        torch.testing.assert_close(weight.cpu(), (module.weight * x).detach().cpu())
    assert captured.num_captures == 1
