"""Without torch_xla.sync(), each step of a loop would repeat all earlier ones. So reads sync."""

import pytest
from testing.scripts import run_script

WARNING = "From now on, reading a value computes all that is pending"

TRAIN = """
import torch, torch_xla
from torch_xla.debug import metrics
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to("{device}")
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
numbers = torch.Generator().manual_seed(0)
for step in range(12):
    x, y = torch.randn(4, 8, generator=numbers).to("{device}"), torch.ones(4, 2).to("{device}")
    out = model(x)
    loss = (out - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {read}
    if step == 5:
        early = metrics.metric_data("CompileTime")
assert early == metrics.metric_data("CompileTime")  # nothing is compiled in later steps
"""

LINE_SEARCH = """
import torch, torch_xla
from torch_xla.debug import metrics
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
x, y = torch.randn(32, 4).to("{device}"), torch.randn(32, 1).to("{device}")
model.to("{device}")
optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=5, line_search_fn="strong_wolfe")

def closure():
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss

for _ in range(3):
    print(optimizer.step(closure).item())
assert (metrics.metric_data("CompileTime") or [0])[0] < 40
"""

BACKWARD = """
import torch, torch_xla
from torch_xla.debug import metrics

class Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        for step in range(12):
            gradient = (gradient * 0.9).sin()
            if step == 5:
                ctx.early = metrics.metric_data("CompileTime")
            print(gradient.sum().item())
        assert ctx.early == metrics.metric_data("CompileTime")  # nothing was compiled later
        return gradient

x = torch.ones(4, device="{device}", requires_grad=True)
Solve.apply(x).sum().backward()
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


def lines_of(script: str, warnings: int) -> list[float]:
    """The numbers that a script prints. Checks that it warns so many times."""
    done = run_script(script, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(WARNING) == warnings, done.stderr
    return [float(number) for number in done.stdout.split()]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize(
    "read",
    [
        "print(loss.item())",
        "print(loss.item(), (out - y).abs().mean().item())",
        "if step % 4 == 3: print(loss.item())",
    ],
    ids=["loss", "loss and error", "some losses"],
)
def test_a_training_loop_without_sync(optimizer: str, read: str) -> None:
    found, expected = (
        lines_of(TRAIN.format(optimizer=optimizer, read=read, device=device), warnings)
        for device, warnings in (("xla", 1), ("cpu", 0))
    )
    assert found == pytest.approx(expected, rel=1e-4)


def test_an_optimizer_that_reads_in_each_step() -> None:
    found, expected = (
        lines_of(LINE_SEARCH.format(device=device), warnings)
        for device, warnings in (("xla", 1), ("cpu", 0))
    )
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_backward_pass_that_reads_values() -> None:
    found, expected = (
        lines_of(BACKWARD.format(device=device), warnings)
        for device, warnings in (("xla", 1), ("cpu", 0))
    )
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "read",
    [
        "torch_xla.sync(); print(loss.item())",
        "print(loss.item()); torch_xla.sync()",
        "print(loss.item(), (out - y).abs().mean().item(), out.sum().item()); torch_xla.sync()",
    ],
)
def test_a_training_loop_with_sync_does_not(read: str) -> None:
    lines_of(TRAIN.format(optimizer="AdamW", read=read, device="xla"), warnings=0)


@pytest.mark.parametrize(
    "step",
    [
        "state = torch.cat([state, (state @ weight)[-1:] + step])",
        "state = torch.cat([state, state[-1:] + state.mean(0, keepdim=True)])",
    ],
)
def test_a_sequence_that_grows_does_not(step: str) -> None:
    lines_of(GENERATE.format(step=step), warnings=0)


def test_programs_that_look_alike_do_not() -> None:
    lines_of(PREFIXES, warnings=0)


SEVERAL = """
import torch, torch_xla
from torch_xla.debug import metrics
weight = torch.nn.Parameter(torch.ones(4).to("xla"))
optimizer = torch.optim.SGD([weight], lr=0.1)

def syncs():
    return sum(metrics.counter_value(name) or 0 for name in ("CachedCompile", "UncachedCompile"))

for _ in range(3):
    before = syncs()
    for _ in range(4):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
    torch_xla.sync()
    print(syncs() - before)
"""


def test_steps_that_are_one_program() -> None:
    """Optimizers do not sync any more once the program has called torch_xla.sync()."""
    assert lines_of(SEVERAL, warnings=1)[1:] == [1, 1]


CAPTURED = """
import torch, torch_xla
from torch_xla_ext import CaptureError, capture
state, weight = torch.ones(4).to("xla"), torch.ones(4).to("xla")
for _ in range(4):
    state = state * 2
    print(state.sum().item())

@capture
def refused(x):
    weight.add_(x)
    return torch.igamma(weight, weight)

@capture
def added(x):
    return weight.add_(x)

torch_xla.sync()
try:
    refused(state)
except CaptureError as error:
    assert "runs aten::igamma on the host" in str(error)
    print(weight.sum().item(), added(state).sum().item())
"""


def test_a_captured_step_that_is_refused_for_a_read() -> None:
    """A sync at this read would give the buffer of `weight` to its new value."""
    assert lines_of(CAPTURED, warnings=1) == [8, 16, 32, 64, 4, 68]
