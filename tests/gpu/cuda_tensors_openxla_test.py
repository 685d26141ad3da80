"""torch.compile(backend="openxla") on CUDA tensors: upstream's bridge moves them to XLA and back.

By default they go through the host's memory; with ZERO_COPY_ENABLED=1 upstream hands the results
over by DLPack, and the operands when it traces. Needs a torch with CUDA and a GPU.
"""

from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.simple_add import DTYPES, random
from testing.xla import compilations
from torch._dynamo.utils import counters
from torch_xla.debug import metrics
from torch_xla.utils import dlpack

from torch_xla_ext import ops

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a torch with CUDA and a GPU"
)


@pytest.fixture(autouse=True, params=[False, True], ids=["through_the_host", "zero_copy"])
def zero_copy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setenv("ZERO_COPY_ENABLED", "1" if request.param else "0")
    torch_xla.device()
    torch._dynamo.reset()
    counters.clear()
    return request.param


def compiled(function: Callable) -> Callable:
    return torch.compile(function, backend="openxla", fullgraph=True)


def on_cuda(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return random(dtype, *shape).cuda()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sum_is_torchs_bit_for_bit(dtype: torch.dtype) -> None:
    function = compiled(ops.simple_add)
    for size in (1, 257, 70_001):
        a, b = on_cuda(dtype, size), on_cuda(dtype, size)
        total = function(a, b)
        assert total.device == a.device
        assert torch.equal(total, a + b)


def test_runs_in_xla_without_a_graph_break_or_recompilation() -> None:
    function = compiled(lambda x, y: ops.simple_add(x, y).relu() * 2)
    metrics.clear_all()
    for i in range(5):
        a, b = on_cuda(torch.float32, 33, 5), on_cuda(torch.float32, 33, 5)
        assert torch.equal(function(a, b), (a + b).relu() * 2)
        if i == 0:
            programs = compilations()
            extracted = metrics.counter_value("DynamoExtractCompiledGraph")
            assert extracted == 1
    assert metrics.metric_data("ExecuteTime")[0] >= 5
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert compilations() == programs
    assert metrics.counter_value("DynamoExtractCompiledGraph") == extracted


def test_training() -> None:
    function = compiled(lambda x, y: ops.simple_add(x, y).sin().sum())
    for _ in range(3):
        a, b = torch.randn(7, 9), torch.randn(7, 9)
        x, y = (tensor.cuda().requires_grad_() for tensor in (a, b))
        function(x, y).backward()
        assert x.grad.device == y.grad.device == x.device
        for gradient in (x.grad, y.grad):
            torch.testing.assert_close(gradient.cpu(), (a + b).cos())


def test_operands_that_are_views(zero_copy: bool) -> None:
    function = compiled(lambda x, y: ops.simple_add(x.t(), y[:, 1:]).t() * 3)
    a, b = on_cuda(torch.float32, 3, 4), on_cuda(torch.float32, 4, 4)
    assert torch.equal(function(a, b), (a.t() + b[:, 1:]).t() * 3)
    function = compiled(ops.simple_add)
    a, b = on_cuda(torch.float32, 16, 24), on_cuda(torch.float32, 16, 24)
    assert torch.equal(function(a.t(), b.t()), a.t() + b.t())
    for view in (lambda x: x[1:, 2:5], lambda x: x[:, ::2]):
        if zero_copy:  # upstream's conversion from DLPack takes permuted tensors alone
            with pytest.raises(RuntimeError, match="Only DLPack tensors with trivial"):
                function(view(a), view(b))
        else:
            assert torch.equal(function(view(a), view(b)), view(a) + view(b))


def test_argument_that_is_changed_in_place() -> None:
    function = compiled(lambda x, y: x.copy_(ops.simple_add(x, y)).neg())
    for _ in range(3):
        a, b = on_cuda(torch.float32, 100), on_cuda(torch.float32, 100)
        expected = a + b
        assert torch.equal(function(a, b), -expected)
        assert torch.equal(a, expected)


def test_operands_that_another_stream_is_still_writing() -> None:
    function = compiled(ops.simple_add)
    b = on_cuda(torch.float32, 1 << 20)
    function(b, b)
    stream = torch.cuda.Stream()
    for _ in range(3):
        expected = torch.randn(1 << 20)
        source, a = expected.cuda(), torch.full((1 << 20,), torch.nan, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            a.copy_(source)
            total = function(a, b) * 2
        stream.synchronize()
        assert torch.equal(total.cpu(), (expected + b.cpu()) * 2)


def test_dlpack_both_ways() -> None:
    """What the bridge uses with ZERO_COPY_ENABLED=1: the same memory on both sides."""
    a = on_cuda(torch.float32, 1000)
    x = dlpack.from_dlpack(a)
    assert x.device.type == "xla"
    total = ops.simple_add(x, x)
    torch_xla.sync(wait=True)
    result = dlpack.from_xla_cuda_to_cuda(total)
    assert result.device == a.device
    assert torch.equal(result, a + a)
    a.fill_(3)
    torch.cuda.synchronize()
    assert torch.equal(x.cpu(), a.cpu())


def test_operation_that_xla_does_not_have_runs_in_torch_on_the_gpu() -> None:
    """Upstream's fallback: the operands by DLPack to torch's CUDA kernel, and the result back."""
    a, b = torch.randn(100), torch.randn(100)
    metrics.clear_all()
    result = torch.nextafter(ops.simple_add(a.to("xla"), b.to("xla")), b.to("xla"))
    assert metrics.counter_value("aten::nextafter") == 1
    assert torch.equal(result.cpu(), torch.nextafter(a + b, b))
