"""Functions and modules of typical programs, under torch.compile(backend="openxla")."""

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.threads import run_in_threads
from torch import nn
from torch.nn import functional
from torch_xla.experimental.scan import scan


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    total: torch.Tensor


class Counting(nn.Module):
    """Has a buffer that the forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return functional.relu(self.norm(self.conv(x))) + self.calls


def causal(x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(x.size(-1), x.size(-1), dtype=torch.bool, device="xla" if x.is_xla else None)
    return (x @ x.mT).masked_fill(mask.triu(1), float("-inf")).softmax(-1)


FUNCTIONS: dict[str, Callable[[torch.Tensor], object]] = {
    # "xla" has no number, as in most programs.
    "positions": lambda x: x + torch.arange(3, device="xla" if x.is_xla else None),
    "constant": lambda x: x * torch.tensor([1.0, 2.0, 3.0], device="xla" if x.is_xla else None),
    "window": lambda x: x * torch.hann_window(3, device="xla" if x.is_xla else None),
    "causal": causal,
    "moved": lambda x: x + torch.ones(3).to(x.device),
    "graph break": lambda x: x * x.sum().item(),
    "branch": lambda x: x * 2 if x.sum() > 0 else x - 1,
    "dataclass": lambda x: Output(x * 2, x.sum()),
    "dictionary": lambda x: {"a": x * 2, "b": [x, x + 1]},
    "one result twice": lambda x: (x, x, x.view(-1)),
    "others": lambda x: (x, None, 3),
    "mask": lambda x: x[x > 0],
    "complex": lambda x: torch.fft.fft(x).abs(),
    "sorted": lambda x: x.sort(-1),
}
MODULES: dict[str, Callable[[], nn.Module]] = {
    "batch norm": Counting,
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    "lstm": lambda: nn.LSTM(8, 4, 2),
    "gru": lambda: nn.GRU(8, 4, 2),
}


def check_equal(result: object, expected: object) -> None:
    if dataclasses.is_dataclass(expected):
        result, expected = vars(result), vars(expected)
    leaves = torch.utils._pytree.tree_leaves
    for a, b in zip(leaves(result), leaves(expected), strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-5, atol=1e-5)
        else:
            assert a == b


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    compiled = torch.compile(FUNCTIONS[name], backend="openxla")
    for seed in range(3):
        x = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))
        check_equal(compiled(x.to("xla")), FUNCTIONS[name](x))


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    torch.manual_seed(0)
    upstream = MODULES[name]()
    module = MODULES[name]()
    module.load_state_dict(upstream.state_dict())
    compiled = torch.compile(module.to("xla"), backend="openxla")
    for _ in range(2):
        x = torch.randn(2, 3, 8, 8) if name == "batch norm" else torch.randn(2, 5, 8)
        expected, result = upstream(x), compiled(x.to("xla"))
        check_equal(result, expected)
        torch.utils._pytree.tree_leaves(expected)[0].sum().backward()
        torch.utils._pytree.tree_leaves(result)[0].sum().backward()
    for a, b in zip(module.parameters(), upstream.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-4)


def test_a_scan() -> None:
    """torch_xla's scan traces its function itself; Dynamo calls it between two programs."""

    def sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scan(lambda total, row: (total + row, total * 2), x[0] * 0, x + 1)

    x = torch.randn(4, 3)
    total, doubles = torch.compile(sums, backend="openxla")(x.to("xla"))
    check_equal(total, (x + 1).sum(0))
    check_equal(doubles[1:], (x + 1).cumsum(0)[:-1] * 2)


def test_in_eager_mode() -> None:
    """In eager mode operations run at once, but torch.compile's functions are still programs."""
    module = torch.nn.Linear(2, 2)
    copied = copy.deepcopy(module).to("xla")
    step, compiled = training_step(module), torch.compile(training_step(copied), backend="openxla")
    with torch_xla.experimental.eager_mode_context(True):
        for number in range(3):
            x = torch.full((1, 2), number + 1.0)
            check_equal(compiled(x.to("xla")), step(x))
        check_equal(scan(lambda c, row: (c + row, c), x[0].to("xla"), x.to("xla"))[0], x[0] * 2)


def training_step(module: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    optimizer = torch.optim.AdamW(module.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def test_a_call_while_another_thread_compiles(device: torch.device) -> None:
    """torch.fx takes all threads to be in the trace of one."""
    x = torch.ones(3, device=device)
    compiled = torch.compile(lambda x: x + 1, backend="openxla")
    compiled(x)
    during: list[list[float]] = []

    class Tracer(torch.fx.Tracer):
        def create_arg(self, a: object) -> torch.fx.node.Argument:
            if not during:
                run_in_threads(lambda: during.append(compiled(x).tolist()))
            return super().create_arg(a)

    Tracer().trace(lambda x: x * 2)
    assert during == [[2.0] * 3]
