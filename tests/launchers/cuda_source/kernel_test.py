"""Calls of cuda_kernel: the launch for a GPU in the HLO; references; error texts."""

import ctypes
import re
import struct
import warnings

import numpy as np
import pytest
import torch
from testing.xla import custom_call_lines
from torch import Tensor

import torch_xla_ext
from cuda_source.sources import ADD_TO, SCALE, SQUARE, attributes, f32, i32, i64, parameters
from torch_xla_ext import CudaKernel, cuda_kernel, define_operator

on_a_gpu = pytest.mark.usefixtures("on_a_gpu")


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.randn(1000).to(device)


@pytest.fixture
def square() -> CudaKernel:
    return cuda_kernel(SQUARE, "square", reference=lambda x, n: x * x)


def test_a_reference_on_the_cpu(square: CudaKernel, x: Tensor) -> None:
    (y,) = square[4, 256](x, 1000, outputs=[x])
    assert torch.equal(y.cpu(), x.cpu() ** 2)


def test_without_a_reference(x: Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"'square': it runs on a GPU only; give it a reference"):
        cuda_kernel(SQUARE, "square")[4, 256](x, 1000, outputs=[x])


def test_a_reference_with_another_result(x: Tensor) -> None:
    kernel = cuda_kernel(SQUARE, "square", reference=lambda x, n: x[:n])
    with pytest.raises(
        ValueError, match=r"returned F32\[3\], but the kernel's results are F32\[10"
    ):
        kernel[4, 256](x, 3, outputs=[x])
    kernel = cuda_kernel(SQUARE, "square", reference=lambda x, n: (x, x))
    with pytest.raises(ValueError, match="returned 2 tensors, but the kernel has 1 results"):
        kernel[4, 256](x, 3, outputs=[x])


def test_a_reference_that_writes_to_an_alias(device: torch.device) -> None:
    def add_to(state: Tensor, x: Tensor, factor: float, *rest: object) -> Tensor:
        return state.add_(factor * x)  # of its own copy

    kernel = cuda_kernel(ADD_TO, "add_to", reference=add_to)
    state, x = torch.randn(8), torch.randn(8)
    before = state.to(device)
    (after,) = kernel[1, 8](
        before, x.to(device), 2.0, struct.pack("<ii", 0, 8), 1, aliases=["state"]
    )
    assert torch.equal(after.cpu(), state + 2 * x)
    assert torch.equal(before.cpu(), state)


def test_no_derivative(square: CudaKernel, x: Tensor) -> None:
    (y,) = square[4, 256](x.requires_grad_(), 1000, outputs=[x])
    with pytest.raises(NotImplementedError, match="has no derivative"):
        y.sum().backward()


@on_a_gpu
def test_launch_attributes_on_a_gpu(square: CudaKernel, x: Tensor) -> None:
    (y,) = square[(4, 2), (128, 2), 1024](x, 1000, outputs=[x])
    found = attributes(y)
    assert found["grid"] == "array<i32: 4, 2, 1>"
    assert found["block"] == "array<i32: 128, 2, 1>"
    assert found["shared"] == "1024"
    assert found["kernel"] == '"_Z6squarePKfPfi"'
    assert found["parameters"] == f'"t0 r0 {i32(1000)}"'
    assert found["cooperative"] == found["dependent"] == found["spread"] == "false"
    assert "7FELF" in found["module"]


@on_a_gpu
def test_clusters_and_cooperative_launches(x: Tensor) -> None:
    kernel = cuda_kernel(SQUARE, "square", cluster=2, cooperative=True, dependent=True)
    found = attributes(*kernel[4, 256](x, 1000, outputs=[x]))
    assert found["cluster"] == "array<i32: 2, 1, 1>"
    assert found["cooperative"] == found["dependent"] == "true"
    with pytest.raises(ValueError, match=r"grid must be a multiple of cluster \(2, 1, 1\)"):
        kernel[3, 256](x, 1000, outputs=[x])


@on_a_gpu
def test_functions_of_the_arguments(square: CudaKernel, x: Tensor) -> None:
    launched = square[lambda given: -(-given["n"] // 128), 128, lambda given: 4 * given["x"].size]
    found = attributes(*launched(x, 1000, outputs=[x]))
    assert found["grid"] == "array<i32: 8, 1, 1>"
    assert found["shared"] == "4000"


@on_a_gpu
def test_aliases_structs_and_small_numbers(device: torch.device) -> None:
    class Range(ctypes.Structure):
        _fields_ = (("begin", ctypes.c_int), ("end", ctypes.c_int))

    kernel = cuda_kernel(ADD_TO, "add_to")
    state, x = torch.zeros(8, device=device), torch.zeros(8, device=device)
    record = np.array((1, 7), np.dtype([("begin", "<i4"), ("end", "<i4")]))
    for given in (struct.pack("<ii", 1, 7), Range(1, 7), record):
        (after,) = kernel[1, 8](state, x, 2.5, given, 255, aliases=["state"])
        found = attributes(after)
        words = ["r0", "t1", f32(2.5), "x" + struct.pack("<ii", 1, 7).hex(), "xff"]
        assert found["parameters"].strip('"').split() == words
        assert found["aliases"].startswith("{")
    by_position = kernel[1, 8](state, x, 2.5, bytes(8), 255, aliases=[0])
    assert parameters(*by_position)[0] == "r0"
    with pytest.raises(ValueError, match="Range has 8 bytes, but the value has 4"):
        kernel[1, 8](state, x, 2.5, bytes(4), 255, aliases=["state"])
    with pytest.raises(ValueError, match=r"parameter 4 \(flag\): 256 is out of the range of unsig"):
        kernel[1, 8](state, x, 2.5, bytes(8), 256, aliases=["state"])


@on_a_gpu
def test_outputs_by_name_and_order(device: torch.device) -> None:
    text = "__global__ void f(float* a, int n, const float* x, __half* b) {}"
    x = torch.zeros(8, device=device)
    kernel = cuda_kernel("#include <cuda_fp16.h>\n" + text, "f")
    a, b = kernel[1, 8](3, x, outputs=[((5, 3), torch.float32), ((2,), torch.float16)])
    assert (tuple(a.shape), tuple(b.shape)) == ((5, 3), (2,))
    assert parameters(a, b) == ["r0", i32(3), "t0", "r1"]
    b, a = kernel[1, 8](3, x, outputs={"b": ((2,), torch.float16), 0: ((5,), torch.float32)})
    assert parameters(a, b) == ["r1", i32(3), "t0", "r0"]
    b, after = kernel[1, 8](x, 3, x, outputs=[((2,), torch.float16)], aliases=["a"])
    assert parameters(b, after) == ["r1", i32(3), "t1", "r0"]


@on_a_gpu
def test_pointers_that_may_be_null(device: torch.device) -> None:
    x = torch.zeros(8, device=device)
    kernel = cuda_kernel("__global__ void f(const float* x, const float* bias, float* y) {}", "f")
    assert parameters(*kernel[1, 8](x, None, outputs=[x])) == ["t0", "x" + bytes(8).hex(), "r0"]


@on_a_gpu
def test_a_write_without_an_alias_is_warned_of(x: Tensor) -> None:
    kernel = cuda_kernel("__global__ void f(float* state, float* x, int n) {}", "f")
    with pytest.warns(UserWarning, match=r"parameter 1 \(x\) is float\*, which is not const.*'x'"):
        kernel[1, 8](x, x, 3, aliases=["state"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel[1, 8](x, x, 3, aliases=["state"])  # only once
        kernel[1, 8](x, x, 3, aliases=["state", "x"])


@on_a_gpu
@pytest.mark.parametrize(
    ("args", "options", "text"),
    [
        ((1.5,), {}, r"parameter 2 \(n\): expected int but got float"),
        ((True,), {}, r"parameter 2 \(n\): expected int but got bool"),
        ((2**31,), {}, r"parameter 2 \(n\): 2147483648 is out of the range of int"),
        ((), {}, "1 arguments and 1 outputs, but the kernel has 3 parameters: float const.* x, fl"),
        ((1000,), {"aliases": ["y"]}, "there is no parameter 'y'; the kernel has float const"),
        (
            (1000,),
            {"aliases": ["x"]},
            r"parameter 0 \(x\) is float const\*: the kernel cannot writ",
        ),
        ((1000,), {"aliases": ["out"]}, "there is no way to bind 1 outputs"),
        ((1000,), {"outputs": {"out": "?"}}, "output out: expected a tensor"),
        ((1000,), {"outputs": {"x": ((3,), torch.float32)}}, "an output needs a non-const pointer"),
        ((1000,), {"outputs": []}, "it has neither outputs nor aliases"),
    ],
)
def test_wrong_calls(square: CudaKernel, x: Tensor, args: tuple, options: dict, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        square[4, 256](x, *args, **{"outputs": [x], **options})


@on_a_gpu
def test_wrong_dtypes_and_launches(square: CudaKernel, x: Tensor) -> None:
    with pytest.raises(
        TypeError, match=r"parameter 0 \(x\): the kernel's parameter is float const"
    ):
        square[4, 256](x.double(), 1000, outputs={"out": x})
    with pytest.raises(TypeError, match="there is no way to bind"):
        square[4, 256](x, 1000, outputs=[x.double()])
    with pytest.raises(
        TypeError, match=r"parameter 2 .n.: the kernel's parameter is int, but got a"
    ):
        square[4, 256](x, x, outputs={"out": x})
    with pytest.raises(TypeError, match="none of its arguments is an XLA tensor"):
        square[4, 256](1, 2, outputs=[x])
    with pytest.raises(
        ValueError, match=r"grid of .0, 1, 1. has no blocks, but the results have el"
    ):
        square[0, 256](x, 1000, outputs=[x])
    with pytest.raises(ValueError, match="block must have 1 to 1024 threads"):
        square[4, 1025](x, 1000, outputs=[x])
    with pytest.raises(ValueError, match=r"grid must be 1 to 3 numbers of blocks, but is 1.5"):
        square[1.5, 256](x, 1000, outputs=[x])
    with pytest.raises(ValueError, match="shared_bytes must be a number of bytes, but is -1"):
        square[4, 256, -1](x, 1000, outputs=[x])
    with pytest.raises(TypeError, match=r"expected kernel\[grid, block\]"):
        square[4]
    with pytest.raises(
        TypeError, match=r"call it as kernel\[grid, block\]\(…\), or give it a sign"
    ):
        square(x)


def test_wrong_calls_on_the_cpu(square: CudaKernel, x: Tensor) -> None:
    """Calls on the CPU check everything that the source text shows."""
    with pytest.raises(TypeError, match=r"parameter 2 .n.: expected int but got float"):
        square[4, 256](x, 1.5, outputs=[x])
    with pytest.raises(TypeError, match="there is no way to bind"):
        square[4, 256](x.double(), 1000, outputs=[x])
    with pytest.raises(TypeError, match="the kernel cannot write to it"):
        square[4, 256](x, 1000, outputs=[x], aliases=["x"])


def elementwise(name: str, **options: object) -> CudaKernel:
    return cuda_kernel(
        SCALE,
        name,
        signature="Scale(x: T[*shape]) -> (out: T[*shape]) where T: F32 | F16 | BF16",
        arguments="x out out.size",
        grid=1,
        block=256,
        **options,
    )


@on_a_gpu
def test_a_signature_chooses_the_instance(device: torch.device) -> None:
    kernel = elementwise("own::scale<{T}, 3>")
    for dtype, letter in ((torch.float32, "f"), (torch.float16, "6__half"), (torch.bfloat16, "13")):
        x = torch.zeros(2, 3, dtype=dtype, device=device)
        (y,) = kernel(x)
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        found = attributes(y)
        assert f"scaleI{letter}" in found["kernel"]
        assert found["parameters"] == f'"t0 r0 x{struct.pack("<q", 6).hex()}"'
    with pytest.raises(TypeError, match="expected dtype F32, F16 or BF16 but got F64"):
        kernel(torch.zeros(2, dtype=torch.float64, device=device))


@on_a_gpu
def test_sizes_in_the_name(device: torch.device) -> None:
    kernel = cuda_kernel(
        SCALE,
        "own::scale<float, {n}>",
        signature="(x: F32[n]) -> (out: F32[n])",
        arguments="x out n",
        grid=1,
        block=32,
    )
    assert "Li5E" in attributes(*kernel(torch.zeros(5, device=device)))["kernel"]


@on_a_gpu
def test_parameters_of_a_signature(device: torch.device) -> None:
    text = """__global__ void f(const float* x, float* out, float* cache, double eps,
                                  bool causal, int n) {}"""
    kernel = cuda_kernel(
        text,
        "f",
        signature="(x: F32[n], cache: F32[m]) -> (out: F32[n], cache)",
        parameters="eps: f32, causal: bool",
    )
    x, cache = torch.zeros(5, device=device), torch.zeros(7, device=device)
    out, after = kernel[1, lambda given: given["m"]](x, cache, 0.5, True)
    assert (out.shape, after.shape) == (x.shape, cache.shape)
    found = attributes(out, after)
    half = "x" + struct.pack("<d", 0.5).hex()
    assert found["parameters"].strip('"').split() == ["t0", "r0", "r1", half, "x01", i32(5)]
    assert found["block"] == "array<i32: 7, 1, 1>"
    with pytest.raises(TypeError, match="expected 4 arguments, x, cache, eps, causal, but got 2"):
        kernel[1, 1](x, cache)
    with pytest.raises(TypeError, match="parameter causal: expected a bool but got int"):
        kernel[1, 1](x, cache, 0.5, 1)
    with pytest.raises(TypeError, match="outputs and aliases follow from its signature"):
        kernel[1, 1](x, cache, 0.5, True, outputs=[x])


@on_a_gpu
def test_layouts(device: torch.device) -> None:
    text = """__global__ void f(const float* x, long long row, long long column, float* out,
                                int stride, const float* bias, int of_bias) {}"""
    kernel = cuda_kernel(
        text,
        "f",
        signature="(x: F32[m, n]{0, 1}, bias?: F32[n]) -> (out: F32[n, m, 2]{1, 2, 0})",
        arguments="x x.stride[0] x.stride[1] out out.stride[0] bias bias.stride[0]",
        grid=1,
        block=1,
        reference=lambda x, bias: torch.stack([x.t() + bias[:, None]] * 2, 2),
    )
    x, bias = torch.zeros(3, 5, device=device), torch.zeros(5, device=device)
    (out,) = kernel(x, bias)
    words = ["t0", i64(1), i64(3), "r0", i32(6), "t1", i32(1)]
    assert parameters(out) == words
    (line,) = custom_call_lines(out)
    assert "operand_layout_constraints={f32[3,5]{0,1}, f32[5]{0}}" in line
    assert "(f32[5,3,2]{1,2,0}) custom-call(" in line
    assert parameters(*kernel(x, None))[-2:] == ["x" + bytes(8).hex(), i32(0)]
    define_operator(
        "kernel_test::f(Tensor x, Tensor? bias=None) -> Tensor", target=kernel, replace=True
    )
    assert custom_call_lines(torch.ops.kernel_test.f(x, bias)) == [line]
    for word in ("x.stride[2]", "y.stride[0]", "x.stride"):
        with pytest.raises(ValueError, match=re.escape(f"parameter {word!r} is not in the signat")):
            cuda_kernel(text, "f", signature="(x: F32[m, n]) -> (out: F32[m])", arguments=word)


@on_a_gpu
def test_a_signature_that_does_not_fit(x: Tensor) -> None:
    def call(signature: str, **options: object) -> None:
        cuda_kernel(SQUARE, "square", signature=signature, grid=1, block=1, **options)(x)

    with pytest.raises(ValueError, match="the kernel's parameter 'out' is not in the signature"):
        call("(x: F32[n]) -> (y: F32[n])")
    with pytest.raises(ValueError, match="the kernel's parameter 'm' is not in the signature"):
        call("(x: F32[n]) -> (out: F32[n])", arguments="x out m")
    with pytest.raises(ValueError, match="out is in the signature, but not among the arguments"):
        call("(x: F32[n]) -> (out: F32[n])", arguments="x x n")
    with pytest.raises(ValueError, match="arguments has 2 words, but the kernel has 3 parameters"):
        call("(x: F32[n]) -> (out: F32[n])", arguments="x out")
    with pytest.raises(TypeError, match=r"is float const.*, but a result needs a non-const"):
        call("(x: F32[n]) -> (out: F32[n])", arguments="out x n")
    with pytest.raises(TypeError, match=r"is float\*, an array of F32, but the array is F16"):
        call("(x: F32[n]) -> (out: F16[n])")
    for kind in ("str", "i64[]"):
        with pytest.raises(
            ValueError, match=re.escape(f"a kernel cannot receive a {kind}; pass an array")
        ):
            call("(x: F32[n]) -> (out: F32[n])", parameters=f"p: {kind}")
    with pytest.raises(TypeError, match="parameters and arguments require a signature"):
        cuda_kernel(SQUARE, "square", parameters="n: i32")
    with pytest.raises(TypeError, match=r"{T} in the name requires a signature"):
        cuda_kernel(SCALE, "own::scale<{T}, 3>")


def test_a_signature_on_the_cpu(device: torch.device) -> None:
    kernel = elementwise("own::scale<{T}, 3>", reference=lambda x: 3 * x)
    x = torch.randn(2, 3)
    assert torch.equal(kernel(x.to(device))[0].cpu(), 3 * x)
    with pytest.raises(TypeError, match=r"Scale: operand 0 .x.: expected dtype"):
        kernel(x.double().to(device))


def test_transforms_are_refused(square: CudaKernel, x: Tensor) -> None:
    with pytest.raises(NotImplementedError, match=r"torch.vmap transforms"):
        torch.vmap(lambda row: square[1, 1](row, 3, outputs=[row])[0])(x.view(10, 100))


def test_the_package_has_it() -> None:
    assert torch_xla_ext.cuda_kernel is cuda_kernel
