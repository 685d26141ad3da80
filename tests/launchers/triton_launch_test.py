"""Triton's own ways to launch a kernel, with XLA tensors."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_xla  # noqa: F401
import triton
from testing.xla import hlo
from torch import Tensor
from torch.library import triton_op, wrap_triton

import torch_xla_ext

sys.path.insert(0, str(Path(__file__).parent))
import triton_kernels as kernels


@triton_op("triton_launch_test::norm", mutates_args=())
def norm(x: Tensor, weight: Tensor) -> Tensor:
    y = torch.empty_like(x)
    rows, columns = x.shape
    wrap_triton(kernels.rms_norm)[(rows,)](x, weight, y, columns, 0.5, BLOCK=128)
    return y


@triton_op("triton_launch_test::add_to", mutates_args={"state"})
def add_to(state: Tensor, x: Tensor) -> None:
    n = state.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)  # noqa: E731
    wrap_triton(kernels.add_scaled)[grid](state, x, n, 0.5, BLOCK=64)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(4, 100)


@pytest.fixture
def weight() -> Tensor:
    return torch.randn(100)


def expected(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, (100,), weight, 0.5)


def test_a_launch(x: Tensor, weight: Tensor, device: torch.device) -> None:
    y = torch.empty(4, 100, device=device)
    kernels.rms_norm[(4,)](x.to(device), weight.to(device), y, 100, 0.5, BLOCK=128)
    # The kernel writes to one of its three tensors.
    assert hlo(y).count("output_to_operand_aliasing") <= 1
    torch.testing.assert_close(y.cpu(), expected(x, weight))


def test_a_launch_into_a_view(x: Tensor, device: torch.device) -> None:
    state = torch.zeros(3, 400, device=device)
    kernels.add_scaled[(1,)](state[1], x.to(device), 400, 2.0, BLOCK=512)
    assert torch.equal(state.cpu()[1], x.flatten() * 2)
    assert not state.cpu()[::2].any()


def test_autotuned_and_heuristic_kernels(x: Tensor, device: torch.device) -> None:
    y = torch.empty(4, 100, device=device)
    kernels.tuned[lambda meta: (triton.cdiv(400, meta["BLOCK"]),)](x.to(device), y, n=400)
    assert torch.equal(y.cpu(), x + 1)
    kernels.guessed[(1,)](x.to(device), y, 400)
    assert torch.equal(y.cpu(), x * 2)


def test_an_operator(x: Tensor, weight: Tensor, device: torch.device) -> None:
    torch.testing.assert_close(norm(x.to(device), weight.to(device)).cpu(), expected(x, weight))


def test_an_operator_under_compile(x: Tensor, weight: Tensor, device: torch.device) -> None:
    def step(state: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        add_to(state, norm(x, weight))
        return state * 2

    compiled = torch.compile(step, backend="openxla", fullgraph=True)
    state = x.to(device)
    for _ in range(2):
        x = x + 0.5 * expected(x, weight)
        result = compiled(state, state.clone(), weight.to(device))
        torch.testing.assert_close(result.cpu(), x * 2)
        torch.testing.assert_close(state.cpu(), x)


def test_an_operator_that_writes(x: Tensor, device: torch.device) -> None:
    state = torch.zeros(6, 400, device=device)

    def step(state: Tensor, x: Tensor) -> Tensor:
        add_to(state[2], x)
        return state * 2

    captured = torch_xla_ext.capture(step)
    for i, run in enumerate((step, captured, captured, step), 1):
        result = run(state, x.to(device))
        torch.testing.assert_close(state.cpu()[2], x.flatten() * 0.5 * i)
        torch.testing.assert_close(result.cpu(), state.cpu() * 2)
    assert not state.cpu()[[0, 1, 3, 4, 5]].any()


def test_tuples(x: Tensor, device: torch.device) -> None:
    y, on_xla = torch.empty(4, 100, device=device), x.to(device)
    kernels.scaled_sum[(7,)]((on_xla, on_xla * 2), y, (400, 3.0), BLOCK=64)
    torch.testing.assert_close(y.cpu(), x * 5)
    # Without an analysis, everything in the tuple may be written to.
    kernels.copy_in_pair[(7,)]((on_xla, y), 400, BLOCK=64)
    assert torch.equal(y.cpu(), x)


def test_a_launch_as_helions(x: Tensor, device: torch.device) -> None:
    """Helion's host code calls the kernel's method `run`, instead of `kernel[grid]`."""
    y = torch.empty(4, 100, device=device)
    kernels.add_scaled.run(
        *(y.zero_(), x.to(device), 400, 2.0, 512),
        **{"grid": (1,), "warmup": False, "num_warps": 4, "num_stages": 1},
    )
    assert torch.equal(y.cpu(), x * 2)


@pytest.mark.skipif(
    triton.__version__.split(".") >= ["3", "5"], reason="torch 2.8 analyses kernels of Triton 3.4"
)
def test_torch_finds_the_tensors_that_a_kernel_writes() -> None:
    from torch._higher_order_ops.triton_kernel_wrap import identify_mutated_tensors

    a = torch.empty(2)
    arguments = {"x_ptr": a, "weight_ptr": a, "y_ptr": a, "columns": 2, "epsilon": 0.5}
    assert identify_mutated_tensors(kernels.rms_norm, arguments | {"BLOCK": 4}, {}) == ["y_ptr"]


@pytest.mark.parametrize("order", ["torch_xla_ext, triton", "triton, torch_xla_ext"])
def test_either_is_imported_first(order: str) -> None:
    code = (
        f"import {order}\n"
        "print(triton.runtime.jit.JITFunction.run.__module__)\n"
        "print(triton.KernelInterface.__getitem__.__module__)\n"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines() == ["xla_kernels.triton.launch_hooks"] * 2


def test_wrong_launches_are_refused(x: Tensor, device: torch.device) -> None:
    on_xla = x.to(device)
    with pytest.raises(TypeError, match="y_ptr is on cpu, but other tensors are XLA's"):
        kernels.tuned.fn[(1,)](on_xla, x, 400, BLOCK=512)
