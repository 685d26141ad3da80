"""torch.compile(backend="openxla") on PyTorch's own tensors, in the memory of XLA's device.

These are CPU tensors with PJRT_DEVICE=CPU. With PJRT_DEVICE=CUDA and a torch with CUDA, the same
tests run on CUDA tensors (docs/pjrt_shim.md).
"""

import copy
import gc
import os
import weakref
from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.simple_add import random
from testing.xla import compilations
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch_xla.debug import metrics

DEVICE = "cuda" if os.environ.get("PJRT_DEVICE") == "CUDA" else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a torch with CUDA"
)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch_xla.device()
    torch._dynamo.reset()
    counters.clear()
    metrics.clear_all()
    torch.manual_seed(0)


def compiled(function: Callable) -> Callable:
    return torch.compile(function, backend="openxla", fullgraph=True)


def own(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return random(dtype, *shape).to(DEVICE)


def check(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert result.device.type == DEVICE
    torch.testing.assert_close(result.cpu(), expected.cpu(), rtol=1e-4, atol=1e-4)


def transfers() -> list[int]:
    names = ("TransferToDeviceTime", "TransferFromDeviceTime")
    return [(metrics.metric_data(name) or [0])[0] for name in names]


def test_nothing_is_transferred_and_one_program_runs() -> None:
    function = compiled(lambda x, y: (x + y).relu() * 2)
    for i in range(5):
        a, b = own(33, 5), own(33, 5)
        check(function(a, b), (a + b).relu() * 2)
        if i == 0:
            before = compilations(), *transfers()
            executions = metrics.metric_data("ExecuteTime")[0]
    assert (compilations(), *transfers()) == before
    assert metrics.metric_data("ExecuteTime")[0] == executions + 4
    assert counters["stats"]["unique_graphs"] == 1


def test_views_are_the_tensors_memory_and_own_nothing() -> None:
    tensors = [own(100), own(3, 4), own(7, dtype=torch.bfloat16)]
    views = torch_xla._XLAC._xla_views(tensors)
    for tensor, view in zip(tensors, views, strict=True):
        assert (view.shape, view.dtype) == (tensor.shape, tensor.dtype)
        assert torch_xla._XLAC._unsafe_buffer_pointer(view) == tensor.data_ptr()
    alive = [weakref.ref(tensor) for tensor in tensors]
    del tensors, tensor
    gc.collect()
    assert [reference() for reference in alive] == [None] * 3


def test_a_result_keeps_xlas_memory_alive() -> None:
    function = compiled(lambda x: x + 1)
    operands = [own(1000) for _ in range(20)]
    results = [function(x) for x in operands]
    kept = results[::2]
    del results
    gc.collect()
    for _ in range(20):  # memory that is free again is used
        function(own(1000))
    for result, x in zip(kept, operands[::2], strict=True):
        check(result, x + 1)


def test_operands_are_read_at_each_call() -> None:
    function = compiled(lambda x, y: x * y)
    x, y = own(100), own(100)
    for _ in range(3):
        check(function(x, y), x * y)
        x.add_(1)
        y.copy_(own(100))


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float64, torch.complex64),
    ],
    ids=str,
)
def test_dtypes(dtype: torch.dtype) -> None:
    function = compiled(lambda x, y: torch.where(y, x, torch.zeros_like(x)))
    x, y = (torch.randn(4, 9) * 50).to(dtype).to(DEVICE), own(4, 9) > 0
    result = function(x, y)
    assert result.dtype == dtype
    assert torch.equal(result.cpu(), torch.where(y, x, torch.zeros_like(x)).cpu())


def test_float8() -> None:
    """DLPack has no float8: XLA has no view of such operands, and XLA:CPU's results are copied."""
    x, float8 = own(16), torch.float8_e4m3fn
    result = compiled(lambda x: (x * 2).to(float8))(x)
    assert result.dtype == float8
    check(result.float(), (x * 2).to(float8).float())
    result = torch.compile(lambda x: x.float() * 2, backend="openxla")(result)
    check(result, (x * 2).to(float8).float() * 2)


def test_operands_that_are_not_row_major() -> None:
    function = compiled(lambda x, y: x * 2 + y)
    base = own(8, 8)
    for view in (
        lambda x: x.t(),
        lambda x: x[1:5, 2:6],
        lambda x: x[:, ::2],
        lambda x: x[3, 1:8],  # contiguous, but begins where XLA takes no buffer
        lambda x: x[:1].expand(8, 8),
        lambda x: x[0, 0],
        lambda x: x[:0],
    ):
        torch._dynamo.reset()
        x, y = view(base), own(*view(base).shape)
        check(function(x, y), x * 2 + y)


def test_conjugate() -> None:
    function = compiled(lambda x: x * (1 + 2j))
    x = torch.view_as_complex(own(6, 2)).conj()
    check(function(x), x.cpu() * (1 + 2j))


class TestInPlace:
    def test_the_memory_is_the_arguments(self) -> None:
        function = compiled(lambda x, y: x.copy_(x + y).neg())
        for _ in range(3):
            x, y = own(100), own(100)
            expected, address = (x + y).clone(), x.data_ptr()
            check(function(x, y), -expected)
            check(x, expected)
            assert x.data_ptr() == address

    def test_again_and_again(self) -> None:
        function = compiled(lambda x, y: x.mul_(2).add_(y))
        x, y = own(64, 3), own(64, 3)
        expected = x.clone()
        for _ in range(5):
            result = function(x, y)
            expected.mul_(2).add_(y)
            check(x, expected)
            assert result is x

    def test_a_view_made_before_sees_it(self) -> None:
        function = compiled(lambda x: x.add_(1))
        x = own(4, 6)
        row, expected = x[2], x[2] + 1
        function(x)
        check(row, expected)

    def test_no_result(self) -> None:
        def function(x: torch.Tensor) -> None:
            x.sin_()

        x = own(50)
        expected = x.sin()
        assert compiled(function)(x) is None
        check(x, expected)

    def test_strided(self) -> None:
        function = compiled(lambda x, y: x.add_(y) * 3)
        base = own(6, 10)
        for view in (lambda x: x.t(), lambda x: x[1:4, 2:7], lambda x: x[2, 1:8]):
            torch._dynamo.reset()
            base = own(6, 10)
            whole = base.clone()
            x, y = view(base), own(*view(base).shape)
            view(whole).add_(y)
            check(function(x, y), view(whole) * 3)
            check(base, whole)  # and nothing around it

    def test_written_but_never_read(self) -> None:
        function = compiled(lambda x, y: x.copy_(y * 2))
        x, y = own(9), own(9)
        function(x, y)
        check(x, y * 2)

    def test_arguments_that_share_memory(self) -> None:
        def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x * y

        for make in (lambda x: (x, x), lambda x: (x[:32], x[16:48]), lambda x: (x, x.view(64))):
            torch._dynamo.reset()
            base = own(64)
            other = base.clone()
            expected = function(*make(other))
            check(compiled(function)(*make(base)), expected)
            check(base, other)

    def test_two_tensors_become_one(self) -> None:
        """A later call passes overlapping tensors to a function compiled for distinct ones."""
        function = torch.compile(lambda x, y: x.add_(y).sum(), backend="openxla")
        function(own(32), own(32))
        base = own(64)
        other = base.clone()
        expected = other[:32].add_(other[:32].clone()).sum()
        check(function(base[:32], base[:32]), expected)
        check(base, other)

    def test_autograd_counts_the_write(self) -> None:
        function = compiled(lambda x: x.add_(1))
        w = own(5).requires_grad_()
        x = own(5)
        product = w * x  # keeps x
        function(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.norm, self.batch_norm = nn.LayerNorm(32), nn.BatchNorm1d(32)
        self.linear = nn.Linear(32, 32)
        self.head = nn.Linear(32, 50)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embedding(tokens))
        heads = x.unflatten(-1, (4, 8)).transpose(1, 2)
        x = x + functional.scaled_dot_product_attention(
            heads, heads, heads, is_causal=True
        ).transpose(1, 2).flatten(2)
        x = self.batch_norm(self.linear(x).transpose(1, 2)).transpose(1, 2)
        self.calls += 1
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(functional.gelu(x) + places[:, None] * 0.01)


def test_training_is_eager_pytorchs() -> None:
    torch.manual_seed(1)
    model = Model()
    reference = copy.deepcopy(model)
    model = model.to(DEVICE)
    function = torch.compile(model, backend="openxla")
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, reference)]
    for _ in range(3):
        tokens, targets = torch.randint(50, (2, 2, 16))
        losses = []
        for run, device, optimizer in zip(
            (function, reference), (DEVICE, "cpu"), optimizers, strict=True
        ):
            optimizer.zero_grad()
            logits = run(tokens.to(device))
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.to(device).flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        check(losses[0], losses[1])
    assert not [name for name in metrics.counter_names() if name.startswith("aten::")]
    states = model.state_dict(), reference.state_dict()
    for (name, ours), theirs in zip(states[0].items(), states[1].values(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-3, msg=name)


def test_the_whole_step_is_compiled() -> None:
    model = nn.Linear(8, 8)
    reference = copy.deepcopy(model)
    model = model.to(DEVICE)

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)
        return loss.detach()

    addresses = [p.data_ptr() for p in model.parameters()]
    function = torch.compile(step, backend="openxla")
    for _ in range(4):
        x = own(3, 8)
        check(function(model, x), step(reference, x.cpu()))
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        check(ours.detach(), theirs.detach())
    assert addresses == [p.data_ptr() for p in model.parameters()]


def test_a_graph_that_makes_its_own_tensors() -> None:
    constant = own(3)

    def function() -> torch.Tensor:
        return torch.arange(3, device=DEVICE) + torch.tensor([1.0, 2.0, 3.0], device=DEVICE)

    check(compiled(function)(), function())
    check(compiled(lambda: constant * 2)(), constant * 2)


def test_a_result_that_is_an_argument_and_numbers() -> None:
    function = compiled(lambda x, n: (x, x * n, n))
    for n in (2, 3, 4):
        x = own(7)
        same, product, number = function(x, n)
        assert same is x
        assert number == n
        check(product, x * n)


def test_other_shapes() -> None:
    function = torch.compile(lambda x: x.sin().sum(0), backend="openxla", dynamic=True)
    for rows in (2, 3, 5, 8):
        x = own(rows, 4)
        check(function(x), x.sin().sum(0))


def test_chain_of_functions_and_operators() -> None:
    first, second = compiled(lambda x: x.cos() + 1), compiled(lambda x, y: x * y)
    x, y = own(1000), own(1000)
    expected = ((x * 3).cos() + 1) * y - 1
    for _ in range(10):
        check(second(first(x * 3), y) - 1, expected)


def test_operation_that_xla_does_not_have() -> None:
    function = compiled(lambda x, y: torch.nextafter(x + y, y) * 2)
    x, y = own(30), own(30)
    for _ in range(2):
        check(function(x, y), torch.nextafter(x + y, y) * 2)


@pytest.mark.parametrize("device", [DEVICE, "xla"])
def test_write_by_an_operation_that_xla_does_not_have(device: str) -> None:
    """Operations that only the write needs must also come before it."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y.view(4, 4).fill_diagonal_(2)
        return x, y

    x, y = own(4, 4), own(16).view(4, 4)
    expected = y.clone().fill_diagonal_(2)
    x, y = x.to(device), y.to(device)
    compiled(function)(x, y)
    assert torch.equal(y.cpu(), expected.cpu())


def test_cpu_scalar() -> None:
    function = compiled(lambda x, y: x * y)
    x, y = own(5), torch.tensor(2.5)
    for _ in range(2):
        check(function(x, y), x * y.item())


def test_random_numbers_differ_from_call_to_call() -> None:
    function = compiled(lambda x: functional.dropout(x, 0.5))
    x = own(1000).abs() + 1
    first, second = function(x), function(x)
    kept = (first != 0).float().mean().item()
    assert 0.4 < kept < 0.6
    assert not torch.equal(first, second)


def test_many_addresses() -> None:
    """Views are cached by address. PyTorch reuses addresses, but new tensors get new views."""
    function = compiled(lambda x: x * 2)
    tensors: list[torch.Tensor] = []
    for i in range(300):
        x = own(1 + i % 7)
        check(function(x), x * 2)
        tensors.append(x)
        if i % 3 == 0:
            tensors.clear()
