"""Each operator under torch.compile: one graph, and one compilation for the same shapes."""

import pytest
import torch
from samples import (
    DEVICES,
    OperatorSamples,
    for_each_device,
    for_each_differentiable_operator,
    for_each_operator,
    to,
)
from testing.xla import compilations
from torch._dynamo.utils import counters
from torch_xla.debug import metrics

from torch_xla_ext import ops

# (backend, device)
COMPILERS = [
    ("eager", "cpu"),
    ("aot_eager", "cpu"),
    ("inductor", "cpu"),
    ("openxla", "cpu"),
    ("aot_eager", "xla"),
    ("openxla", "xla"),
]
if "cuda" in DEVICES:
    COMPILERS += [("aot_eager", "cuda"), ("inductor", "cuda"), ("openxla", "cuda")]
for_each_compiler = pytest.mark.parametrize(("backend", "device_type"), COMPILERS)


pytestmark = pytest.mark.usefixtures("fresh_compiler")


@for_each_compiler
@for_each_operator
def test_result_without_a_graph_break_or_recompilation(
    op: OperatorSamples, backend: str, device_type: str
) -> None:
    compiled = torch.compile(lambda *xs: op.function(*xs).clone(), backend=backend, fullgraph=True)
    for i in range(4):
        args = op.arguments(op.dtypes[0])
        result = compiled(*to(device_type, args))
        assert result.device.type == device_type
        op.check(result.cpu(), args)
        if i == 0:
            programs = compilations()
            extracted = metrics.counter_value("DynamoExtractCompiledGraph")
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert compilations() == programs
    assert metrics.counter_value("DynamoExtractCompiledGraph") == extracted


@for_each_compiler
@for_each_differentiable_operator
def test_operator_overload(op: OperatorSamples, backend: str, device_type: str) -> None:
    args = op.arguments(torch.float32)
    compiled = torch.compile(lambda *xs: op.overload(*xs), backend=backend, fullgraph=True)
    assert torch.equal(compiled(*to(device_type, args)).cpu(), op.reference(*args))


@for_each_compiler
@for_each_differentiable_operator
def test_training(op: OperatorSamples, backend: str, device_type: str) -> None:
    compiled = torch.compile(
        lambda *xs: op.function(*xs).sin().sum(), backend=backend, fullgraph=True
    )
    for i in range(3):
        args = op.arguments(torch.float32)
        gradients = []
        for function, device in (
            (compiled, device_type),
            (lambda *xs: op.reference(*xs).sin().sum(), "cpu"),
        ):
            tensors = tuple(tensor.detach().requires_grad_() for tensor in to(device, args))
            function(*tensors).backward()
            gradients.append([tensor.grad.cpu() for tensor in tensors])
        for actual, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(actual, expected)
        if i == 0:
            programs = compilations()
    assert counters["stats"]["unique_graphs"] == 1
    assert compilations() == programs


@for_each_compiler
def test_operands_that_are_views(backend: str, device_type: str) -> None:
    compiled = torch.compile(
        lambda x, y: ops.simple_add(x.t(), y[:, 1:]).t() * 3, backend=backend, fullgraph=True
    )
    a, b = torch.randn(3, 4), torch.randn(4, 4)
    result = compiled(*to(device_type, (a, b))).cpu()
    torch.testing.assert_close(result, (a.t() + b[:, 1:]).t() * 3)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_dynamic_shapes_compile_once(backend: str) -> None:
    compiled = torch.compile(ops.simple_add, backend=backend, fullgraph=True, dynamic=True)
    for size in (5, 7, 11):
        a, b = torch.randn(size, 3), torch.randn(size, 3)
        assert torch.equal(compiled(a, b), a + b)
    assert counters["stats"]["unique_graphs"] == 1


@for_each_device
def test_sizes_that_depend_on_data(device_type: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        positive = x[x > 0]
        return ops.simple_add(positive, positive.sin())

    x = torch.randn(20)
    if device_type == "cpu":
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled = torch.compile(function, backend="inductor", fullgraph=True)
            torch.testing.assert_close(compiled(x), x[x > 0] + x[x > 0].sin())
    torch.testing.assert_close(function(x.to(device_type)).cpu(), x[x > 0] + x[x > 0].sin())


@for_each_device
def test_autocast(device_type: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device_type, dtype=torch.bfloat16):
            return ops.simple_add(x @ x, y)

    x, y = torch.randn(4, 4, device=device_type), torch.randn(4, 4, device=device_type)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert compiled(x, y).dtype == function(x, y).dtype == torch.float32


def test_openxla_on_cpu_tensors_runs_in_xla() -> None:
    """XLA:CPU has the same memory. See tests/users/own_tensors_test.py."""
    compiled = torch.compile(ops.simple_add, backend="openxla")
    programs = compilations()
    result = compiled(torch.ones(3), torch.ones(3))
    assert result.device.type == "cpu"
    assert torch.equal(result, torch.full((3,), 2.0))
    assert compilations() == programs + 1
