"""Untyped Host functions with one result: the meaning of `out`, and errors for the wrong kind."""

import ctypes

import pytest
import torch
from testing import libraries
from testing.xla import XLAC, capsule, hlo

import torch_xla_ext
from torch_xla_ext import define_operator

SOURCE = """
#include <stddef.h>
#include <string.h>
static void twice(float* y, const float* x) { for (int i = 0; i < 4; ++i) y[i] = 2 * x[i]; }
void OfBuffer(void* out, const void** in, const char* o, size_t n, void* s) { twice(out, in[0]); }
void OfArray(void* out, const void** in, const char* o, size_t n, void* s) {
  twice(((void**)out)[0], in[0]);
}
void OfLargeBuffer(void* out, const void** in, const char* o, size_t n, void* s) {
  memset(out, 1, 1 << 20);
}
void OfTwo(void* out, const void** in, const char* o, size_t n, void* s) {
  twice(((void**)out)[0], in[0]);
  twice(((void**)out)[1], in[0]);
}
"""
KERNEL = """
#include "torch_xla_ext/kernel.h"
using namespace torch_xla_ext;
inline constexpr Signature kOne = ParseSignature("TestOneResult(x: F32[n]) -> (out: F32[n])");
Status One(Buffer<F32, 1> x, Result<F32, 1> out) {
  for (int64_t i = 0; i < x.size(); ++i) out.data()[i] = 2 * x.data()[i];
  return Status::Ok();
}
XLA_KERNEL_HOST(TestOneResult, kOne, One);
"""
SHAPE = ([[4]], [torch.float32])


@pytest.fixture(scope="module", autouse=True)
def functions(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("functions")
    library = ctypes.CDLL(str(libraries.build(folder / "functions.c", SOURCE)))
    for name in ("OfBuffer", "OfArray", "OfLargeBuffer", "OfTwo"):
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        XLAC._xla_register_custom_call_target(name, capsule(address), "Host")
    torch_xla_ext.register_kernel("TestOneResult", libraries.build(folder / "kernel.cc", KERNEL))


@pytest.fixture
def x(device: torch.device) -> torch.Tensor:
    return torch.arange(4.0).to(device)


def flat(x: torch.Tensor, target: str) -> torch.Tensor:
    return XLAC._xla_custom_call([x], target, *SHAPE, False, b"p", 3, {})[0]


def array(x: torch.Tensor, target: str) -> torch.Tensor:
    return XLAC._xla_gpu_custom_call([x], b"p", *SHAPE, target=target)[0]


def test_each_with_its_own_call(x: torch.Tensor) -> None:
    for result in (flat(x, "OfBuffer"), array(x, "OfArray"), array(x, "TestOneResult")):
        if "TestOneResult" not in hlo(result):
            assert result.tolist() == [0, 2, 4, 6]
    (y,) = torch_xla_ext.custom_call("OfArray", [x], [x])
    assert y.tolist() == [0, 2, 4, 6]
    for api in ("ffi", "untyped"):
        (y,) = torch_xla_ext.custom_call("TestOneResult", [x], [x], api=api)
        # Its entry checks the payload first, and its name in the program is distinct.
        assert 'custom_call_target="TestOneResult"' in hlo(y)
        assert y.tolist() == [0, 2, 4, 6]
    both = XLAC._xla_gpu_custom_call([x], b"p", [[4]] * 2, [torch.float32] * 2, target="OfTwo")
    assert both[1].tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("target", ["OfBuffer", "OfLargeBuffer"])
def test_a_function_that_takes_the_array_for_the_buffer(x: torch.Tensor, target: str) -> None:
    text = f'"{target}": the function wrote to `out`, which is the array of the results'
    for call in (array, lambda x, name: torch_xla_ext.custom_call(name, [x], [x])[0]):
        for _ in range(2):
            with pytest.raises(RuntimeError, match=text):
                call(x, target).cpu()
    assert array(x, "OfArray").tolist() == [0, 2, 4, 6]
    define_operator(
        "one_result_test::f(Tensor x) -> Tensor",
        target=target,
        results=lambda x: [(x.shape, x.dtype)],
        payload=lambda x: b"p",
        replace=True,
    )
    with pytest.raises(RuntimeError, match=text):
        torch.ops.one_result_test.f(torch.arange(4.0))  # without XLA


def test_a_kernel_that_takes_an_array_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(
        ValueError, match=r'"TestOneResult": the kernel, made with torch_xla_ext/ker'
    ):
        flat(x, "TestOneResult")
