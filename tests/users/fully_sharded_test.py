"""XlaFullyShardedDataParallel in one process: losses and weights of the same steps on the CPU."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn
from torch.nn import functional
from torch_xla.distributed.fsdp import (
    XlaFullyShardedDataParallel,
    checkpoint_module,
    consolidate_sharded_model_checkpoints,
)

OPTIONS = {
    "default": {},
    "parameters as they are": {"flatten_parameters": False},
    "kept after forward": {"reshard_after_forward": False},
    "bfloat16": {"compute_dtype": torch.bfloat16},
    "bfloat16, summed in float32": {"compute_dtype": torch.bfloat16, "fp32_reduce_scatter": True},
    "float16, with buffers of float32": {
        "compute_dtype": torch.float16,
        "buffer_dtype": torch.float32,
        "flatten_parameters": False,
    },
}


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def module() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7), nn.ReLU(), nn.Flatten(), nn.Linear(252, 8)]
    return nn.Sequential(*layers, nn.LayerNorm(8), Product())


def train(model: nn.Module, device: torch.device, clip: Callable[[float], object]) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for size in (4, 4, 3):
        x, labels = torch.randn(size, 3, 8, 8), torch.randint(0, 5, (size,))
        for _ in range(2):  # accumulates
            loss = functional.cross_entropy(model(x.to(device)).float(), labels.to(device))
            loss.backward()
            losses.append(loss.item())
        clip(0.5)
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
    return losses


@pytest.mark.parametrize("name", OPTIONS)
def test_training(name: str, device: torch.device, tmp_path: Path) -> None:
    expected = module()
    wrapped = copy.deepcopy(expected).to(device)
    wrapped[4] = XlaFullyShardedDataParallel(checkpoint_module(wrapped[4]), **OPTIONS[name])
    model = XlaFullyShardedDataParallel(wrapped, **OPTIONS[name])
    losses = train(model, device, model.clip_grad_norm_)
    right = train(
        expected,
        torch.device("cpu"),
        lambda norm: nn.utils.clip_grad_norm_(expected.parameters(), norm),
    )
    tolerance = 0.05 if "compute_dtype" in OPTIONS[name] else 1e-4
    torch.testing.assert_close(losses, right, rtol=tolerance, atol=tolerance)
    state = {"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}
    xm.save(state, f"{tmp_path}/state_rank-0-of-1.pth", master_only=False)
    whole, _ = consolidate_sharded_model_checkpoints(
        f"{tmp_path}/state", ckpt_suffix="_rank-*-of-*.pth", save_model=False
    )
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(
            whole[key].float(), value.float(), rtol=tolerance, atol=tolerance, msg=key
        )


class Tied(nn.Module):
    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        embedding, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        head.weight = embedding.weight
        self.embedding, self.head = wrap(embedding), wrap(head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(x).sin())


@pytest.mark.parametrize("flatten", [False, True])
def test_a_weight_of_two_modules(flatten: bool, device: torch.device) -> None:
    """With flatten_parameters=True, it became two weights."""

    def wrap(module: nn.Module) -> nn.Module:
        return XlaFullyShardedDataParallel(module.to(device), flatten_parameters=flatten)

    message = "Linear has a parameter 'weight' that another wrapped module has, too: 'weight' of Em"
    with pytest.raises(RuntimeError, match=message):
        Tied(wrap)
    with pytest.raises(RuntimeError, match=r"Tied has a parameter 'head\.weight' that another"):
        wrap(Tied(lambda module: wrap(module) if isinstance(module, nn.Embedding) else module))
    linear = nn.Linear(3, 2).double()
    with pytest.raises(TypeError, match="only fp32"):
        wrap(linear)
    wrap(linear.float())
    x = torch.tensor([2, 5])
    expected, model = Tied(lambda module: module), wrap(Tied(lambda module: module))
    for of, tokens in ((expected, x), (model, x.to(device))):
        of(tokens).square().sum().backward()
    (gradient,) = (parameter.grad for parameter in model.parameters())
    torch.testing.assert_close(gradient.cpu()[:28].view(7, 4), expected.head.weight.grad)
