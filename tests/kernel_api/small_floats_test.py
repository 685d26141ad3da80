"""Types that torch_xla lacks: signatures accept their bytes, and PyTorch's own types."""

import pytest
import torch
from testing import libraries

import torch_xla_ext
from torch_xla_ext import cuda_kernel, custom_call, define_operator
from xla_kernels.signature import parse

SOURCE = """
#include "torch_xla_ext/kernel.h"
using namespace torch_xla_ext;

// The exponents' bytes plus one, and the codes of each byte in turn.
inline constexpr Signature kUnpack = ParseSignature(
    "TestUnpack(scale: F8E8M0FNU[n], packed: F4E2M1FNX2[n], other?: F8E3M4[n]) "
    "-> (next: F8E8M0FNU[n], codes: S32[2 * n])");
Status Unpack(Buffer<F8E8M0FNU, 1> scale, Buffer<F4E2M1FNX2, 1> packed,
              std::optional<Buffer<F8E3M4, 1>> other, Result<F8E8M0FNU, 1> next,
              Result<S32, 1> codes) {
  for (int64_t i = 0; i < scale.size(); ++i) {
    next.data()[i] = static_cast<uint8_t>(scale.data()[i] + 1 + (other ? other->data()[i] : 0));
    codes.data()[2 * i] = packed.data()[i] & 15;
    codes.data()[2 * i + 1] = packed.data()[i] >> 4;
  }
  return Status::Ok();
}
XLA_KERNEL_HOST(TestUnpack, kUnpack, Unpack);

// Products by weights of four bits, which are unsigned, less a signed correction.
inline constexpr Signature kProduct = ParseSignature(
    "TestInt4Product(x: F32[2 * k], weight: U4X2[n, k], less: S4X2[n, k]) -> (out: F32[n])");
Status Product(Buffer<F32, 1> x, Buffer<U4X2, 2> weight, Buffer<S4X2, 2> less,
               Result<F32, 1> out) {
  int64_t columns = weight.dim(1);
  for (int64_t i = 0; i < weight.dim(0); ++i) {
    out.data()[i] = 0;
    for (int64_t j = 0; j < columns; ++j) {
      uint8_t byte = weight.data()[i * columns + j], other = less.data()[i * columns + j];
      int first = (byte & 15) - (int8_t(other << 4) >> 4);
      int second = (byte >> 4) - (int8_t(other) >> 4);
      out.data()[i] += first * x.data()[2 * j] + second * x.data()[2 * j + 1];
    }
  }
  return Status::Ok();
}
XLA_KERNEL_HOST(TestInt4Product, kProduct, Product);
"""
SCALED = """
#include <cuda_fp8.h>
__global__ void scaled(const float* x, const __nv_fp8_e8m0* scale, float* out, int n) {}
"""
INTEGERS = """
template <typename T>
__global__ void integers(const T* packed, signed char* out, int n) {
  int i = threadIdx.x;
  if (i < n) out[2 * i] = (signed char)(packed[i] << 4) >> 4, out[2 * i + 1] = packed[i] >> 4;
}
"""


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    library = libraries.build(tmp_path_factory.mktemp("kernels") / "unpack.cc", SOURCE)
    torch_xla_ext.register_kernel("TestUnpack", library)
    torch_xla_ext.register_kernel("TestInt4Product", library)
    define_operator(
        "small_floats_test::unpack(Tensor scale, Tensor packed, Tensor? other) -> (Tensor, Tensor)",
        target="TestUnpack",
        replace=True,
    )
    define_operator(
        "small_floats_test::int4_product(Tensor x, Tensor weight, Tensor less) -> Tensor",
        target="TestInt4Product",
        replace=True,
    )


BYTES = torch.tensor([0, 127, 0x21, 200], dtype=torch.uint8)
CODES = [0, 0, 15, 7, 1, 2, 8, 12]


@pytest.mark.parametrize("on", ["xla", "cpu"])
def test_bytes(on: str) -> None:
    given = BYTES.to(on)
    for other in (None, given):
        after, codes = torch.ops.small_floats_test.unpack(given, given, other)
        assert after.dtype == torch.uint8
        assert torch.equal(after.cpu(), BYTES + 1 + (0 if other is None else BYTES))
        assert codes.tolist() == CODES


@pytest.mark.parametrize("api", ["ffi", "untyped"])
def test_custom_call(api: str, device: torch.device) -> None:
    given, outputs = BYTES.to(device), [((4,), torch.uint8), ((8,), torch.int32)]
    _, codes = custom_call("TestUnpack", [given, given, None], outputs, api=api)
    assert codes.tolist() == CODES


def test_pytorchs_own_types() -> None:
    after, codes = torch.ops.small_floats_test.unpack(
        BYTES.view(torch.float8_e8m0fnu), BYTES.view(torch.float4_e2m1fn_x2), None
    )
    assert (after.tolist(), codes.tolist()) == ((BYTES + 1).tolist(), CODES)


@pytest.mark.parametrize("on", ["xla", "cpu"])
def test_other_types(on: str) -> None:
    given = BYTES.to(on)
    with pytest.raises(
        TypeError, match=r"operand 0 \(scale\): expected dtype F8E8M0FNU but got S8"
    ):
        torch.ops.small_floats_test.unpack(given.to(torch.int8), given, None)
    with pytest.raises(
        TypeError, match=r"operand 1 \(packed\): expected dtype F4E2M1FNX2 but got "
    ):
        torch.ops.small_floats_test.unpack(given, given.float(), None)


def test_cuda_kernels(device: torch.device) -> None:
    kernel = cuda_kernel(
        SCALED,
        "scaled",
        signature="(x: F32[n], scale: F8E8M0FNU[n]) -> (out: F32[n])",
        grid=1,
        block=32,
        reference=lambda x, scale: x * torch.exp2(scale.float() - 127),
    )
    kernel.check()
    x = torch.randn(4)
    expected = x * torch.exp2(BYTES.float() - 127)
    torch.testing.assert_close(kernel(x.to(device), BYTES.to(device))[0].cpu(), expected)
    define_operator("small_floats_test::scaled(Tensor x, Tensor scale) -> Tensor", target=kernel)
    # The reference receives bytes here, too.
    result = torch.ops.small_floats_test.scaled(x, BYTES.view(torch.float8_e8m0fnu))
    torch.testing.assert_close(result, expected)
    with pytest.raises(TypeError, match=r"parameter 0 .x.: the kernel's parameter is float const"):
        cuda_kernel(
            SCALED, "scaled", signature="(x: F8E8M0FNU[n], scale: F8E8M0FNU[n]) -> (out: F32[n])"
        ).check()


def test_pairs_in_a_reference() -> None:
    kernel = cuda_kernel(
        "__global__ void f(const unsigned char* x, unsigned char* out) { out[0] = x[0]; }",
        "f",
        signature="(x: F4E2M1FNX2[n]) -> (out: U8[n])",
        grid=1,
        block=32,
        reference=lambda x: x + 1,
    )
    define_operator("small_floats_test::pairs(Tensor x) -> Tensor", target=kernel)
    given = BYTES.view(torch.float4_e2m1fn_x2)
    assert torch.equal(torch.ops.small_floats_test.pairs(given), BYTES + 1)


def integers(packed: torch.Tensor, signed: bool) -> torch.Tensor:
    """The two integers in each byte; the integer in the low bits comes first."""
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).to(torch.int8)
    return torch.where(codes < 8, codes, codes - 16) if signed else codes


@pytest.mark.parametrize("on", ["xla", "cpu"])
def test_int4(on: str) -> None:
    weight, less = (torch.arange(i, i + 240, dtype=torch.uint8).view(60, 4) for i in (0, 9))
    x = torch.randn(8)
    out = torch.ops.small_floats_test.int4_product(*(each.to(on) for each in (x, weight, less)))
    expected = (integers(weight, False) - integers(less, True)).float() @ x
    torch.testing.assert_close(out.cpu(), expected)
    with pytest.raises(TypeError, match=r"\(weight\): expected dtype U4X2 but got S8"):
        torch.ops.small_floats_test.int4_product(x.to(on), weight.char().to(on), less.to(on))


def test_int4_in_cuda_kernels(device: torch.device) -> None:
    kernel = cuda_kernel(
        INTEGERS,
        "integers<{T}>",
        signature="(packed: T[n]) -> (out: S8[2 * n]) where T: S4X2 | S8",
        grid=1,
        block=32,
        reference=lambda packed: integers(packed, True),
    )
    kernel.check()
    assert set(kernel.compile("compute_90")) == {"integers<unsigned char>", "integers<signed char>"}
    (out,) = kernel(BYTES.to(device))
    assert out.tolist() == [0, 0, -1, 7, 1, 2, -8, -4]


def test_variables() -> None:
    text = "(x: T[n], y: T[n]) -> (z: T[n]) where T: F8E8M0FNU | F32"
    schema = parse.parse("f", text, "")
    byte, real = torch.empty(3, dtype=torch.uint8), torch.empty(3)
    for array in (byte, real):
        types = tuple(parse.Schema.infer(schema, (_type(array), _type(array)), (), 1))
        assert types[0].dtype == array.dtype
    with pytest.raises(TypeError, match="expected dtype U8 but got F32; T is that of operand 0"):
        schema.infer((_type(byte), _type(real)))


def _type(tensor: torch.Tensor) -> torch_xla_ext.ArrayType:
    return torch_xla_ext.ArrayType.of(tensor)
