"""Whole training steps under torch.compile(backend="openxla"), with PyTorch's optimizers.

Most of them count their steps in a CPU tensor for each parameter (cases of tensors on the host in
compiled_host_tensors_test.py).
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

STEPS = 3
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, object]]] = {
    "Adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
    "Adafactor": (torch.optim.Adafactor, {}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "Adam": (torch.optim.Adam, {}),
    "AdamW": (torch.optim.AdamW, {}),
    "Adamax": (torch.optim.Adamax, {}),
    "ASGD": (torch.optim.ASGD, {}),
    "NAdam": (torch.optim.NAdam, {}),
    "RAdam": (torch.optim.RAdam, {}),
    "RMSprop": (torch.optim.RMSprop, {}),
    "Rprop": (torch.optim.Rprop, {}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
}
OPTIONS: dict[str, dict[str, object]] = {
    "default": {},
    "foreach": {"foreach": True},
    "maximize": {"maximize": True},
}
MORE = [
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {"capturable": True}),
    ("AdamW", {"fused": True}),
    ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    ("RAdam", {"weight_decay": 0.1}),
    ("SGD", {"nesterov": True, "lr": 0.1, "momentum": 0.9}),
]
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
}


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(4, 3)


def trained(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: lr_scheduler.LRScheduler | None = None,
    compile_: Callable[[Callable[..., object]], Callable[..., object]] = lambda function: function,
) -> list[torch.Tensor]:
    """Returns the losses, then the parameters and the optimizer's state."""
    device = next(model.parameters()).device

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run, generator = compile_(step), torch.Generator().manual_seed(1)
    values = []
    for _ in range(STEPS):
        values.append(run(torch.randn(6, 4, generator=generator).to(device)))
        if scheduler is not None:
            scheduler.step()
    values += model.parameters()
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        values += [state[name] for name in sorted(state) if isinstance(state[name], torch.Tensor)]
    return [value.detach().cpu() for value in values]


def check(
    name: str,
    options: dict[str, object],
    scheduler: Callable[..., lr_scheduler.LRScheduler] | None = None,
    is_grouped: bool = False,
) -> None:
    torch._dynamo.reset()
    kind, defaults = OPTIMIZERS[name]
    ours, theirs = model().to("xla"), model()
    results = []
    for each, compile_ in (
        (theirs, lambda function: function),
        (ours, lambda function: torch.compile(function, backend="openxla")),
    ):
        only_ours = {"capturable", "fused"} if each is theirs else set()
        own_options = {key: value for key, value in options.items() if key not in only_ours}
        groups = [{"params": [p]} for p in each.parameters()] if is_grouped else each.parameters()
        optimizer = kind(groups, **{**defaults, **own_options})
        results.append(trained(each, optimizer, scheduler and scheduler(optimizer), compile_))
    expected, values = results
    start = [parameter.detach() for parameter in model().parameters()]
    assert not any(map(torch.equal, start, values[STEPS : STEPS + len(start)]))  # it trains
    torch.testing.assert_close(values, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (name, options)
        for name in OPTIMIZERS
        for options in OPTIONS
        if (name, options) != ("Adafactor", "foreach")  # fails in PyTorch, too
    ],
)
def test_each_optimizer(name: str, options: str) -> None:
    check(name, OPTIONS[options])


@pytest.mark.parametrize(("name", "options"), MORE, ids=str)
def test_options_of_optimizers(name: str, options: dict[str, object]) -> None:
    check(name, options)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", ["AdamW", "NAdam", "SGD"])
def test_each_scheduler(name: str, scheduler: str) -> None:
    check(name, {}, SCHEDULERS[scheduler], is_grouped=True)


def test_step_alone() -> None:
    """Only the optimizer's step is compiled, as in PyTorch's tutorial."""
    results = []
    for device in ("cpu", "xla"):
        module = model().to(device)
        optimizer = torch.optim.AdamW(module.parameters())
        step = torch.compile(optimizer.step, backend="openxla") if device == "xla" else None
        for i in range(STEPS):
            optimizer.zero_grad()
            (module(torch.full((2, 4), i + 1.0, device=device)) ** 2).mean().backward()
            (step or optimizer.step)()
        results.append([parameter.detach().cpu() for parameter in module.parameters()])
    torch.testing.assert_close(results[1], results[0], rtol=2e-4, atol=2e-6)


def test_states_can_be_saved_and_loaded() -> None:
    """The counts of steps are on the host, as in PyTorch; another rate compiles another graph."""
    module = model().to("xla")
    optimizer = torch.optim.AdamW(module.parameters())
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
    trained(module, optimizer, scheduler, lambda f: torch.compile(f, backend="openxla"))
    state = copy.deepcopy(optimizer.state_dict())
    counts = [each["step"] for each in state["state"].values()]
    assert [(count.device.type, count.item()) for count in counts] == [("cpu", STEPS)] * 2
