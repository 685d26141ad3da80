"""Tensors that a step updates keep their buffers, without copies and second buffers.

Upstream torch_xla 2.8.1 tells XLA which values may be overwritten, but not by which results. XLA
then chooses results of the same size in their order, so a model's weights exchange their buffers.
"""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch_xla

import torch_xla_ext

WIDTH = 16
WAYS = {"lazy": lambda step: step, "capture": torch_xla_ext.capture}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, capturable=True),
}


def buffers(tensors: list[torch.Tensor]) -> list[int]:
    torch_xla.sync(wait=True)
    return [torch_xla._XLAC._unsafe_buffer_pointer(tensor) for tensor in tensors]


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(4)]
    return torch.nn.Sequential(*layers)


def losses(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, way: Callable, device: str
) -> Iterator[torch.Tensor]:
    x, y = torch.randn(2, 8, WIDTH, generator=torch.Generator().manual_seed(1)).to(device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way(step)
    while True:
        yield step()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_optimizer_state(name: str, way: str) -> None:
    on_host = make_model()
    model = copy.deepcopy(on_host).to("xla")
    # On the host an optimizer cannot be capturable; its steps are the same.
    host_optimizer = torch.optim.AdamW(on_host.parameters(), lr=0.01)
    if name == "sgd":
        host_optimizer = OPTIMIZERS[name](on_host.parameters())
    optimizer = OPTIMIZERS[name](model.parameters())
    expected = losses(on_host, host_optimizer, WAYS["lazy"], "cpu")
    found = losses(model, optimizer, WAYS[way], "xla")
    for _ in range(2):  # the first makes the optimizer's state
        torch.testing.assert_close(next(found).cpu(), next(expected))
    state = [value for values in optimizer.state.values() for value in values.values()]
    tensors = [*model.parameters(), *(value for value in state if value.dim() > 0)]
    assert len(tensors) == 8 * (2 if name == "sgd" else 3)
    before = buffers(tensors)
    for _ in range(3):
        torch.testing.assert_close(next(found).cpu(), next(expected))
        assert buffers(tensors) == before
    for ours, theirs in zip(model.parameters(), on_host.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach())


def multiplied(tensors: list[torch.Tensor]) -> None:
    means = [tensor.mean() for tensor in tensors]
    for i in (3, 1, 0, 2):
        tensors[i].mul_(means[i - 1])


def copied(tensors: list[torch.Tensor]) -> None:
    new = [tensor + before.mean() for tensor, before in zip(tensors, tensors[-1:], strict=False)]
    new += [tensor * 2 for tensor in tensors[1:]]
    for i in (3, 1, 0, 2):
        tensors[i].copy_(new[i])


def assigned(tensors: list[torch.Tensor]) -> None:
    means = [tensor.mean() for tensor in tensors]
    for i in (3, 1, 0, 2):
        tensors[i][:] = tensors[i] * means[i - 1]


@pytest.mark.parametrize("write", [multiplied, copied, assigned])
def test_captured_writes(write: Callable[[list[torch.Tensor]], None]) -> None:
    torch.manual_seed(2)
    on_host = list(torch.randn(4, 8, 8) + 1)
    tensors = [tensor.to("xla") for tensor in on_host]
    step = torch_xla_ext.capture(lambda: write(tensors))
    step()
    write(on_host)
    before = buffers(tensors)
    for _ in range(3):
        step()
        write(on_host)
        assert buffers(tensors) == before
    torch.testing.assert_close(tensors, on_host, check_device=False)


def test_a_new_value_of_another_shape() -> None:
    """The new value cannot use the old value's buffer."""
    torch.manual_seed(3)
    on_host = list(torch.randn(3, 2, 8))
    tensors = [tensor.to("xla") for tensor in on_host]
    for _ in range(3):
        for i in (2, 0, 1):
            for tensor in (tensors[i], on_host[i]):
                tensor.mul_(2).t_()
        torch_xla.sync()
    torch.testing.assert_close(tensors, on_host, check_device=False)


def test_tensors_that_exchange_their_values() -> None:
    torch.manual_seed(4)
    on_host = list(torch.randn(3, 8, 8))
    tensors = [tensor.to("xla") for tensor in on_host]
    for _ in range(3):
        for some in (tensors, on_host):
            a, b, c = (tensor.clone() for tensor in some)
            for tensor, value in zip(some, (b + 1, c * 2, a - 1), strict=True):
                tensor.mul_(0).add_(value)
        torch_xla.sync()
    torch.testing.assert_close(tensors, on_host, check_device=False)
