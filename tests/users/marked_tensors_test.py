"""Programs with the results of mark_sharding, a subclass whose operations Python dispatches."""

import os
from collections.abc import Callable

import pytest
import torch
import torch_xla.distributed.spmd as xs

os.environ.setdefault("CPU_NUM_DEVICES", "2")  # before the first device is made

VALUES = torch.arange(16.0).view(4, 4)


def written(x: torch.Tensor) -> torch.Tensor:
    x[1] = 7
    x.view(-1)[5:7].add_(1)
    return x


def gradient(x: torch.Tensor) -> torch.Tensor:
    weight = torch.ones(4, 4, device=x.device).requires_grad_()
    (x @ weight).sin().sum().backward()
    return weight.grad


PROGRAMS = {
    "linear": lambda x: torch.nn.functional.linear(x, x + 1),
    "linear with other tensors": lambda x: torch.nn.functional.linear(
        x, torch.ones(3, 4, device=x.device), torch.ones(3, device=x.device)
    ),
    "t": lambda x: x.t() + 1,
    "a row": lambda x: x[1],
    "columns": lambda x: x[:, 1:3],
    "indices": lambda x: x[torch.tensor([0, 2], device=x.device)],
    "split": lambda x: x.split(2)[1],
    "a product": lambda x: x @ x.t(),
    "with another tensor": lambda x: torch.ones(4, 4, device=x.device) @ x,
    "reshape": lambda x: x.reshape(2, 8).sum(0),
    "writes": written,
    "gradient": gradient,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, mesh: xs.Mesh) -> None:
    function: Callable[[torch.Tensor], torch.Tensor] = PROGRAMS[name]
    marked = xs.mark_sharding(VALUES.to("xla"), mesh, ("x", None))
    result = torch.as_tensor(function(marked).cpu())
    torch.testing.assert_close(result, function(VALUES.clone()), check_stride=False)
