"""A loop without torch_xla.sync() repeats all its steps in each: one warning says so."""

from __future__ import annotations

import pytest
from testing.scripts import run_script

WARNING = "compiles a larger program in each step of a loop"

TRAIN = """
import torch, torch_xla
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to("xla")
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
for step in range(7):
    x, y = torch.randn(4, 8, device="xla"), torch.ones(4, 2, device="xla")
    out = model(x)
    loss = (out - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {read}
"""

GENERATE = """
import torch, torch_xla
weight = torch.ones(4, 4, device="xla") / 4
state = torch.ones(1, 4, device="xla")
for step in range(8):
    {step}
    torch_xla.sync()
    print(state.sum().item())
"""

PREFIXES = """
import torch, torch_xla
layers = [torch.nn.Linear(4, 4).to("xla") for _ in range(8)]
x = torch.ones(2, 4, device="xla")
torch_xla.sync()
for count in range(1, 9):
    value = x
    for layer in layers[:count]:
        value = layer(value).relu()
    print(value.sum().item())
    del value
"""


def warnings_of(script: str) -> int:
    done = run_script(script, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr.count(WARNING)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize(
    "read",
    ["print(loss.item())", "print(loss.item(), (out - y).abs().mean().item())"],
    ids=["loss", "loss and error"],
)
def test_a_training_loop_without_sync_warns_once(optimizer: str, read: str) -> None:
    assert warnings_of(TRAIN.format(optimizer=optimizer, read=read)) == 1


@pytest.mark.parametrize(
    "read",
    [
        "torch_xla.sync(); print(loss.item())",
        "print(loss.item()); torch_xla.sync()",
        "print(loss.item(), (out - y).abs().mean().item(), out.sum().item()); torch_xla.sync()",
    ],
)
def test_a_training_loop_with_sync_does_not(read: str) -> None:
    assert warnings_of(TRAIN.format(optimizer="AdamW", read=read)) == 0


@pytest.mark.parametrize(
    "step",
    [
        "state = torch.cat([state, (state @ weight)[-1:] + step])",
        "state = torch.cat([state, state[-1:] + state.mean(0, keepdim=True)])",
    ],
)
def test_a_sequence_that_grows_does_not(step: str) -> None:
    assert warnings_of(GENERATE.format(step=step)) == 0


def test_programs_that_look_alike_do_not() -> None:
    assert warnings_of(PREFIXES) == 0
