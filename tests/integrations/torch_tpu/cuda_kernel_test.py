"""cuda_kernel: on the CPU its reference, and what a GPU would be handed."""

import struct

import pytest
import torch
import torch_xla_gpu
from torch_xla_gpu import CudaKernel, cuda_kernel

TPU = torch_xla_gpu.device.TYPE
SQUARE = """
__global__ void square(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * x[i];
}
"""
ADD_TO = """
extern "C" __global__ void add_to(float* state, const float* x, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) state[i] += factor * x[i];
}
"""


def square(**options: object) -> CudaKernel:
    return cuda_kernel(SQUARE, "square", reference=lambda x, n: x * x, **options)


def signed(**options: object) -> CudaKernel:
    return cuda_kernel(
        SQUARE,
        "square",
        signature="(x: F32[n]) -> (out: F32[n])",
        grid=lambda call: -(-call["n"] // 256),
        block=256,
        **options,
    )


def add_to() -> CudaKernel:
    return cuda_kernel(
        ADD_TO,
        "add_to",
        signature="(state: F32[n], x: F32[n]) -> (state)",
        parameters="factor: f32",
        arguments="state x factor n",
        grid=1,
        block=256,
        reference=lambda state, x, factor: state.add_(factor * x),  # of its own copy
    )


def operator(name: str, schema: str, kernel: CudaKernel) -> torch._ops.OpOverload:
    return torch_xla_gpu.define_operator(
        f"cuda_kernel::{name}{schema}", target=kernel, replace=True
    )


def test_a_reference() -> None:
    x = torch.randn(1000)
    (y,) = square()[4, 256](x.to(TPU), 1000, outputs=[x])
    assert torch.equal(y.cpu(), x * x)
    (y,) = signed(reference=lambda x: x * x)(x.to(TPU))
    assert torch.equal(y.cpu(), x * x)


def test_a_kernel_that_writes_to_an_operand_leaves_the_callers_tensor() -> None:
    state, x = torch.randn(8), torch.randn(8)
    before = state.to(TPU)
    (after,) = add_to()(before, x.to(TPU), 2.0)
    torch.testing.assert_close(after.cpu(), state + 2 * x)
    assert torch.equal(before.cpu(), state)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_operator(compiled: bool) -> None:
    target = operator("square", "(Tensor x) -> Tensor", signed(reference=lambda x: x * x))
    x = torch.linspace(-1, 1, 12)
    function = lambda x: torch.relu(target(x) - 0.5)  # noqa: E731
    if compiled:
        function = torch.compile(function, fullgraph=True)
    torch.testing.assert_close(function(x.to(TPU)).cpu(), torch.relu(x * x - 0.5))


@pytest.mark.parametrize("compiled", [False, True])
def test_an_operator_that_writes_in_place(compiled: bool) -> None:
    target = torch_xla_gpu.define_in_place_operator(
        "cuda_kernel::add_to(Tensor(a!) state, Tensor x, float factor) -> ()",
        target=add_to(),
        replace=True,
    )
    state, x = torch.randn(8), torch.randn(8)
    on_tpu = state.to(TPU)

    def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        target(state, x, 2.0)
        return state.sum()

    function = torch.compile(step, fullgraph=True) if compiled else step
    total = function(on_tpu, x.to(TPU))
    torch.testing.assert_close(on_tpu.cpu(), state + 2 * x)
    torch.testing.assert_close(total.cpu(), (state + 2 * x).sum())


def test_a_backward_pass_through_a_call() -> None:
    x = torch.ones(8, device=TPU, requires_grad=True)
    (y,) = signed(reference=lambda x: x * x)(x)
    with pytest.raises(NotImplementedError, match=r"no derivative; .* or on detached tensors"):
        y.sum().backward()


def test_launch_attributes_on_a_gpu(traced: list) -> None:
    x = torch.ones(1000, device=TPU)
    for _ in range(2):  # the second call is cached
        square()[(4, 2), (128, 2), 1024](x, 1000, outputs=[x])
    kernel = signed()
    for _ in range(2):
        kernel(x)
    operator("gpu_square", "(Tensor x) -> Tensor", kernel)(x)
    assert len(traced) == 5
    for call in traced:
        assert 'stablehlo.custom_call @"XlaGpuCompiledKernel"(%arg0)' in call.text
        assert 'kernel = "_Z6squarePKfPfi"' in call.text
        assert "7FELF" in call.text  # the machine code
        assert call.words == ["t0", "r0", "x" + struct.pack("<i", 1000).hex()]
        assert call.donated == []
    assert traced[0].text == traced[1].text
    assert "grid = array<i32: 4, 2, 1>" in traced[0].text
    assert "shared = 1024 : i32" in traced[0].text
    assert traced[2].text == traced[3].text == traced[4].text
    assert "grid = array<i32: 4, 1, 1>" in traced[2].text


def test_a_gpu_writes_to_a_copy(traced: list) -> None:
    state, x = (torch.ones(8, device=TPU) for _ in range(2))
    add_to()(state, x, 2.0)
    (call,) = traced
    assert call.words[:2] == ["r0", "t1"]
    assert call.donated == [0]
    assert "operand_index = 0" in call.text
    assert call.operands[0].data_ptr() != state.data_ptr()


def test_a_tensor_that_is_not_on_the_device(traced: list) -> None:
    with pytest.raises(ValueError, match="tensor 0 must be on the device tpu, but is on cpu"):
        signed()(torch.ones(8))
    assert not traced
