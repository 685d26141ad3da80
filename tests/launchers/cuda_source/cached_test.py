"""Cached calls of cuda_kernel: each equals the same call without a cache."""

from collections.abc import Callable

import pytest
import torch
from testing.xla import custom_call_lines
from torch import Tensor

from torch_xla_ext import CudaKernel, cuda_kernel
from xla_kernels.cuda_source import kernel_calls

MIX = """
__global__ void mix(float* state, const float* x, float* out, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = state[i] + factor * x[i];
}
"""
pytestmark = pytest.mark.usefixtures("on_a_gpu")


def without_signature() -> CudaKernel:
    return cuda_kernel(MIX, "mix")


def variants(device: torch.device) -> dict[str, Callable[[CudaKernel], list[Tensor]]]:
    """Calls that each differ in one thing from the first one."""
    x, half, short = (torch.randn(n, device=device) for n in (1000, 500, 999))

    def of(
        *,
        key: object = (4, 256),
        inputs: tuple[Tensor, Tensor] = (x, x),
        factor: object = 0.0,
        n: object = 3,
        outputs: object = None,
        **options: object,
    ) -> Callable[[CudaKernel], list[Tensor]]:
        described = outputs or {"out": x}
        return lambda kernel: kernel[key](*inputs, factor, n, outputs=described, **options)

    return {
        "first": of(),
        "grid": of(key=(5, 256)),
        "block": of(key=(4, 128)),
        "dimensions": of(key=((4, 2), 256)),
        "shared memory": of(key=(4, 256, 64)),
        "a function": of(key=(lambda call: call["n"] + 1, 256)),
        "negative zero": of(factor=-0.0),
        "an int for a float": of(factor=1),
        "a number": of(n=4),
        "an operand's shape": of(inputs=(x, half)),
        "another operand's": of(inputs=(half, x)),
        "a result": of(outputs={"out": short}),
        "a result of another size": of(outputs={"out": half}),
        "the same in other words": of(outputs={2: ([500], torch.float32)}),
        "an alias": of(aliases=["state"]),
        "an alias by position": of(aliases=[0]),
        "a side effect": of(has_side_effect=True),
    }


def shown(call: Callable[[CudaKernel], list[Tensor]], kernel: CudaKernel) -> list[str]:
    return custom_call_lines(*call(kernel))


@pytest.mark.filterwarnings("ignore:cuda_kernel 'mix'")
def test_cached_calls_equal_single_calls(device: torch.device) -> None:
    given = variants(device)
    alone = {name: shown(call, without_signature()) for name, call in given.items()}
    kernel = without_signature()
    for _ in range(2):
        for name, call in given.items():
            assert shown(call, kernel) == alone[name], name
    assert len(kernel.calls._cached) == len(given) - 1  # all but the one with a function
    # The call with a function equals the first one, and so do two calls in other notations.
    assert len({str(each) for each in alone.values()}) == len(given) - 3


def test_with_a_signature(device: torch.device) -> None:
    def made() -> CudaKernel:
        return cuda_kernel(
            MIX,
            "mix",
            signature="(state: F32[n], x: F32[n]) -> (out: F32[n])",
            parameters="factor: f32",
            grid=lambda call: -(-call["n"] // 256),
            block=256,
        )

    x, half = torch.randn(1000, device=device), torch.randn(500, device=device)
    kernel = made()
    for _ in range(2):
        for args in ((x, x, 0.5), (x, x, 2.0), (half, half, 0.5)):
            (cached,), (alone,) = kernel(*args), made()(*args)
            assert custom_call_lines(cached) == custom_call_lines(alone)
        with pytest.raises(ValueError, match="expected dimension 0 to be 1000 but got 500"):
            kernel(x, half, 0.5)
    assert len(kernel.calls._cached) == 3


@pytest.mark.filterwarnings("ignore:cuda_kernel 'mix'")
def test_operands_are_not_cached(device: torch.device) -> None:
    """The cache depends neither on operands' values nor on requires_grad."""
    kernel = without_signature()
    x = torch.randn(10, device=device)
    for _ in range(2):
        (first,) = kernel[1, 32](x, x + 1, 0.5, 10, outputs={"out": x})
        (second,) = kernel[1, 32](x, x + 2, 0.5, 10, outputs={"out": x})
        assert custom_call_lines(first) == custom_call_lines(second)
    learned = torch.randn(10, device=device, requires_grad=True)
    (result,) = kernel[1, 32](x, learned, 0.5, 10, outputs={"out": x})
    with pytest.raises(NotImplementedError, match="has no derivative"):
        result.sum().backward()


@pytest.mark.filterwarnings("ignore:cuda_kernel 'mix'")
def test_not_too_many(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_calls, "_MOST_CACHED", 3)
    kernel, x = without_signature(), torch.randn(10, device=device)
    for n in range(10):
        kernel[1, 32](x, x, 0.5, n, outputs={"out": x})
        assert len(kernel.calls._cached) <= 3
