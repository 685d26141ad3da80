"""define_operator with a cuda_kernel as its target."""

import struct

import pytest
import torch
from testing.xla import hlo
from torch import Tensor

from cuda_source.sources import ADD_TO, SQUARE, attributes
from torch_xla_ext import cuda_kernel, define_in_place_operator, define_operator
from xla_kernels.cuda_source import nvrtc

on_a_gpu = pytest.mark.usefixtures("on_a_gpu")
AFFINE = """
__global__ void affine(const float* x, const float* bias, float* out, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = factor * x[i] + (bias ? bias[i] : 0);
}
"""
square = cuda_kernel(
    SQUARE,
    "square",
    signature="(x: F32[n]) -> (out: F32[n])",
    grid=lambda given: -(-given["n"] // 256),
    block=256,
    reference=lambda x: x * x,
)
define_operator(
    "cuda_kernels_test::square(Tensor x) -> Tensor",
    target=square,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    backward=lambda ctx, gradient: 2 * ctx.saved_tensors[0] * gradient,
)
define_operator(
    "cuda_kernels_test::affine(Tensor x, Tensor? bias=None, float factor=1.0) -> Tensor",
    target=cuda_kernel(
        AFFINE,
        "affine",
        signature="Affine(x: F32[n], bias?: F32[n]) -> (out: F32[n])",
        parameters="factor: f32 in [0, 10]",
        grid=1,
        block=256,
        reference=lambda x, bias, factor: factor * x + (0 if bias is None else bias),
    ),
    sharding_rule="n, n -> n",
)
define_in_place_operator(
    "cuda_kernels_test::add_to(Tensor(a!) state, Tensor x, float factor) -> ()",
    target=cuda_kernel(
        ADD_TO.replace("Range range", "int end")
        .replace("range.begin", "0")
        .replace("range.", "")
        .replace("unsigned char", "int"),
        "add_to",
        signature="(state: F32[n], x: F32[n]) -> (state)",
        parameters="factor: f32",
        arguments="state x factor n n",
        grid=1,
        block=64,
        reference=lambda state, x, factor: state + factor * x,
    ),
)
ops = torch.ops.cuda_kernels_test


@pytest.mark.parametrize("on", ["xla", "cpu"])
def test_square(on: str) -> None:
    x = torch.randn(300)
    leaf = x.to(on).requires_grad_()
    y = ops.square(leaf)
    assert torch.equal(y.cpu(), x * x)
    y.sum().backward()
    assert torch.equal(leaf.grad.cpu(), 2 * x)


def test_under_compile_and_export(device: torch.device) -> None:
    x = torch.randn(300)
    compiled = torch.compile(lambda x: ops.square(x) + 1, backend="openxla", fullgraph=True)
    torch.testing.assert_close(compiled(x.to(device)).cpu(), x * x + 1)

    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ops.square(x)

    exported = torch.export.export(Module(), (x,))
    assert "cuda_kernels_test.square" in exported.graph_module.code


def test_opcheck() -> None:
    torch.library.opcheck(ops.square.default, (torch.randn(7, requires_grad=True),))
    torch.library.opcheck(ops.affine.default, (torch.randn(7), torch.randn(7), 2.0))
    torch.library.opcheck(ops.add_to.default, (torch.randn(7), torch.randn(7), 2.0))


@pytest.mark.parametrize("on", ["xla", "cpu"])
def test_optional_operands_and_parameters(on: str) -> None:
    x, bias = torch.randn(9), torch.randn(9)
    assert torch.equal(ops.affine(x.to(on)).cpu(), x)
    torch.testing.assert_close(ops.affine(x.to(on), bias.to(on), 2.0).cpu(), 2 * x + bias)
    with pytest.raises(
        TypeError, match=r"cuda_kernels_test::affine: operand 0 .x.: expected dtype F3"
    ):
        ops.affine(x.double().to(on))
    with pytest.raises(ValueError, match="expected dimension 0 to be 9 but got 8; n is that of op"):
        ops.affine(x.to(on), bias[:8].to(on))
    with pytest.raises(ValueError, match=r"parameter factor: expected 0.0 to 10.0 but got 11.0"):
        ops.affine(x.to(on), None, 11.0)


@pytest.mark.parametrize("on", ["xla", "cpu"])
def test_in_place(on: str) -> None:
    state, x = torch.randn(9), torch.randn(9)
    tensor = state.clone().to(on)
    ops.add_to(tensor, x.to(on), 2.0)
    torch.testing.assert_close(tensor.cpu(), state + 2 * x)


@on_a_gpu
def test_launch_attributes_on_a_gpu(device: torch.device) -> None:
    x = torch.zeros(300, device=device)
    three = "x" + struct.pack("<i", 300).hex()
    found = attributes(ops.square(x))
    assert found["parameters"] == f'"t0 r0 {three}"'
    assert found["grid"] == "array<i32: 2, 1, 1>"
    null, factor = "x" + bytes(8).hex(), "x" + struct.pack("<f", 3).hex()
    assert attributes(ops.affine(x, None, 3.0))["parameters"] == f'"t0 {null} r0 {factor} {three}"'
    assert attributes(ops.affine(x, x, 3.0))["parameters"] == f'"t0 t1 r0 {factor} {three}"'


@on_a_gpu
def test_in_place_on_a_gpu(device: torch.device) -> None:
    state = torch.zeros(300, device=device)
    ops.add_to(state, state + 1, 2.0)
    text = hlo(state)
    assert "output_to_operand_aliasing={{0}: (0, {})}" in text
    assert 'parameters = "r0 t1 ' in text.replace('\\"', '"')


@on_a_gpu
def test_calls_are_cached(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(301, device=device)
    first = attributes(ops.square(x))
    monkeypatch.setattr(type(square.calls), "prepared", None)
    monkeypatch.setattr(nvrtc, "find", None)
    assert attributes(ops.square(x)) == first


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(
        TypeError, match="target must be a str or a cuda_kernel, but is of type fun"
    ):
        define_operator("cuda_kernels_test::d(Tensor x) -> Tensor", target=lambda x: x)
    plain = cuda_kernel(SQUARE, "square")
    with pytest.raises(TypeError, match="cuda_kernel 'square' has no signature; give it one"):
        define_operator("cuda_kernels_test::a(Tensor x) -> Tensor", target=plain)
    with pytest.raises(ValueError, match="the tensor arguments must be the operands of square, x"):
        define_operator("cuda_kernels_test::b(Tensor y) -> Tensor", target=square)
    with pytest.raises(TypeError, match="results follow from the signature of square"):
        define_operator(
            "cuda_kernels_test::c(Tensor x) -> Tensor", target=square, results=lambda **args: []
        )
