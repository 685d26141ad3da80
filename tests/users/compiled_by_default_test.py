"""torch.compile without a backend, as for other devices: graphs with XLA tensors go to openxla."""

import pytest
import torch
from torch import nn
from torch_xla.debug import metrics

WAYS = {
    "": {},
    "inductor": {"backend": "inductor"},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune"},
    "dynamic": {"dynamic": True},
    "fullgraph": {"fullgraph": True},
}


def executions() -> int:
    """How often openxla has run programs."""
    return sum(
        (metrics.metric_data(name) or [0])[0] for name in ("ExecuteTime", "ExecuteReplicatedTime")
    )


@pytest.mark.parametrize("way", WAYS)
def test_training(way: str) -> None:
    def trained(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        call = torch.compile(model, **WAYS[way]) if device == "xla" else model
        numbers = torch.Generator().manual_seed(1)
        for _ in range(3):
            x = torch.randn(5, 4, generator=numbers).to(device)
            loss = call(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [loss.detach().cpu(), *(p.detach().cpu() for p in model.parameters())]

    torch.testing.assert_close(trained("xla"), trained("cpu"), rtol=1e-4, atol=1e-5)


def test_a_function_that_makes_its_tensors() -> None:
    function = torch.compile(lambda n: torch.arange(n, device="xla") * 2)
    assert function(3).tolist() == [0, 2, 4]


def test_a_function_of_host_and_device_tensors() -> None:
    function = torch.compile(lambda x, y: (x.to("xla") + y, x * 2))
    found = function(torch.ones(2), torch.full((2,), 3.0, device="xla"))
    assert [(t.device.type, t.tolist()) for t in found] == [
        ("xla", [4.0, 4.0]),
        ("cpu", [2.0, 2.0]),
    ]


def test_cpu_tensors_stay_with_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_fx_inner(graph: torch.fx.GraphModule, *args: object, **options: object) -> object:
        compiled.append(graph)
        return lambda inputs: graph(*inputs)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", compile_fx_inner)
    function = torch.compile(lambda x: x + 1)
    before = executions()
    assert function(torch.ones(2)).tolist() == [2.0, 2.0]
    assert executions() == before
    assert function(torch.ones(3, device="xla")).tolist() == [2.0] * 3
    assert executions() > before
