"""torch_xla_ext.define_operator, with kernels that are not made with kernel.h."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
from samples import DEVICES
from testing.xla import PLATFORM, custom_call_lines, register_host_kernels

from torch_xla_ext import define_operator

# The test's kernels are registered only for PLATFORM.
for_each_device = pytest.mark.parametrize(
    "device_type", [d for d in DEVICES if d != {"Host": "cuda", "CUDA": "cpu"}[PLATFORM]]
)


@pytest.fixture(scope="module", autouse=True)
def operators() -> None:
    torch_xla.device()
    register_host_kernels("TestCopy", "TestEcho", "TestSumDifferenceRound", "TestFail")
    define_operator(
        "test_ns::test_three_results(Tensor a, Tensor b) -> (Tensor, Tensor, Tensor)",
        target="TestSumDifferenceRound",
        results=lambda a, b: [(a.shape, a.dtype), (a.shape, a.dtype), (a.shape, torch.int32)],
        payload=lambda a, b: a.numel().to_bytes(8, "little"),
    )
    define_operator(
        "test_ns::test_defaults(Tensor? a, Tensor b, int c=7, float? d=None, Tensor? e=None) "
        "-> Tensor",
        target="TestEcho",
        results=lambda a, b, c, d, e: [([16], torch.int64)],
        payload=lambda a, b, c, d, e: bytes([a is None, c, d is None, e is None]),
    )
    define_operator(
        "test_ns::test_copy(Tensor a) -> Tensor",
        target="TestCopy",
        results=lambda a: [(a.shape, a.dtype)],
        payload=lambda a: a.numel().to_bytes(8, "little"),
    )
    define_operator(
        "test_ns::test_fail(Tensor a) -> Tensor",
        target="TestFail",
        results=lambda a: [(a.shape, a.dtype)],
        payload=lambda a: b"",
    )


@for_each_device
def test_several_results(device_type: str) -> None:
    a, b = torch.randn(5), torch.randn(5)
    operator = torch.ops.test_ns.test_three_results
    for function in (operator, torch.compile(operator, backend="aot_eager", fullgraph=True)):
        results = function(a.to(device_type), b.to(device_type))
        for actual, expected in zip(results, (a + b, a - b, a.int()), strict=True):
            assert torch.equal(actual.cpu(), expected)


@pytest.mark.skipif(PLATFORM == "CUDA", reason="TestEcho has one operand there")
@for_each_device
def test_defaults_and_absent_tensors(device_type: str) -> None:
    x = torch.randn(3).to(device_type)
    operator = torch.ops.test_ns.test_defaults
    assert operator(x, x).cpu().tolist()[:5] == [4, 0, 7, 1, 1]
    assert operator(None, x, 9).cpu().tolist()[:5] == [4, 1, 9, 1, 1]
    assert operator(x, x, d=0.5, e=x).cpu().tolist()[:5] == [4, 0, 7, 0, 0]


def test_absent_tensors_are_no_operands() -> None:
    x, y = torch.randn(3).to("xla"), torch.randn(4).to("xla")
    (line,) = custom_call_lines(torch.ops.test_ns.test_defaults(None, x, 9, None, y))
    assert "operand_layout_constraints={f32[3]{0}, f32[4]{0}}" in line


@for_each_device
def test_failure_of_a_kernel(device_type: str) -> None:
    x = torch.zeros(3).to(device_type)
    with pytest.raises(RuntimeError, match=r"TestFail: operand 1 \(b\): expected 3 elements"):
        torch.ops.test_ns.test_fail(x).cpu()


@for_each_device
@pytest.mark.parametrize(
    ("differentiate", "text"),
    [
        (lambda f, x: f(x).sum().backward(), r"test_copy has no derivative: pass .* backward="),
        (
            lambda f, x: torch.func.jvp(f, (x.detach(),), (x.detach(),)),
            "test_ns::test_copy has no forward-mode derivative; use reverse mode",
        ),
    ],
    ids=["backward", "jvp"],
)
def test_missing_derivatives_are_errors(
    differentiate: Callable[..., object], text: str, device_type: str
) -> None:
    operator = torch.ops.test_ns.test_copy
    x = torch.randn(3, device=device_type, requires_grad=True)
    with pytest.raises(NotImplementedError, match=text):
        differentiate(operator, x)


def test_defining_a_name_twice_is_an_error() -> None:
    with pytest.raises(
        RuntimeError, match="test_ns::test_fail is already defined; pass replace=True"
    ):
        define_operator(
            "test_ns::test_fail(Tensor a) -> Tensor",
            target="TestFail",
            results=lambda a: [],
            payload=lambda a: b"",
        )


@for_each_device
def test_without_a_batching_rule_vmap_loops(device_type: str) -> None:
    a, b = torch.randn(4, 5).to(device_type), torch.randn(4, 5).to(device_type)
    results = torch.vmap(torch.ops.test_ns.test_three_results)(a, b)
    assert torch.equal(results[0].cpu(), (a + b).cpu())
