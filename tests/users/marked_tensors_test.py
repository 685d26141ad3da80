"""Programs with the results of mark_sharding, a subclass whose operations Python dispatches."""

import copy
import os
import pickle
from collections.abc import Callable

import pytest
import torch
import torch_xla.distributed.spmd as xs
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import torch_xla_ext

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


ON_THE_HOST = {
    "numpy": lambda x: torch.from_numpy(x.cpu().numpy()),
    "numpy of a result": lambda x: torch.from_numpy((x + 1).detach().cpu().numpy()),
    "tolist": lambda x: torch.tensor(x.tolist()),
    "tolist of a result": lambda x: torch.tensor((x * 2).tolist()),
    "format": lambda x: torch.tensor(float(f"{x.sum():.2f}")),
    "shared memory": lambda x: x.cpu().share_memory_(),
    "deepcopy": lambda x: copy.deepcopy(x) + 1,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "a parameter": lambda x: trained(torch.nn.Parameter(x)),
    "compiled": lambda x: compiled(x, lambda x: torch.compile(x, backend="openxla")),
    "captured": lambda x: compiled(x, torch_xla_ext.capture),
}


def trained(parameter: torch.nn.Parameter) -> torch.Tensor:
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    for _ in range(2):
        (parameter * parameter).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameter.detach()


def compiled(x: torch.Tensor, way: Callable[..., Callable]) -> torch.Tensor:
    if x.device.type == "cpu":
        return x * 2
    torch._dynamo.reset()
    function = way(lambda x: x * 2)
    return [function(x) for _ in range(3)][-1]


@pytest.mark.parametrize("name", ON_THE_HOST)
def test_values_on_the_host(name: str, mesh: xs.Mesh) -> None:
    """PyTorch refuses numpy(), tolist() and formatting of a subclass, which results were, too."""
    function = ON_THE_HOST[name]
    x = xs.mark_sharding(VALUES.to("xla"), mesh, ("x", None))
    torch.testing.assert_close(torch.as_tensor(function(x).cpu()), function(VALUES.clone()))


def test_functions_that_xla_meshes_lack(mesh: xs.Mesh) -> None:
    devices = DeviceMesh("xla", [0, 1])
    placements, x = [Shard(0)], VALUES.to("xla")
    assert distribute_tensor(x, devices, placements).tolist() == VALUES.tolist()
    with pytest.raises(AttributeError, match="torch_xla has distribute_tensor and distribute_m"):
        DTensor.from_local(x, devices, placements)
    assert not hasattr(devices, "another") and copy.deepcopy(devices) == devices
