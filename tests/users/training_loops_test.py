"""Typical training loops, lazy and captured, compared with the same loop on the CPU."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
from torch import Tensor, nn
from torch.optim import lr_scheduler, swa_utils

import torch_xla_ext

Step = Callable[[Tensor, Tensor], Tensor]
STEPS = 6


class Loop:
    """A model, its data, and a device; `way` is "lazy" or "captured"."""

    def __init__(self, device: str, way: str) -> None:
        torch.manual_seed(0)
        self.device, self.way = device, way
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
        self.data = [(torch.randn(4, 6), torch.randn(4, 3))] * 2
        self.data += [(torch.randn(4, 6), torch.randn(4, 3))] * (STEPS - 2)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.model(x), y)

    def run(self, step: Step, after: Callable[[Tensor], None] = lambda _loss: None) -> list[float]:
        if self.device == "xla" and self.way == "captured":
            step = torch_xla_ext.capture(step)
        losses = []
        for x, y in self.data:
            loss = step(x.to(self.device), y.to(self.device))
            if self.device == "xla":
                torch_xla.sync()
            after(loss)
            losses.append(loss.item())
        return losses


def assert_same(mine: nn.Module, other: nn.Module, digits: float = 1e-5) -> None:
    own, right = list(mine.parameters()), list(other.parameters())
    torch.testing.assert_close(own, right, check_device=False, rtol=digits, atol=digits)


def check(train: Callable[[Loop], list[float]], way: str, digits: float = 1e-5) -> None:
    """Trains on the CPU and on the device; compares losses and parameters."""
    loops = [Loop(device, way) for device in ("cpu", "xla")]
    expected, got = [train(loop) for loop in loops]
    assert len(set(expected)) == STEPS
    assert got == pytest.approx(expected, rel=digits, abs=digits)
    assert_same(loops[1].model, loops[0].model, digits)


def train(
    loop: Loop,
    optimizer: torch.optim.Optimizer,
    after: Callable[[Tensor], None] = lambda _loss: None,
    before_step: Callable[[], object] = lambda: None,
) -> list[float]:
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loop.loss(x, y)
        loss.backward()
        before_step()
        optimizer.step()
        return loss.detach()

    return loop.run(step, after)


WAYS = pytest.mark.parametrize("way", ["lazy", "captured"])


@WAYS
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "fused": True}),
        (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.2, "maximize": True, "fused": True}),
        (torch.optim.SGD, {"fused": True}),
        (torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True, "fused": True}),
        (torch.optim.Adam, {"betas": (0.0, 0.0), "eps": 0.1, "fused": True}),
        (torch.optim.AdamW, {"capturable": True, "foreach": True}),
        (torch.optim.AdamW, {"maximize": True, "fused": True}),
        (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1, "fused": True}),
    ],
)
def test_losses_with_each_optimizer(kind: type, options: dict[str, object], way: str) -> None:
    def run(loop: Loop) -> list[float]:
        mine = dict(options)
        if loop.device == "cpu":
            mine.pop("capturable", None)
        return train(loop, kind(loop.model.parameters(), lr=0.05, **mine))

    # With capturable, PyTorch computes 1 - beta ** step in float32.
    check(run, way, digits=1e-4 if "capturable" in options else 1e-5)


def test_fused_parameters_of_16_bits() -> None:
    """Parameters of 16 bits are updated in float32 and rounded once.

    PyTorch 2.8's fused SGD on the CPU is wrong with 16 bits: it is 0.17 off after one step.
    """
    gradients = torch.randn(3, 64).bfloat16()
    for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
        results = []
        for device in ("cpu", "xla"):
            parameter = nn.Parameter(torch.linspace(-1, 1, 64).bfloat16().to(device))
            fused = device == "xla" or kind is not torch.optim.SGD
            optimizer = kind([parameter], lr=0.05, weight_decay=0.1, fused=fused)
            for gradient in gradients:
                parameter.grad = gradient.to(device)
                optimizer.step()
            results.append(parameter.detach().cpu())
        torch.testing.assert_close(results[1], results[0], rtol=2**-7, atol=2**-9)


def test_rate_on_the_device() -> None:
    def run(loop: Loop) -> list[float]:
        rate = torch.tensor(0.05).to(loop.device)
        optimizer = torch.optim.AdamW(loop.model.parameters(), lr=rate, fused=True)
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        return train(loop, optimizer, lambda _loss: scheduler.step())

    check(run, "captured")


def test_optimizers_without_fused_kernels_say_so() -> None:
    with pytest.raises(TypeError, match="fused"):
        torch.optim.RMSprop(Loop("xla", "lazy").model.parameters(), fused=True)


@WAYS
@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (i + 1)),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1),
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5),
    ],
    ids=["LambdaLR", "CosineAnnealingLR", "OneCycleLR", "ReduceLROnPlateau"],
)
def test_losses_with_each_scheduler(
    make: Callable[[torch.optim.Optimizer], object], way: str
) -> None:
    def run(loop: Loop) -> list[float]:
        optimizer = torch.optim.AdamW(loop.model.parameters(), lr=0.05, fused=True)
        scheduler = make(optimizer)
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            return train(loop, optimizer, lambda loss: scheduler.step(loss.item()))
        return train(loop, optimizer, lambda _loss: scheduler.step())

    check(run, way)


@WAYS
@pytest.mark.parametrize(
    "clip",
    [
        lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1),
        lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1, foreach=True),
        lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1, norm_type=float("inf")),
        lambda parameters: nn.utils.clip_grad_value_(parameters, 0.1),
    ],
)
def test_clipped_gradients(clip: Callable[[object], object], way: str) -> None:
    def run(loop: Loop) -> list[float]:
        optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.5, momentum=0.9)
        return train(loop, optimizer, before_step=lambda: clip(loop.model.parameters()))

    check(run, way)


@WAYS
def test_moving_average(way: str) -> None:
    averages = []

    def run(loop: Loop) -> list[float]:
        optimizer = torch.optim.AdamW(loop.model.parameters(), lr=0.05, fused=True)
        average = swa_utils.AveragedModel(
            loop.model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)
        )
        averages.append(average)
        return train(loop, optimizer, lambda _loss: average.update_parameters(loop.model))

    check(run, way)
    assert_same(averages[1], averages[0])


def test_moving_average_inside_a_captured_step() -> None:
    loop = Loop("xla", "captured")
    optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    average = swa_utils.AveragedModel(loop.model)
    with pytest.raises(torch_xla_ext.CaptureError, match=r"update_parameters\(\) outside"):
        train(loop, optimizer, before_step=lambda: average.update_parameters(loop.model))


@WAYS
def test_accumulated_gradients(way: str) -> None:
    def run(loop: Loop) -> list[float]:
        optimizer = torch.optim.AdamW(loop.model.parameters(), lr=0.05, fused=True)

        def micro_step(x: Tensor, y: Tensor) -> Tensor:
            loss = loop.loss(x, y) / 2
            loss.backward()
            return loss.detach()

        count = 0

        def update(_loss: Tensor) -> None:
            nonlocal count
            count += 1
            if count % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

        return loop.run(micro_step, update)

    # Two steps see the same parameters, and there are two batches with the same data.
    loops = [Loop(device, way) for device in ("cpu", "xla")]
    expected, got = [run(loop) for loop in loops]
    assert got == pytest.approx(expected, rel=1e-5)
    assert_same(loops[1].model, loops[0].model)


def _scaled(loop: Loop, fused: bool, unscale: bool = False) -> list[float]:
    optimizer = torch.optim.AdamW(loop.model.parameters(), lr=0.05, fused=fused)
    scaler = torch.amp.GradScaler(loop.device, init_scale=2.0**127, growth_interval=2)
    scaler._backoff_factor = 2.0**-120  # a first step with an infinity, then two without

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loop.loss(x, y)
        scaler.scale(loss * 8).backward()
        if unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return loop.run(step)


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize(("way", "fused"), [("lazy", False), ("lazy", True), ("captured", True)])
def test_grad_scaler(way: str, fused: bool, unscale: bool) -> None:
    loops = [Loop(device, way) for device in ("cpu", "xla")]
    expected, got = [_scaled(loop, fused, unscale) for loop in loops]
    assert expected[0] == expected[1] != expected[2]  # the first step had an infinity
    assert got == pytest.approx(expected, rel=1e-5)


def test_grad_scaler_that_asks_on_the_host() -> None:
    with pytest.raises(torch_xla_ext.CaptureError, match="make the optimizer with fused=True"):
        _scaled(Loop("xla", "captured"), fused=False)
