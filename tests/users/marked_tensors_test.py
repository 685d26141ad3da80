"""Programs with the results of mark_sharding, a subclass whose operations Python dispatches."""

import copy
import io
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


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("map_location", ["cpu", "xla", None])
def test_saved_tensors(weights_only: bool, map_location: str | None, mesh: xs.Mesh) -> None:
    x = xs.mark_sharding(VALUES.to("xla"), mesh, ("x", None))
    layer = torch.nn.Linear(4, 4).to("xla")
    layer.weight = torch.nn.Parameter(x * 2)
    state = {"x": x, "twice": [x, x], "layer": layer.state_dict(), "parameter": layer.weight}
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, map_location, weights_only=weights_only)
    assert loaded["twice"][0] is loaded["x"] and type(loaded["x"]) is torch.Tensor
    assert loaded["x"].device.type == (map_location or "xla")
    assert loaded["x"].tolist() == VALUES.tolist()
    assert isinstance(loaded["parameter"], torch.nn.Parameter)
    assert loaded["parameter"].requires_grad
    layer.load_state_dict({name: value + 1 for name, value in loaded["layer"].items()})
    assert layer.weight.tolist() == (VALUES * 2 + 1).tolist()


def test_a_file_is_as_large_as_that_of_other_tensors(mesh: xs.Mesh) -> None:
    x = torch.rand(64, 64).to("xla")
    files = io.BytesIO(), io.BytesIO()
    torch.save(x, files[0])
    torch.save(xs.mark_sharding(x, mesh, ("x", None)), files[1])
    assert len(files[0].getvalue()) == len(files[1].getvalue())


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        weight = distribute_tensor((VALUES / 8).to("xla"), DeviceMesh("xla", [0, 1]), [Shard(0)])
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.sin()


@pytest.mark.parametrize("compiled", ["nothing", "layer", "step"])
def test_a_distributed_parameter(compiled: str, mesh: xs.Mesh) -> None:
    torch._dynamo.reset()
    layer = Layer()
    expected = copy.deepcopy(layer.weight).cpu().detach().requires_grad_()
    of = torch.compile(layer, backend="openxla") if compiled == "layer" else layer
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (of(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run = torch.compile(step, backend="openxla") if compiled == "step" else step
    for i in range(1, 4):
        x = torch.linspace(-1, i, 8).view(2, 4)
        loss = ((x @ expected.sin()) ** 2).mean()
        (gradient,) = torch.autograd.grad(loss, [expected])
        torch.testing.assert_close(run(x.to("xla")).cpu().detach(), loss.detach())
        expected = (expected - 0.1 * gradient).detach().requires_grad_()
    torch.testing.assert_close(torch.as_tensor(layer.weight.cpu()), expected)


def test_a_captured_step_refuses_distributed_parameters(mesh: xs.Mesh) -> None:
    layer = Layer()
    step = torch_xla_ext.capture(lambda x: layer(x).sum().backward())
    with pytest.raises(torch_xla_ext.CaptureError, match=r"weight'\] is a result of mark_sharding"):
        step(VALUES.to("xla"))
    step = torch_xla_ext.capture(lambda weight: weight.sum().backward())
    with pytest.raises(torch_xla_ext.CaptureError, match="has the same sharding"):
        step(layer.weight)


def test_functions_that_xla_meshes_lack(mesh: xs.Mesh) -> None:
    devices = DeviceMesh("xla", [0, 1])
    placements, x = [Shard(0)], VALUES.to("xla")
    assert distribute_tensor(x, devices, placements).tolist() == VALUES.tolist()
    with pytest.raises(AttributeError, match="torch_xla has distribute_tensor and distribute_m"):
        DTensor.from_local(x, devices, placements)
    assert not hasattr(devices, "another") and copy.deepcopy(devices) == devices
